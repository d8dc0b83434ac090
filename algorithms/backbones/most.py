"""The highest of every group at once, no group being looked at alone.

Axes: N rows of G groups.
"""

import torch
from torch import Tensor

# A share of a count that is a whole number but for rounding, as 0.07 of 100, is that number.
ROUNDING = 1e-9


def ceil_of(share: float, counts: Tensor) -> Tensor:
    """The smallest whole numbers that are at least a share of counts, int64."""
    return (share * counts.double() - ROUNDING).ceil().long()


def floor_of(share: float, counts: Tensor) -> Tensor:
    """The largest whole numbers that are at most a share of counts, int64."""
    return (share * counts.double() + ROUNDING).floor().long()


def highest(score_N: Tensor, group_N: Tensor, wanted_G: Tensor) -> Tensor:
    """Rows of the highest scores of every group, int64, ascending; of equal scores the first rows are taken.

    Args:
        score_N: Scores.
        group_N: Group of every row, int64.
        wanted_G: How many rows of a group are asked for; all, if it has fewer.
    """
    by_score = score_N.argsort(descending=True, stable=True)
    order = by_score[group_N[by_score].argsort(stable=True)]
    group = group_N[order]
    sizes = torch.bincount(group, minlength=len(wanted_G))
    rank = torch.arange(len(order), device=order.device) - (sizes.cumsum(0) - sizes)[group]
    return order[rank < wanted_G[group]].sort().values
