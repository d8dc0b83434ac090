"""Models that read the hops with fixed weights, or one of them alone: MLP, SGC, S2GC and GBP.

Axes: N nodes, K hops beyond the features, F features, H hidden width, C classes.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from shoal.algorithms.models.inputs.masked_features import products
from shoal.algorithms.models.layers.head import Head, Output
from shoal.storage.graph.sparse_matrix import FeatureMatrix, Features
from shoal.storage.options.types import Part, Share


class FixedHops(nn.Module):
    """Linear layers with ReLU and dropout between them on sum_k w_k X^(k); one layer is a logistic regression on it.

    The constructors of all models take the width F of a hop, the number of classes, the hops K beyond the features, and
    the probability that a hidden activation is dropped in training. `layers` counts linear layers and `hidden` is their
    width. They draw the parameters from torch's default generator, and raise `ShoalError` where `model.layers`,
    `model.hidden`, `train.dropout` or an option of their own is out of range.

    Attributes:
        inputs: Hops that are read.
        weights: w_k of these hops.
        has_gradient_formulas: `training/analytic` has those of this class; derived classes do not inherit that.
        traced: As of `Coupled`.
        one_weight: All hops are multiplied by one weight before anything else is done with them.
    """

    one_weight = True

    def __init__(
        self, features: int, classes: int, hops: int, dropout: float, *, layers: int = 1, hidden: int = 64
    ) -> None:
        """See above.

        Args:
            features, classes, hops, dropout: See above.
            layers: Number of linear layers.
            hidden: Width of the layers but the last.
        """
        super().__init__()
        weights = self.hop_weights(hops)
        self.inputs = tuple(weights)
        self.weights = tuple(weights.values())
        self.head = Head(features, hidden, classes, layers, dropout)

    def hop_weights(self, hops: int) -> dict[int, float]:
        """Returns w_k by k, for the hops that are read."""
        raise NotImplementedError

    def reset_parameters(self) -> None:
        self.head.reset_parameters()

    def first_weights(self) -> list[nn.Parameter]:
        return self.head.first_weights()

    def forward(self, hops: Sequence[Features]) -> Output:
        """Computes the output for rows of the hops, each `[N, F]` of float32 or float16, dense or sparse."""
        return self.head(hops[0] if self.weights == (1.0,) else weighted_sum(hops, self.weights, self.head.dtype))


class MLP(FixedHops):
    """MLP on the features, which sees no edge."""

    has_gradient_formulas = True
    traced = True

    def __init__(self, *shape: Any, layers: int = 2, **options: Any) -> None:
        super().__init__(*shape, layers=layers, **options)

    def hop_weights(self, hops: int) -> dict[int, float]:
        return {0: 1.0}


class SGC(FixedHops):
    """Simplifying Graph Convolutional Networks (Wu et al., 2019): logits = Ã^K X W + b; more layers make an MLP."""

    has_gradient_formulas = True
    traced = True

    def hop_weights(self, hops: int) -> dict[int, float]:
        return {hops: 1.0}


class S2GC(FixedHops):
    """Simple Spectral Graph Convolution (Zhu and Koniusz, ICLR 2021): with P = D^-1/2 (A + I) D^-1/2,

    logits = (1 / K) sum_{k=1..K} ((1 - alpha) P^k X + alpha X) W + b.

    P is what `propagation.r: 0.5` gives. One layer is the paper's; more make an MLP of the same sum. Without hops the
    features alone are read. `alpha` in [0, 1] is the share of the features in every term.
    """

    traced = True

    def __init__(self, *shape: Any, alpha: Share = 0.05, **options: Any) -> None:
        """Takes the arguments of `FixedHops`, and one more.

        Args:
            alpha: Share of the features in every term.
        """
        self.alpha = alpha
        super().__init__(*shape, **options)

    def hop_weights(self, hops: int) -> dict[int, float]:
        return dict(enumerate([self.alpha, *[(1 - self.alpha) / hops] * hops] if hops else [1.0]))


class GBP(FixedHops):
    """Graph neural network via Bidirectional Propagation (Chen et al., NeurIPS 2020): an MLP of

    sum_{l=0..K} w_l (D^(r-1) (A + I) D^(-r))^l X, w_l = beta (1 - beta)^l.

    These are the weights of personalised PageRank with restarts of probability beta (alpha in the paper), cut off after
    K steps: they add up to 1 - (1 - beta)^(K+1), and are not scaled up to 1, as in the paper. r is `propagation.r`. The
    paper approximates the sum by walks and pushes; here it is exact. `beta` in (0, 1] is the probability of a restart;
    1 reads the features alone.
    """

    traced = True

    def __init__(self, *shape: Any, layers: int = 2, beta: Part = 0.1, **options: Any) -> None:
        """Takes the arguments of `FixedHops`, and one more.

        Args:
            beta: Probability of a restart; 1 reads the features alone.
        """
        self.beta = beta
        super().__init__(*shape, layers=layers, **options)

    def hop_weights(self, hops: int) -> dict[int, float]:
        return {hop: self.beta * (1 - self.beta) ** hop for hop in range(hops + 1)}


class SummedFeatures(FeatureMatrix):
    """sum_k w_k X_k, `[N, F]`, some sparse, without arrays of its own: times a weight W, it is sum_k w_k (X_k W)."""

    def __init__(self, hops: Sequence[Features], weights: Sequence[float]) -> None:
        """Wraps the hops, each `[N, F]`, float32."""
        self._hops, self._weights = hops, weights

    @property
    def shape(self) -> torch.Size:
        return self._hops[0].shape

    def __matmul__(self, weight_FH: Tensor) -> Tensor:
        return _sum(products(self._hops, weight_FH), self._weights)

    def to_dense(self) -> Tensor:
        dense = [hop.to_dense() for hop in self._hops]
        return _sum(dense, self._weights)


def weighted_sum(hops: Sequence[Features], weights: Sequence[float], dtype: torch.dtype) -> Features:
    """Sums hops by weights, sum_k w_k X_k, `[N, F]`, float32 or float16; a tensor of `dtype` where all are dense."""
    if any(isinstance(hop, FeatureMatrix) for hop in hops):
        return SummedFeatures([hop.float() for hop in hops], weights)
    return _sum([hop.to(dtype) for hop in hops if isinstance(hop, Tensor)], weights)


def _sum(terms: Sequence[Tensor], weights: Sequence[float]) -> Tensor:
    first, *others = zip(weights, terms, strict=True)
    total = first[0] * first[1]
    for weight, term in others:
        total = torch.add(total, term, alpha=weight)
    return total
