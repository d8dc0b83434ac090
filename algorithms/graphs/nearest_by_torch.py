"""The most similar rows of every row by operations of torch alone, for a GPU: all pairs, a block of rows at a time."""

import torch
from torch import Tensor

# Cosines at a time: 512 MB. Pairs whose rows are gathered at once.
COSINES, PAIRS = 2**27, 2**18
# Relative error of a float32 operation.
ROUNDING = 2.0**-24


def margin_of(width: int) -> float:
    """How far a float32 product of two rows of length one, summed in any order, may be from the true one."""
    return (width + 4) * ROUNDING


def nearest_by_torch(unit_NH: Tensor, k: int) -> Tensor:
    """The k other rows of the largest cosine, the lowest number first among equals, int64 `[N, k]`; -1 where none is.

    Args:
        unit_NH: Rows of length one, float32, at least two.
        k: How many, at least one.
    """
    nodes, device = len(unit_NH), unit_NH.device
    found = torch.full((nodes, k), -1, dtype=torch.int64, device=device)
    step = max(COSINES // nodes, 1)
    for start in range(0, nodes, step):
        near = unit_NH[start : start + step] @ unit_NH.t()
        own = torch.arange(len(near), device=device)
        near[own, own + start] = -torch.inf
        # Whoever may be among the k, given that products are rounded; the diagonal never is.
        least = near.topk(min(k, nodes - 1)).values[:, -1:] - 2 * margin_of(unit_NH.shape[1])
        row, other = torch.nonzero(near >= least, as_tuple=True)
        value = torch.cat([_cosines(unit_NH, i + start, j) for i, j in zip(row.split(PAIRS), other.split(PAIRS))])
        # Sorted by row, then by cosine, then by number.
        order = value.argsort(descending=True, stable=True)
        order = order[row[order].argsort(stable=True)]
        row, other = row[order], other[order]
        place = torch.arange(len(row), device=device) - torch.searchsorted(row, row)
        best = place < k
        found[row[best] + start, place[best]] = other[best]
    return found


def _cosines(unit_NH: Tensor, i: Tensor, j: Tensor) -> Tensor:
    return (unit_NH[i].double() * unit_NH[j].double()).sum(1)
