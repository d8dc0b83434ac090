"""GraphSAGE: a node's own features and the mean of its neighbours'."""

from typing import Any

from torch import Tensor, nn

from shoal.algorithms.models.layers.coupled import Coupled
from shoal.algorithms.models.layers.dropout import transform
from shoal.algorithms.models.layers.message_layers import SAGEConv
from shoal.storage.graph.sparse_matrix import FeatureMatrix, Features, SparseMatrix


class GraphSAGE(Coupled):
    """GraphSAGE with the mean aggregator (Hamilton et al., 2017): h'_i = W_1 mean_{j in N(i)} h_j + W_2 h_i + b.

    A node without neighbours has the mean 0. A classifier of `head: conv` is such a layer: `Head.messages` has W_1, the
    linear layer W_2 and b.
    """

    operator = "mean"
    traced = True
    first = ("convs.0.lin_l.weight", "convs.0.lin_r.weight")
    in_batches = True
    papers_head = "conv"

    def layer(self, number: int, width: int, out: int, last: bool) -> SAGEConv:
        return SAGEConv(width, out)

    def head_messages(self, hidden: int, classes: int) -> nn.Linear:
        return nn.Linear(hidden, classes, bias=False)

    def convolve(self, conv: Any, operator: SparseMatrix, x: Features) -> Tensor:
        return _aggregate(operator, x, conv.lin_l.weight, conv.lin_r.weight, conv.lin_l.bias)

    def classify(self, operator: SparseMatrix, x: Tensor) -> Tensor:
        linear: Any = self.head.linears[-1]
        messages: Any = self.head.messages
        return _aggregate(operator, x, messages.weight, linear.weight, linear.bias)


def _aggregate(operator: SparseMatrix, x: Features, neighbours_HF: Tensor, self_HF: Tensor, bias_H: Tensor) -> Tensor:
    """Computes the output of a layer with the weights W_1 and W_2, `[n_l, H]`."""
    if isinstance(x, FeatureMatrix):
        # A sparse matrix without its last rows would have another transpose.
        of_node = transform(x, self_HF, bias_H)[: len(operator)]
    else:
        of_node = transform(x[: len(operator)], self_HF, bias_H)
    return operator @ transform(x, neighbours_HF) + of_node
