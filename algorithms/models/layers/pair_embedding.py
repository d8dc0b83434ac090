"""A backbone of nodes that answers for pairs of them: the embeddings of both ends become one.

Axes: N nodes, M pairs, H width of the embedding.
"""

from typing import Any

from torch import Tensor, nn

from shoal.algorithms.models.inputs.graph_batch import PairBatch
from shoal.algorithms.models.layers.dropout import drop
from shoal.algorithms.models.layers.embedded_nodes import embedded_nodes
from shoal.algorithms.models.layers.head import Head
from shoal.algorithms.models.layers.output import Output


class PairEmbedding(nn.Module):
    """The product of both ends, entry by entry, between a backbone and its last linear layer.

    z_uv = z_u * z_v, the Hadamard operator of node2vec (Grover and Leskovec, KDD 2016, table 1), is the same for both
    directions of an edge. Dropout before the classifier falls on the embeddings of pairs.
    """

    def __init__(self, backbone: nn.Module, dropout: float) -> None:
        """Wraps a backbone.

        Args:
            backbone: What embeds nodes.
            dropout: Probability that an entry of a pair's embedding is dropped in training.
        """
        super().__init__()
        self.backbone: Any = backbone
        self.inputs = backbone.inputs
        self.dropout = dropout
        self.head.pooled = True

    @property
    def head(self) -> Head:
        """The backbone's own, whose last layer reads embeddings of pairs."""
        return self.backbone.head

    def reset_parameters(self) -> None:
        """Draws all parameters anew from torch's default generator."""
        self.backbone.reset_parameters()

    def forward(self, batch: PairBatch) -> Output:
        """Output for every pair of a batch; the embedding is the product, `[M, H]`."""
        embedding_MH = self.join(embedded_nodes(self.backbone, batch), batch.ends)
        drops = self.head.drops_embedding
        read_MH = drop(embedding_MH, self.dropout, self.training) if drops else embedding_MH
        return Output(self.head.linears[-1](read_MH), embedding_MH)

    def join(self, z_NH: Tensor, ends_M2: Tensor) -> Tensor:
        """Embeddings of pairs, `[M, H]`, from those of nodes and the numbers of both ends, int64."""
        first_M, second_M = ends_M2.unbind(1)
        return z_NH.index_select(0, first_M) * z_NH.index_select(0, second_M)
