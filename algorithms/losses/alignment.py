"""Losses that draw embeddings towards target prototypes, by node or by prototype."""

import torch
from torch import Tensor

from shoal.algorithms.losses.prototypes import EPS


def row_alignment(z_NH: Tensor, y_N: Tensor, target_CH: Tensor, present_C: Tensor) -> Tensor:
    """Mean over rows of |z_v - t_{y_v}|^2 over the rows whose class has a target (FedProto); zero without any.

    Args:
        z_NH: Embeddings.
        y_N: Labels, int64; rows of negative ones have no part.
        target_CH: Target prototypes.
        present_C: Classes that have one.
    """
    class_N = y_N.clamp_min(0)
    weight_N = (present_C[class_N] & (y_N >= 0)).to(z_NH.dtype)
    distance_N = (z_NH - target_CH[class_N]).square().sum(1)
    return (weight_N * distance_N).sum() / weight_N.sum().clamp_min(1)


def mean_square(z_NH: Tensor, y_N: Tensor, target_CH: Tensor, present_C: Tensor, weight: float = 1.0) -> Tensor:
    """`weight` / H * `row_alignment`: the mean squared error, so that a weight means the same at every width H."""
    return weight / z_NH.shape[1] * row_alignment(z_NH, y_N, target_CH, present_C)


class NodeAlignment:
    """Sum over classes of the mean over their rows of |z_v - t_c|^2, of the same rows in every step.

    Every class weighs the same, however many rows it has; one without rows or target is left out.
    """

    def __init__(self, y_N: Tensor, target_CH: Tensor, present_C: Tensor) -> None:
        """Of rows with these labels; arguments as for `row_alignment`."""
        counts_C = torch.bincount(y_N, minlength=len(target_CH))
        self._weight_N = (present_C / counts_C.clamp_min(1))[y_N]
        self._target_NH = target_CH[y_N]

    def __call__(self, z_NH: Tensor) -> Tensor:
        """The sum, a scalar, for embeddings of the rows."""
        return (self._weight_N.to(z_NH.dtype) * (z_NH - self._target_NH).square().sum(1)).sum()


def prototype_alignment(
    proto: Tensor, target: Tensor, present: Tensor | tuple[Tensor, ...], squared: bool = False
) -> Tensor:
    """Sum over present prototypes of |P - t|_2, not squared (FedPG, eq. 6), or of its square.

    Args:
        proto: Own prototypes, differentiable, `[…, H]`.
        target: Their targets.
        present: Which have both, a mask `[…]`, or the places of its ones: a mask is looked through in every step.
        squared: Sum the squares.
    """
    square = (proto - target)[present].square().sum(-1)
    # The root has no gradient at zero.
    return square.sum() if squared else (square + EPS).sqrt().sum()
