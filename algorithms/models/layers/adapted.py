"""A backbone whose embedding is brought to a common width."""

from torch import nn

from shoal.algorithms.models.inputs.neighbourhood import Inputs
from shoal.algorithms.models.layers.dropout import drop
from shoal.algorithms.models.layers.head import Head
from shoal.algorithms.models.layers.output import Output


class Adapted(nn.Module):
    """A linear adapter instead of the backbone's classifier, and a classifier on the adapter's output.

    Where clients train different models, all then have embeddings of one width and classifiers of one shape.
    """

    def __init__(self, backbone: nn.Module, embedding: int, classes: int, dropout: float) -> None:
        """Draws the classifier from torch's default generator.

        Args:
            backbone: Made for `embedding` classes: its last linear layer is the adapter.
            embedding: Width D of the embedding.
            classes: Number of classes.
            dropout: Probability that an entry of the embedding is dropped before the classifier, in training.
        """
        super().__init__()
        self.backbone = backbone
        self.inputs = backbone.inputs
        self.dropout = dropout
        self.head = Head(embedding, embedding, classes, 1, dropout)

    def reset_parameters(self) -> None:
        """Draws all parameters anew from torch's default generator."""
        self.backbone.reset_parameters()  # type: ignore[operator]
        self.head.reset_parameters()

    def forward(self, inputs: Inputs) -> Output:
        """Output for what the backbone reads; the embedding is the adapter's, `[N, D]`."""
        embedding_ND = self.backbone(inputs).logits_NC
        read_ND = drop(embedding_ND, self.dropout, self.training) if self.head.drops_embedding else embedding_ND
        return Output(self.head(read_ND).logits_NC, embedding_ND)
