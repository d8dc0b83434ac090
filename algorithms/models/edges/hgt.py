"""HGT: attention with keys, queries and values a kind of nodes, and a matrix a relation."""

from collections.abc import Sequence
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from shoal.algorithms.models.edges.node_kinds import one_hot_kinds, require_linear_head
from shoal.algorithms.models.gnn.gat import require_heads
from shoal.algorithms.models.inputs.neighbourhood import Operator
from shoal.algorithms.models.layers.coupled import Coupled
from shoal.algorithms.models.layers.dropout import transform
from shoal.algorithms.models.layers.edge_attention import attend_by_products
from shoal.algorithms.models.layers.message_layers import HGTConv
from shoal.storage.graph.edges.edge_matrix import EdgeMatrix
from shoal.storage.graph.edges.kinds import Kinds
from shoal.storage.graph.sparse_matrix import Features, SparseMatrix


class HGT(Coupled):
    """Heterogeneous Graph Transformer (Hu et al., WWW 2020, eqs. 3-5): with h = ReLU(W x + b) first, a layer is

        w_ij^r = softmax over all (j, r) of p_r <q_i, K_r k_j> / sqrt(D),
        h'_i = s O GELU(sum_(j, r) w_ij^r V_r v_j) + (1 - s) h_i,  s = sigmoid(skip),

    in every head of width D. k, q, v, O and skip are those of the node's kind, K_r, V_r and p_r those of the relation.
    A kind of nodes has columns of its own of the features, so that W is one a kind. Where no kinds of nodes are
    known, all are of one kind. Time differences, which the paper also encodes, are not in our graphs.
    """

    operator: ClassVar[Operator] = "edges"
    lifted = True
    first = ("lift.weight",)

    def __init__(
        self,
        features: int,
        classes: int,
        hops: int,
        dropout: float,
        kinds: Kinds,
        *,
        hidden: int = 64,
        heads: int = 8,
        **options: Any,
    ) -> None:
        """Takes the arguments of `Coupled`, and kinds of nodes and edges.

        Args:
            kinds: Their numbers are those of parameters.
            heads: Attention heads, which share the width of a layer.
        """
        self.heads = require_heads(heads, hidden)
        require_linear_head("hgt", options)
        self.kinds, self.edge_features = kinds, kinds.edges
        super().__init__(features, classes, hops, dropout, hidden=hidden, **options)

    def layer(self, number: int, width: int, out: int, last: bool) -> HGTConv:
        return HGTConv(out, self.heads, len(self.kinds.columns) or 1, self.edge_features)

    def embed(self, x_NF: Features, operators: Sequence[SparseMatrix]) -> Tensor:
        assert self.lift is not None
        kind_NT = one_hot_kinds(x_NF, self.kinds)
        x = F.relu(transform(x_NF, self.lift.weight, self.lift.bias))
        for conv, operator in zip(self.convs, operators):
            x = self._convolve(conv, operator, self.drop(x), kind_NT[: len(x)])
        return x

    def _convolve(self, conv: Any, operator: SparseMatrix, x_MH: Tensor, kind_MT: Tensor) -> Tensor:
        assert isinstance(operator, EdgeMatrix)
        receivers, heads = len(operator), conv.heads
        key_MH, query_MH, value_MH = _by_kind(conv.lin_kqv, x_MH, kind_MT).chunk(3, dim=1)
        takes, pattern = operator.by_relation(self.edge_features)
        keys, values = list[Tensor](), list[Tensor]()
        for take, of_keys, of_values, prior in zip(takes, conv.key_weight, conv.value_weight, conv.prior):
            keys.append(_by_head(take @ key_MH, of_keys * prior[:, None, None]))
            values.append(_by_head(take @ value_MH, of_values))
        summed_NH = attend_by_products(pattern, query_MH[:receivers], torch.cat(keys), torch.cat(values), heads)
        kind_NT = kind_MT[:receivers]
        out_NH = _by_kind(conv.lin_out, F.gelu(summed_NH), kind_NT)
        share_N1 = kind_NT @ conv.skip.sigmoid()[:, None]
        return share_N1 * out_NH + (1 - share_N1) * x_MH[:receivers]


def _by_kind(linears: Any, x_NH: Tensor, kind_NT: Tensor) -> Tensor:
    """Applies the linear layer of its kind to every row; one of no kind becomes zero."""
    out = x_NH.new_zeros(len(x_NH), linears[0].weight.shape[0])
    for linear, of_kind_N in zip(linears, kind_NT.unbind(1)):
        rows = of_kind_N.nonzero().flatten()
        out = out.index_copy(0, rows, transform(x_NH.index_select(0, rows), linear.weight, linear.bias))
    return out


def _by_head(x_SH: Tensor, weight_hDD: Tensor) -> Tensor:
    """Multiplies the part of every head by a matrix of its own."""
    heads = len(weight_hDD)
    x_hSD = x_SH.view(len(x_SH), heads, x_SH.shape[1] // heads).transpose(0, 1)
    return torch.bmm(x_hSD, weight_hDD).transpose(0, 1).flatten(1)
