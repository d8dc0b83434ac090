"""The most similar rows of every row: exact in tiles up to a size, approximate above."""

import math

import numba
import numpy as np
import torch
from torch import Tensor

EXACT_UP_TO = 50_000
# Rows and columns of a tile of cosines: 8 MB, which stay in the cache between the product and the pass over it.
TILE = 1024, 2048
# Lists that a row is compared with above the limit.
PROBED = 16
# Rows of a block that is scaled, or searched for.
BLOCK = 65_536
# torch computes so many cosines at a time, 512 MB, and gathers the rows of so many pairs of a block.
COSINES, PAIRS = 2**27, 2**18
# Numbers of a tile that are looked through before any is compared.
CHUNK = 64
# Relative error of a float32 operation.
ROUNDING = 2.0**-24


def nearest(z_NH: Tensor, k: int, exact_up_to: int = EXACT_UP_TO) -> Tensor:
    """Finds the k rows of the largest cosine to every row, int32 `[N, k]`, the most similar first, on their device.

    Of equally similar ones the lowest number comes first. -1 stands where there are not enough. A row of zeros has no
    neighbours, and is no row's neighbour. The same rows give the same bits for any number of threads. Up to
    `exact_up_to` rows a processor compares all, N^2 H operations; above, only those of near lists of rows, 16 N^1.5 H
    operations, which miss some. A GPU compares all of any number. No gradient is made.
    """
    z_NH = z_NH.detach()
    length_N = torch.linalg.vector_norm(z_NH, dim=1, dtype=torch.float64)
    alive = torch.nonzero(length_N > 0)[:, 0]
    unit_NH = z_NH.new_empty(len(alive), z_NH.shape[1])
    for part, rows in zip(unit_NH.split(BLOCK), alive.split(BLOCK)):
        part.copy_(z_NH[rows].double() / length_N[rows, None])
    near_NK = torch.full((len(z_NH), k), -1, dtype=torch.int32, device=z_NH.device)
    if k and len(unit_NH) > 1:
        compare = _exact if len(unit_NH) <= exact_up_to else _approximate
        near = compare(unit_NH, k) if z_NH.device.type == "cpu" else nearest_by_torch(unit_NH, k)
        near_NK[alive] = torch.where(near >= 0, alive[near], -1).int()
    return near_NK


def _exact(unit_NH: Tensor, k: int) -> Tensor:
    """Compares all pairs, each once."""
    nodes, width = unit_NH.shape
    z, rows_NK, cosine_NK = unit_NH.numpy(), np.full((nodes, k), -1, dtype=np.int32), np.full((nodes, k), -np.inf)
    worst_N = np.full(nodes, -np.inf, dtype=np.float32)
    margin = np.float32(margin_of(width))
    rows, columns = TILE
    tile = torch.empty(rows * columns, device="cpu")
    for column in range(0, nodes, columns):
        right = unit_NH[column : column + columns].t()
        for row in range(0, min(column + columns, nodes), rows):
            left = unit_NH[row : row + rows]
            near = tile[: len(left) * right.shape[1]].view(len(left), -1)
            torch.mm(left, right, out=near)
            update(near.numpy(), row, column, z, margin, cosine_NK, rows_NK, worst_N)
    return torch.from_numpy(rows_NK).long()


def _approximate(unit_NH: Tensor, k: int) -> Tensor:
    """Compares a row with those of the `PROBED` lists, of sqrt(N), whose centres are nearest to it."""
    # The import takes 50 MB, which only a host with a client above the limit needs.
    import faiss

    nodes, width = unit_NH.shape
    z, rows_NK, cosine_NK = unit_NH.numpy(), np.full((nodes, k), -1, dtype=np.int32), np.full((nodes, k), -np.inf)
    # Centres are drawn from a fixed seed, and no sum is cut by a number of threads.
    faiss.omp_set_num_threads(1)
    index = faiss.IndexIVFFlat(faiss.IndexFlatIP(width), width, math.isqrt(nodes), faiss.METRIC_INNER_PRODUCT)
    index.cp.seed = 0
    index.train(z)
    index.add(z)
    index.nprobe = PROBED
    for start in range(0, nodes, BLOCK):
        _, candidate_RK = index.search(z[start : start + BLOCK], k + 1)
        offer_all(z, start, candidate_RK, cosine_NK, rows_NK)
    return torch.from_numpy(rows_NK).long()


def margin_of(width: int) -> float:
    """Bounds the error of a float32 product of two rows of length one, summed in any order."""
    return (width + 4) * ROUNDING


def nearest_by_torch(unit_NH: Tensor, k: int) -> Tensor:
    """Finds the k >= 1 nearest of rows of length one, the lowest number first among equals, int64; else -1."""
    nodes, device = len(unit_NH), unit_NH.device
    near_NK = torch.full((nodes, k), -1, dtype=torch.int64, device=device)
    step = max(COSINES // nodes, 1)
    for start in range(0, nodes, step):
        near = unit_NH[start : start + step] @ unit_NH.t()
        diagonal = torch.arange(len(near), device=device)
        near[diagonal, diagonal + start] = -torch.inf
        # Products are rounded, so that more than k pairs of a row may be candidates; the diagonal never is one.
        least = near.topk(min(k, nodes - 1)).values[:, -1:] - 2 * margin_of(unit_NH.shape[1])
        row, other = torch.nonzero(near >= least, as_tuple=True)
        blocks = zip((row + start).split(PAIRS), other.split(PAIRS))
        value = torch.cat([(unit_NH[i].double() * unit_NH[j].double()).sum(1) for i, j in blocks])
        # Candidates are sorted by row, then by cosine, then by number.
        order = value.argsort(descending=True, stable=True)
        order = order[row[order].argsort(stable=True)]
        row, other = row[order], other[order]
        place = torch.arange(len(row), device=device) - torch.searchsorted(row, row)
        best = place < k
        near_NK[row[best] + start, place[best]] = other[best]
    return near_NK


@numba.njit(cache=True, nogil=True, fastmath={"reassoc", "contract", "nsz"})
def cosine(z: np.ndarray, i: int, j: int) -> float:
    """Computes <z_i, z_j> in float64: the same in whatever block a pair is met, and symmetric to the bit."""
    total = 0.0
    for column in range(z.shape[1]):
        total += np.float64(z[i, column]) * np.float64(z[j, column])
    return total


@numba.njit(cache=True, nogil=True)
def offer(best: np.ndarray, who: np.ndarray, row: int, value: float, other: int) -> None:
    """Puts a row among the best of another if it belongs there: the larger value, or the lower number, is better."""
    place = best.shape[1]
    while place and (value > best[row, place - 1] or (value == best[row, place - 1] and other < who[row, place - 1])):
        place -= 1
        if place + 1 < best.shape[1]:
            best[row, place + 1], who[row, place + 1] = best[row, place], who[row, place]
        best[row, place], who[row, place] = value, other


@numba.njit(cache=True, nogil=True)
def update(
    near: np.ndarray,
    first_row: int,
    first_column: int,
    z: np.ndarray,
    margin: np.float32,
    best: np.ndarray,
    who: np.ndarray,
    least: np.ndarray,
) -> None:
    """Takes a tile of cosines into account, for the rows and for the columns it stands for; i < j are read only.

    The tile's own numbers depend on how a library multiplies: they only tell which pairs need `cosine`.

    Args:
        near: Cosines to within `margin`, float32 `[R, C]`, of rows from `first_row` and columns from `first_column` on.
        z: Rows of length one, float32 `[N, H]`.
        best: The k largest cosines of every row, float64 `[N, k]`, descending; changed.
        who: The rows that they belong to, int32 `[N, k]`; changed.
        least: The least number of a tile that matters, float32 `[N]`; changed.
    """
    rows, columns = near.shape
    last = best.shape[1] - 1
    for r in range(rows):
        i = first_row + r
        start = max(0, i + 1 - first_column)
        for low in range(start, columns, CHUNK):
            high = min(low + CHUNK, columns)
            least_of_row = least[i]
            candidates = 0
            for c in range(low, high):
                candidates += (near[r, c] >= least_of_row) | (near[r, c] >= least[first_column + c])
            if not candidates:
                continue
            for c in range(low, high):
                j = first_column + c
                if near[r, c] >= least[i] or near[r, c] >= least[j]:
                    value = cosine(z, i, j)
                    offer(best, who, i, value, j)
                    offer(best, who, j, value, i)
                    least[i] = np.float32(best[i, last]) - margin
                    least[j] = np.float32(best[j, last]) - margin


@numba.njit(cache=True, nogil=True)
def offer_all(z: np.ndarray, first: int, found: np.ndarray, best: np.ndarray, who: np.ndarray) -> None:
    """Updates by what a library found for rows from `first` on, int64 `[n, K]`; -1 and a row itself are none."""
    for r in range(len(found)):
        for j in found[r]:
            if j >= 0 and j != first + r:
                offer(best, who, first + r, cosine(z, first + r, j), j)
