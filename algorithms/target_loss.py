"""Losses of what is predicted: classes, measured numbers, or several labels an item. Axes: n items, C outputs."""

import torch
import torch.nn.functional as F
from torch import Tensor


def target_loss(scores_nC: Tensor, y: Tensor) -> Tensor:
    """Computes the mean loss of items, a scalar, by what their labels are; those that are missing have no part.

    Args:
        scores_nC: Outputs of a model, `[n, C]`.
        y: Classes, int64 `[n]`: cross-entropy. Labels 0, 1 or -1 (missing), int8 `[n, C]`: binary cross-entropy of
            logits. Numbers, float32 `[n, C]`, NaN where one is missing: squared error.
    """
    if y.dtype == torch.int64:
        return F.cross_entropy(scores_nC, y)
    if y.dtype == torch.int8:
        given_nC = y >= 0
        loss_nC = F.binary_cross_entropy_with_logits(scores_nC, y.clamp_min(0).to(scores_nC.dtype), reduction="none")
    else:
        given_nC = ~y.isnan()
        loss_nC = (scores_nC - y.nan_to_num()).square()
    return (loss_nC * given_nC).sum() / given_nC.sum().clamp_min(1)
