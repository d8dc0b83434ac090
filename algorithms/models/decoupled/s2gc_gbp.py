"""What S2GC and GBP share: a classifier on one sum of all hops, whose weights are not learnt."""

from collections.abc import Sequence

from torch import nn

from shoal.algorithms.models.layers.head import Head
from shoal.algorithms.models.layers.output import Output
from shoal.algorithms.models.layers.summed_features import summed
from shoal.storage.errors import ShoalError
from shoal.storage.graph.sparse_matrix import Features


class HopSum(nn.Module):
    """Linear layers with ReLU and dropout between them on sum_k w_k X^(k).

    The embedding of one layer is the sum itself.

    Attributes:
        weights: w_k, hop 0 first.
    """

    def __init__(
        self, weights: Sequence[float], features: int, classes: int, dropout: float, layers: int, hidden: int
    ) -> None:
        """Draws the parameters from torch's default generator.

        Args:
            weights: w_k, one a hop, hop 0 first.
            features: Width F of a hop.
            classes: Number of classes.
            dropout: Probability that a hidden activation is dropped in training.
            layers: Number of linear layers.
            hidden: Width of each hidden layer.

        Raises:
            ShoalError: `model.layers`, `model.hidden` or `train.dropout` is out of range.
        """
        super().__init__()
        self.weights = tuple(weights)
        self.inputs = tuple(range(len(self.weights)))
        self.head = Head(features, hidden, classes, layers, dropout)

    def reset_parameters(self) -> None:
        """Draws all parameters anew from torch's default generator."""
        self.head.reset_parameters()

    def first_weights(self) -> list[nn.Parameter]:
        """The weight, `[H, F]`, that features are multiplied by."""
        return self.head.first_weights()

    def forward(self, hops: Sequence[Features]) -> Output:
        """Output for rows of all hops, hop 0 first, each `[N, F]` of float32 or float16, dense or sparse."""
        return self.head(summed(hops, self.weights, self.head.dtype))


class S2GC(HopSum):
    """Simple Spectral Graph Convolution (Zhu and Koniusz, ICLR 2021): with P = D^-1/2 (A + I) D^-1/2,

    logits = (1 / K) sum_{k=1..K} ((1 - alpha) P^k X + alpha X) W + b.

    P is what `propagation.r: 0.5` gives. One layer is the paper's; more make an MLP of the same sum. Without hops the
    features alone are read.
    """

    def __init__(
        self,
        features: int,
        classes: int,
        hops: int,
        dropout: float,
        *,
        layers: int = 1,
        hidden: int = 64,
        alpha: float = 0.05,
    ) -> None:
        """As for `HopSum`.

        Args:
            features: See there.
            classes: See there.
            hops: Hops K beyond the features.
            dropout: See there.
            layers: See there.
            hidden: See there.
            alpha: Share of the features in every term, in [0, 1].

        Raises:
            ShoalError: As there, or `model.alpha` is out of range.
        """
        if not 0 <= alpha <= 1:
            raise ShoalError(f"model.alpha: must lie in [0, 1], found {alpha}")
        weights = [alpha, *[(1 - alpha) / hops] * hops] if hops else [1.0]
        super().__init__(weights, features, classes, dropout, layers, hidden)


class GBP(HopSum):
    """Graph neural network via Bidirectional Propagation (Chen et al., NeurIPS 2020): an MLP of

    sum_{l=0..K} w_l (D^(r-1) (A + I) D^(-r))^l X, w_l = beta (1 - beta)^l.

    These are the weights of personalised PageRank with restarts of probability beta (alpha in the paper), cut off after
    K steps: they add up to 1 - (1 - beta)^(K+1), and are not scaled up to 1, as in the paper. r is `propagation.r`. The
    paper approximates the sum by walks and pushes; here it is exact.
    """

    def __init__(
        self,
        features: int,
        classes: int,
        hops: int,
        dropout: float,
        *,
        layers: int = 2,
        hidden: int = 64,
        beta: float = 0.1,
    ) -> None:
        """As for `HopSum`.

        Args:
            features: See there.
            classes: See there.
            hops: Hops K beyond the features.
            dropout: See there.
            layers: See there.
            hidden: See there.
            beta: Probability of a restart, in (0, 1]; 1 reads the features alone.

        Raises:
            ShoalError: As there, or `model.beta` is out of range.
        """
        if not 0 < beta <= 1:
            raise ShoalError(f"model.beta: must lie in (0, 1], found {beta}")
        weights = [beta * (1 - beta) ** hop for hop in range(hops + 1)]
        super().__init__(weights, features, classes, dropout, layers, hidden)
