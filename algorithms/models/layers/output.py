"""Output of every backbone."""

from typing import NamedTuple

from torch import Tensor

from shoal.storage.graph.sparse_matrix import FeatureMatrix, Features


class Output(NamedTuple):
    """Scores and representation of N items: nodes, graphs, or pairs of nodes.

    Attributes:
        logits_NC: Unnormalised class scores `[N, C]`.
        embedding: What `embedding_NH` gives; sparse where a single linear layer reads sparse features.
    """

    logits_NC: Tensor
    embedding: Features

    @property
    def embedding_NH(self) -> Tensor:
        """Input of the last linear layer before its dropout `[N, H]`, for methods with prototypes.

        Of a classifier that passes messages (`head: conv`) also before the normalisation and ReLU in front of it.
        """
        return self.embedding.to_dense() if isinstance(self.embedding, FeatureMatrix) else self.embedding
