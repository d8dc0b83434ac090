"""SGC: a classifier on the last hop."""

from collections.abc import Sequence

from torch import nn

from shoal.algorithms.models.layers.head import Head
from shoal.algorithms.models.layers.output import Output
from shoal.storage.graph.sparse_matrix import Features


class SGC(nn.Module):
    """Simplifying Graph Convolutional Networks (Wu et al., 2019): logits = Ã^K X W + b.

    One layer is the paper's logistic regression, with the hop itself as embedding. Two or more make an MLP
    with ReLU, whose last hidden activation gives methods with prototypes an embedding of width `hidden`.
    """

    def __init__(
        self, features: int, classes: int, hops: int, dropout: float, *, layers: int = 1, hidden: int = 64
    ) -> None:
        """Draws the parameters from torch's default generator.

        Args:
            features: Width F of a hop.
            classes: Number of classes.
            hops: The one hop K that is read; 0 is the features.
            dropout: Probability that a hidden activation is dropped in training.
            layers: Number of linear layers.
            hidden: Width of each hidden layer.

        Raises:
            ShoalError: `model.layers`, `model.hidden` or `train.dropout` is out of range.
        """
        super().__init__()
        self.inputs = (hops,)
        self.head = Head(features, hidden, classes, layers, dropout)

    def reset_parameters(self) -> None:
        """Draws all parameters anew from torch's default generator."""
        self.head.reset_parameters()

    def first_weights(self) -> list[nn.Parameter]:
        """The weight, `[H, F]`, that features are multiplied by."""
        return self.head.first_weights()

    def forward(self, hops: Sequence[Features]) -> Output:
        """Output for rows of hop K, `[N, F]` of float32 or float16."""
        (x_NF,) = hops
        return self.head(x_NF)
