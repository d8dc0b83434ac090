"""Graph transformer: a node weighs its neighbours by products of queries and keys."""

from typing import Any, ClassVar

import torch.nn.functional as F
from torch import Tensor

from shoal.algorithms.models.gnn.gat import require_heads
from shoal.algorithms.models.inputs.neighbourhood import Operator
from shoal.algorithms.models.layers.coupled import Coupled
from shoal.algorithms.models.layers.dropout import transform
from shoal.algorithms.models.layers.edge_attention import attend_by_products
from shoal.algorithms.models.layers.message_layers import TransformerConv
from shoal.storage.graph.sparse_matrix import Features, SparseMatrix


class Transformer(Coupled):
    """Transformer convolutions (Shi et al., IJCAI 2021, eqs. 3-5 without a gate), FedGPL's GNN: with its four maps

        h'_i = W_s h_i + b_s + sum_{j in N(i)} w_ij (W_v h_j + b_v),
        w_i = softmax_j(<W_q h_i + b_q, W_k h_j + b_k> / sqrt(D)),

    in `heads` heads of width D = hidden / heads, which are concatenated in every layer. A node without neighbours has
    the first two terms alone. Between layers stands LeakyReLU with slope 0.01.
    """

    operator: ClassVar[Operator] = "sum"
    traced = True
    weighs_entries = True
    first = tuple(f"convs.0.lin_{part}.weight" for part in ("query", "key", "value", "skip"))

    def __init__(
        self, *shape: Any, hidden: int = 64, layers: int = 2, heads: int = 1, fanouts: list[int] | None = None
    ) -> None:
        """Takes the arguments of `GAT`.

        Args:
            heads: Attention heads, which share the width of a layer.
        """
        self.heads = require_heads(heads, hidden)
        super().__init__(*shape, hidden=hidden, layers=layers, fanouts=fanouts)

    def layer(self, number: int, width: int, out: int, last: bool) -> TransformerConv:
        return TransformerConv(width, out // self.heads, self.heads)

    def activate(self, x: Tensor) -> Tensor:
        return F.leaky_relu(x)

    def convolve(self, conv: Any, operator: SparseMatrix, x: Features) -> Tensor:
        # All nodes are transformed, senders that receive nothing, too: sparse rows are then read once a weight.
        query, key, value, of_node = (
            transform(x, linear.weight, linear.bias)
            for linear in (conv.lin_query, conv.lin_key, conv.lin_value, conv.lin_skip)
        )
        receivers = len(operator)
        return of_node[:receivers] + attend_by_products(operator, query[:receivers], key, value, conv.heads)
