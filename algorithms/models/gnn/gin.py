"""GIN: sums over neighbours, then an MLP."""

from typing import Any, Literal

from torch import Tensor, nn

from shoal.algorithms.models.layers.coupled import Coupled
from shoal.algorithms.models.layers.dropout import transform
from shoal.algorithms.models.layers.message_layers import GINConv
from shoal.storage.graph.sparse_matrix import Features, SparseMatrix

Norm = Literal["layer", "none"]


class GIN(Coupled):
    """Graph Isomorphism Network (Xu et al., 2019): h'_i = norm(MLP((1 + e) h_i + sum_{j in N(i)} h_j)).

    e is learnt and starts at 0; the MLP is linear, ReLU, linear. The norm is LayerNorm (`layer`), which keeps the sums
    of hubs in bounds, or `none`, which keeps how much a node sums up: readouts of whole graphs live from that. The
    paper's batch normalisation has running statistics, which are not exchanged.

    The paper says of nodes only that a classifier reads their last embedding. That of `head: conv` is such a layer with
    an e of its own and without a norm: linear, ReLU, then linear to the classes.
    """

    operator = "sum"
    traced = True
    first = ("convs.0.nn.0.weight",)
    in_batches = True

    def __init__(self, *shape: Any, norm: Norm = "layer", **options: Any) -> None:
        """Takes the arguments of `Coupled`, and one more.

        Args:
            norm: `layer` normalises what a layer sums up, `none` keeps its size.
        """
        self.norm = norm
        super().__init__(*shape, **options)

    def layer(self, number: int, width: int, out: int, last: bool) -> GINConv:
        return gin_layer(width, out, self.norm)

    def head_messages(self, hidden: int, classes: int) -> GINConv:
        return GINConv(nn.Sequential(nn.Linear(hidden, hidden), nn.ReLU()))

    def convolve(self, conv: Any, operator: SparseMatrix, x: Features) -> Tensor:
        return gin_output(conv, operator, x)

    def classify(self, operator: SparseMatrix, x: Tensor) -> Tensor:
        messages: Any = self.head.messages
        return self.head.linears[-1](gin_output(messages, operator, x))


def gin_layer(width: int, hidden: int, norm: Norm) -> GINConv:
    """Makes a layer from width `width` to width `hidden`."""
    scaled = [nn.LayerNorm(hidden)] if norm == "layer" else []
    return GINConv(nn.Sequential(nn.Linear(width, hidden), nn.ReLU(), nn.Linear(hidden, hidden), *scaled))


def gin_output(conv: Any, operator: SparseMatrix, x: Features) -> Tensor:
    """Computes the output of such a layer, `[n_l, H]`; the operator sums."""
    first, *others = conv.nn
    messages = transform(x, first.weight)
    received = messages[: len(operator)]
    out = operator @ messages + (received + conv.eps * received) + first.bias
    for module in others:
        out = module(out)
    return out
