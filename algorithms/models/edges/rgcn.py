"""R-GCN: a weight for every kind of edge."""

from typing import Annotated, Any

import torch
from pydantic import Field
from torch import Tensor, nn

from shoal.algorithms.models.layers.coupled import Coupled
from shoal.algorithms.models.layers.dropout import transform
from shoal.algorithms.models.layers.message_layers import KindWeights, RGCNConv
from shoal.storage.graph.edges.edge_matrix import EdgeMatrix
from shoal.storage.graph.sparse_matrix import Features, SparseMatrix


class RGCN(Coupled):
    """Relational GCN (Schlichtkrull et al., ESWC 2018, eq. 2 with c_ir the number of senders by r):

        h'_i = W_0 h_i + b + sum_r mean_{j in N_r(i)} W_r h_j.

    Kinds r are columns of the features of edges, which are 0 or 1; those of both ways between two kinds of nodes are
    two. Nodes of one kind read columns of their own of the features, so that W_0 is one a kind in the first layer.
    """

    operator = "edges"
    papers_head = "conv"

    def __init__(
        self,
        features: int,
        classes: int,
        hops: int,
        dropout: float,
        edge_features: int,
        *,
        bases: Annotated[int, Field(ge=1)] | None = None,
        **options: Any,
    ) -> None:
        """Takes the arguments of `Coupled`, and the number of kinds of edges.

        Args:
            edge_features: Number of kinds.
            bases: Weights of which those of all kinds are sums (eq. 3), so that fewer numbers are sent; null: each has
                its own.
        """
        self.edge_features, self.bases = edge_features, bases
        super().__init__(features, classes, hops, dropout, **options)

    def layer(self, number: int, width: int, out: int, last: bool) -> RGCNConv:
        return RGCNConv(width, out, self.edge_features, self.bases)

    def head_messages(self, hidden: int, classes: int) -> nn.Module:
        return KindWeights(hidden, classes, self.edge_features, self.bases)

    def first_weights(self) -> list[nn.Parameter]:
        conv: Any = self.convs[0]
        return [conv.root.weight, *(linear.weight for linear in conv.kinds.linears)]

    def convolve(self, conv: Any, operator: SparseMatrix, x: Features) -> Tensor:
        return self._add_kinds(transform(x, conv.root.weight, conv.bias)[: len(operator)], conv.kinds, operator, x)

    def classify(self, operator: SparseMatrix, x: Tensor) -> Tensor:
        of_nodes = self.head.linears[-1](x[: len(operator)])
        return self._add_kinds(of_nodes, self.head.messages, operator, x)

    def _add_kinds(self, of_nodes: Tensor, kinds: Any, operator: SparseMatrix, x: Features) -> Tensor:
        """Adds the means over senders of every kind to what nodes have of their own."""
        assert isinstance(operator, EdgeMatrix)
        messages = [transform(x, linear.weight) for linear in kinds.linears]
        if kinds.shares is not None:
            messages = list(
                (kinds.shares @ torch.stack(messages).flatten(1)).view(self.edge_features, *messages[0].shape)
            )
        out = of_nodes
        for message_MH, matrix in zip(messages, operator.relations(self.edge_features), strict=True):
            out = out + matrix @ message_MH
        return out
