"""MLP: the baseline that sees no edge."""

from collections.abc import Sequence

from torch import nn

from shoal.algorithms.models.layers.head import Head
from shoal.algorithms.models.layers.output import Output
from shoal.storage.graph.sparse_matrix import Features


class MLP(nn.Module):
    """Linear layers with ReLU and dropout on the raw features (hop 0)."""

    def __init__(
        self, features: int, classes: int, hops: int, dropout: float, *, layers: int = 2, hidden: int = 64
    ) -> None:
        """Draws the parameters from torch's default generator.

        Args:
            features: Width F of the features.
            classes: Number of classes.
            hops: Not used; every backbone is made with it.
            dropout: Probability that a hidden activation is dropped in training.
            layers: Number of linear layers.
            hidden: Width of each hidden layer.

        Raises:
            ShoalError: `model.layers`, `model.hidden` or `train.dropout` is out of range.
        """
        super().__init__()
        self.inputs = (0,)
        self.head = Head(features, hidden, classes, layers, dropout)

    def reset_parameters(self) -> None:
        """Draws all parameters anew from torch's default generator."""
        self.head.reset_parameters()

    def first_weights(self) -> list[nn.Parameter]:
        """The weight, `[H, F]`, that features are multiplied by."""
        return self.head.first_weights()

    def forward(self, hops: Sequence[Features]) -> Output:
        """Output for rows of the features, `[N, F]` of float32 or float16."""
        (x_NF,) = hops
        return self.head(x_NF)
