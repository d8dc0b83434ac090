"""Ranges of whole numbers behind one another: the places of rows, entries, or nodes that lie beside each other."""

import torch
from torch import Tensor


def ranges(starts: Tensor, counts: Tensor) -> Tensor:
    """Every range's start, start + 1, …, as many as it counts, int64 `[sum of counts]`.

    Args:
        starts: First number of every range, int64 `[n]`.
        counts: How many numbers it has, int64 `[n]`.
    """
    places = torch.arange(int(counts.sum()), device=starts.device)
    places += (starts - counts.cumsum(0) + counts).repeat_interleave(counts)
    return places
