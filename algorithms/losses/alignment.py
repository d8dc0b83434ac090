"""How embeddings are drawn towards target prototypes: node by node, or prototype by prototype."""

import torch
from torch import Tensor

from algorithms.losses.prototypes import EPS


def row_alignment(z_NH: Tensor, y_N: Tensor, target_CH: Tensor, present_C: Tensor) -> Tensor:
    """Mean over rows of |z_v - t_{y_v}|^2 over the rows whose class has a target (FedProto); zero without any.

    Args:
        z_NH: Embeddings.
        y_N: Labels, int64.
        target_CH: Target prototypes.
        present_C: Classes that have one.
    """
    weight_N = present_C[y_N].to(z_NH.dtype)
    distance_N = (z_NH - target_CH[y_N]).square().sum(1)
    return (weight_N * distance_N).sum() / weight_N.sum().clamp_min(1)


def mean_square(z_NH: Tensor, y_N: Tensor, target_CH: Tensor, present_C: Tensor, weight: float = 1.0) -> Tensor:
    """`weight` / H * `row_alignment`: the mean squared error, so that a weight means the same at every width H."""
    return weight / z_NH.shape[1] * row_alignment(z_NH, y_N, target_CH, present_C)


def node_alignment(z_NH: Tensor, y_N: Tensor, target_CH: Tensor, present_C: Tensor) -> Tensor:
    """Sum over classes of the mean over their rows of |z_v - t_c|^2.

    Every class weighs the same, however many rows it has; one without rows or target is left out. Arguments as for
    `row_alignment`.
    """
    counts_C = torch.bincount(y_N, minlength=len(target_CH))
    weight_N = (present_C / counts_C.clamp_min(1))[y_N].to(z_NH.dtype)
    return (weight_N * (z_NH - target_CH[y_N]).square().sum(1)).sum()


def prototype_alignment(proto: Tensor, target: Tensor, present: Tensor, squared: bool = False) -> Tensor:
    """Sum over present prototypes of |P - t|_2, not squared (FedPG, eq. 6), or of its square.

    Args:
        proto: Own prototypes, differentiable, `[…, H]`.
        target: Their targets.
        present: Which have both, `[…]`.
        squared: Sum the squares.
    """
    square = (proto - target)[present].square().sum(-1)
    # The root has no gradient at zero.
    return square.sum() if squared else (square + EPS).sqrt().sum()
