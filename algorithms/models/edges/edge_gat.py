"""GAT whose attention also depends on the edge."""

from typing import Any, ClassVar

import torch.nn.functional as F
from torch import Tensor, nn

from shoal.algorithms.models.edges.edge_messages import softmax_of_entries, sum_weighted
from shoal.algorithms.models.gnn.gat import GAT, AttentionVectors
from shoal.algorithms.models.inputs.neighbourhood import Operator
from shoal.algorithms.models.layers.dropout import transform
from shoal.algorithms.models.layers.message_layers import EdgeAttention, EdgeGATConv
from shoal.storage.graph.edges.edge_matrix import EdgeMatrix
from shoal.storage.graph.sparse_matrix import Features, SparseMatrix


class EdgeGAT(GAT):
    """`gat` where edges have features, which add <a_e, W_e e_ij> to a head's score of an edge (as GATConv of PyG does).

    A node's loop to itself has the mean of the features of its edges.
    """

    operator: ClassVar[Operator] = "edges"
    first = ("convs.0.gat.lin.weight",)

    def __init__(
        self, features: int, classes: int, hops: int, dropout: float, edge_features: int, **options: Any
    ) -> None:
        """Takes the arguments of `GAT`, and the number of features of an edge."""
        self.edge_features = edge_features
        super().__init__(features, classes, hops, dropout, **options)

    def layer(self, number: int, width: int, out: int, last: bool) -> EdgeGATConv:  # type: ignore[override]
        heads = 1 if last else self.heads
        return EdgeGATConv(width, out // heads, heads, self.edge_features)

    def head_messages(self, hidden: int, classes: int) -> nn.Module:
        return _HeadVectors(classes, self.edge_features)

    def convolve(self, conv: Any, operator: SparseMatrix, x: Features) -> Tensor:
        message = transform(x, conv.gat.lin.weight)
        return self._attend(operator, message, conv.gat, conv.edges) + conv.gat.bias

    def classify(self, operator: SparseMatrix, x: Tensor) -> Tensor:
        linear: Any = self.head.linears[-1]
        vectors: Any = self.head.messages
        return self._attend(operator, transform(x, linear.weight), vectors.of_nodes, vectors.edges) + linear.bias

    def _attend(self, operator: SparseMatrix, message_MF: Tensor, vectors: Any, of_edges: Any) -> Tensor:
        """Sums messages, `[n_l, H D]`, weighted by the attention vectors of all heads, those of edges included."""
        assert isinstance(operator, EdgeMatrix)
        matrix, heads = operator.with_loops, of_edges.att_edge.shape[1]
        message_MHD = message_MF.view(len(message_MF), heads, message_MF.shape[1] // heads)
        receiver_NH = (message_MHD[: len(matrix)] * vectors.att_dst).sum(-1)
        sender_MH = (message_MHD * vectors.att_src).sum(-1)
        # <a_e, W_e e> of a head is the product of e and one row: no edge has a message of its own.
        row_HB = (of_edges.lin_edge.weight.view(heads, -1, self.edge_features) * of_edges.att_edge[0][..., None]).sum(1)
        score_EH = matrix.receivers @ receiver_NH + matrix.senders @ sender_MH
        score_EH = score_EH + F.linear(matrix.features(self.edge_features), row_HB)
        weight_EH = softmax_of_entries(matrix, F.leaky_relu(score_EH, vectors.negative_slope))
        return sum_weighted(matrix, weight_EH, matrix.senders @ message_MF)


class _HeadVectors(nn.Module):
    """The attention vectors of a classifier of one head, of nodes and of edges."""

    def __init__(self, width: int, edge_features: int) -> None:
        super().__init__()
        self.of_nodes = AttentionVectors(width)
        self.edges = EdgeAttention(width, 1, edge_features)

    def reset_parameters(self) -> None:
        self.of_nodes.reset_parameters()
        self.edges.reset_parameters()
