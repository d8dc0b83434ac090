"""Graph transformer whose keys and values also depend on the edge."""

import math
from typing import Any, ClassVar

from torch import Tensor

from shoal.algorithms.models.edges.edge_messages import softmax_of_entries, sum_weighted
from shoal.algorithms.models.gnn.transformer import Transformer
from shoal.algorithms.models.inputs.neighbourhood import Operator
from shoal.algorithms.models.layers.dropout import transform
from shoal.algorithms.models.layers.message_layers import EdgeTransformerConv
from shoal.storage.graph.edges.edge_matrix import EdgeMatrix
from shoal.storage.graph.sparse_matrix import Features, SparseMatrix


class EdgeTransformer(Transformer):
    """`transformer` where edges have features: W_e e_ij is added to keys and values (Shi et al., IJCAI 2021, eqs. 3-4).

    A node without neighbours has its own term alone.
    """

    operator: ClassVar[Operator] = "edges"
    first = tuple(f"convs.0.of_nodes.lin_{part}.weight" for part in ("query", "key", "value", "skip"))

    def __init__(
        self, features: int, classes: int, hops: int, dropout: float, edge_features: int, **options: Any
    ) -> None:
        """Takes the arguments of `Transformer`, and the number of features of an edge."""
        self.edge_features = edge_features
        super().__init__(features, classes, hops, dropout, **options)

    def layer(self, number: int, width: int, out: int, last: bool) -> EdgeTransformerConv:  # type: ignore[override]
        return EdgeTransformerConv(width, out // self.heads, self.heads, self.edge_features)

    def convolve(self, conv: Any, operator: SparseMatrix, x: Features) -> Tensor:
        assert isinstance(operator, EdgeMatrix)
        nodes, heads = conv.of_nodes, conv.of_nodes.heads
        query, key, value, of_node = (
            transform(x, linear.weight, linear.bias)
            for linear in (nodes.lin_query, nodes.lin_key, nodes.lin_value, nodes.lin_skip)
        )
        receivers = len(operator)
        of_edges_EF = transform(operator.features(self.edge_features), conv.lin_edge.weight)
        key_EF, value_EF = (operator.senders @ part + of_edges_EF for part in (key, value))
        query_EF = operator.receivers @ query[:receivers]
        product_EHD = (query_EF * key_EF).view(len(key_EF), heads, key_EF.shape[1] // heads)
        weight_EH = softmax_of_entries(operator, product_EHD.sum(-1) / math.sqrt(product_EHD.shape[-1]))
        return of_node[:receivers] + sum_weighted(operator, weight_EH, value_EF)
