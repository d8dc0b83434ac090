"""GAT: sums over neighbours and the node itself, weighted by attention."""

from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from shoal.algorithms.models.inputs.neighbourhood import Operator
from shoal.algorithms.models.layers.coupled import Coupled
from shoal.algorithms.models.layers.dropout import transform
from shoal.algorithms.models.layers.edge_attention import attend_to_messages
from shoal.algorithms.models.layers.message_layers import GATConv, glorot
from shoal.storage.errors import ShoalError
from shoal.storage.graph.sparse_matrix import Features, SparseMatrix


def require_heads(heads: int, hidden: int) -> int:
    """Returns the number of heads; raises a ShoalError if it does not divide the width of a layer."""
    if heads < 1 or hidden % heads:
        raise ShoalError("model.heads", f"must divide model.hidden, found {heads} and {hidden}")
    return heads


class GAT(Coupled):
    """Graph Attention Network (Velickovic et al., 2018) with self loops and LeakyReLU slope 0.2.

    All layers but the last concatenate `heads` heads of width hidden / heads; the last one, the classifier of
    `head: conv` included, has a single head. A step keeps a weight of every head for every edge; on a GPU also its
    message, E x hidden floats. The paper has ELU where ReLU stands here.
    """

    operator: ClassVar[Operator] = "attention"
    traced = True
    weighs_entries = True
    papers_head = "conv"

    def __init__(self, *shape: Any, hidden: int = 64, heads: int = 8, **options: Any) -> None:
        """Takes the arguments of `Coupled`; a ShoalError also says that `model.hidden` is no multiple of `model.heads`.

        Args:
            heads: Attention heads, which share the width of a layer.
        """
        self.heads = require_heads(heads, hidden)
        super().__init__(*shape, hidden=hidden, **options)

    def layer(self, number: int, width: int, out: int, last: bool) -> GATConv:
        heads = 1 if last else self.heads
        return GATConv(width, out // heads, heads)

    def head_messages(self, hidden: int, classes: int) -> nn.Module:
        return AttentionVectors(classes)

    def convolve(self, conv: Any, operator: SparseMatrix, x: Features) -> Tensor:
        return _attend(operator, transform(x, conv.lin.weight), conv) + conv.bias

    def classify(self, operator: SparseMatrix, x: Tensor) -> Tensor:
        linear: Any = self.head.linears[-1]
        return _attend(operator, transform(x, linear.weight), self.head.messages) + linear.bias


class AttentionVectors(nn.Module):
    """The attention vectors of a layer of one head, named, shaped and drawn as PyG's."""

    negative_slope = 0.2

    def __init__(self, width: int) -> None:
        super().__init__()
        self.att_src, self.att_dst = (nn.Parameter(torch.empty(1, 1, width)) for _ in range(2))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        glorot(self.att_src)
        glorot(self.att_dst)


def _attend(operator: SparseMatrix, message_MH: Tensor, vectors: Any) -> Tensor:
    """Sums messages, `[n_l, H]`, weighted by the attention vectors of all heads, `[1, heads, D]`."""
    return attend_to_messages(operator, message_MH, vectors.att_src, vectors.att_dst, vectors.negative_slope)
