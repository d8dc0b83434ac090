"""GINE: GIN whose messages also depend on the edge."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from shoal.algorithms.models.edges.edge_messages import add_edges
from shoal.algorithms.models.gnn.gin import Norm
from shoal.algorithms.models.layers.coupled import Coupled
from shoal.algorithms.models.layers.dropout import transform
from shoal.algorithms.models.layers.message_layers import GINEConv
from shoal.storage.graph.edges.edge_matrix import EdgeMatrix
from shoal.storage.graph.sparse_matrix import Features, SparseMatrix


class GINE(Coupled):
    """GIN with features of edges (Hu et al., ICLR 2020, "Strategies for Pre-training Graph Neural Networks"): with
    x_0 = W x + b,

        h'_i = norm(MLP((1 + e) h_i + sum_{j in N(i)} ReLU(h_j + W_e e_ij + b_e))),

    e_ij the features of the edge from j to i. e, the MLP and the norm are those of `gin`; one-hot features of atoms and
    bonds make W x and W_e e_ij the sums of embeddings that OGB's encoders are.
    """

    operator = "edges"
    lifted = True
    first = ("lift.weight",)

    def __init__(
        self,
        features: int,
        classes: int,
        hops: int,
        dropout: float,
        edge_features: int,
        *,
        norm: Norm = "layer",
        **options: Any,
    ) -> None:
        """Takes the arguments of `GIN`.

        Args:
            edge_features: Number of features of an edge.
            norm: `layer` normalises what a layer sums up, `none` keeps its size.
        """
        self.norm, self.edge_features = norm, edge_features
        super().__init__(features, classes, hops, dropout, **options)

    def layer(self, number: int, width: int, out: int, last: bool) -> GINEConv:
        scaled = [nn.LayerNorm(out)] if self.norm == "layer" else []
        mlp = nn.Sequential(nn.Linear(width, out), nn.ReLU(), nn.Linear(out, out), *scaled)
        return GINEConv(mlp, width, self.edge_features)

    def head_messages(self, hidden: int, classes: int) -> GINEConv:
        return GINEConv(nn.Sequential(nn.Linear(hidden, hidden), nn.ReLU()), hidden, self.edge_features)

    def embed(self, x_NF: Features, operators: Sequence[SparseMatrix]) -> Tensor:
        assert self.lift is not None
        return super().embed(transform(x_NF, self.lift.weight, self.lift.bias), operators)

    def convolve(self, conv: Any, operator: SparseMatrix, x: Features) -> Tensor:
        assert isinstance(operator, EdgeMatrix)
        assert isinstance(x, Tensor)
        of_edges = transform(operator.features(self.edge_features), conv.lin.weight, conv.lin.bias)
        summed = torch.addcmul(add_edges(operator, x, of_edges), 1 + conv.gin.eps, x[: len(operator)])
        out: Tensor = conv.gin.nn(summed)
        return out

    def classify(self, operator: SparseMatrix, x: Tensor) -> Tensor:
        return self.head.linears[-1](self.convolve(self.head.messages, operator, x))
