"""The highest of every group at once, no group being looked at alone.

Axes: N rows of G groups.
"""

import torch
from torch import Tensor

# A share of a count that is a whole number but for rounding, as 0.07 of 100, is that number.
ROUNDING = 1e-9
# Of the numbers of 32 bits.
LARGEST = 2**31 - 1


def ceil_of(share: float, counts: Tensor) -> Tensor:
    """The smallest whole numbers that are at least a share of counts, int64."""
    return (share * counts.double() - ROUNDING).ceil().long()


def floor_of(share: float, counts: Tensor) -> Tensor:
    """The largest whole numbers that are at most a share of counts, int64."""
    return (share * counts.double() + ROUNDING).floor().long()


def highest(score_N: Tensor, group_N: Tensor, wanted_G: Tensor) -> Tensor:
    """Rows of the highest scores of every group, int64, ascending; of equal scores the first rows are taken.

    Args:
        score_N: Scores, float32.
        group_N: Group of every row, int64.
        wanted_G: How many rows of a group are asked for; all, if it has fewer.
    """
    # One sort of whole numbers: the group above, below it the bits of the score, which are in the order of floats once
    # those of negative ones are turned around. Adding zero makes one zero of two.
    bits_N = (score_N + 0.0).view(torch.int32)
    bits_N = torch.where(bits_N < 0, bits_N ^ LARGEST, bits_N).long()
    order = ((group_N << 32) - bits_N).argsort(stable=True)
    group = group_N[order]
    sizes_G = torch.bincount(group, minlength=len(wanted_G))
    rank = torch.arange(len(order), device=order.device) - (sizes_G.cumsum(0) - sizes_G)[group]
    taken_N = torch.zeros(len(order), dtype=torch.bool, device=order.device)
    taken_N[order] = rank < wanted_G[group]
    return taken_N.nonzero()[:, 0]
