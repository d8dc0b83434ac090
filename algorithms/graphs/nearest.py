"""The most similar rows of every row: exact in tiles up to a size, approximate above."""

import math

import numpy as np
import torch
from torch import Tensor

from shoal.algorithms.graphs import nearest_kernels
from shoal.algorithms.graphs.nearest_by_torch import margin_of, nearest_by_torch

EXACT_UP_TO = 50_000
# Rows and columns of a tile of cosines: 8 MB, which stay in the cache between the product and the pass over it.
TILE = 1024, 2048
# Lists that a row is compared with above the limit.
PROBED = 16
# Rows that are scaled, or searched for, at once.
BLOCK = 65_536


def nearest(z_NH: Tensor, k: int, exact_up_to: int = EXACT_UP_TO) -> Tensor:
    """The k other rows of the largest cosine for every row, int32 `[N, k]`, the most similar first, where the rows are.

    Of equally similar ones the lowest number comes first. -1 stands where there are not enough. A row of zeros has no
    neighbours, and is nobody's. The same rows give the same bits for any number of threads.

    Args:
        z_NH: Rows, float32; no gradient is made.
        k: How many.
        exact_up_to: Up to so many rows a processor compares all, N^2 H operations; above, only those of near lists of
            rows, 16 N^1.5 H operations, which miss some. A GPU compares all of any number.
    """
    z_NH = z_NH.detach()
    length_N = torch.linalg.vector_norm(z_NH, dim=1, dtype=torch.float64)
    alive = torch.nonzero(length_N > 0)[:, 0]
    unit_NH = z_NH.new_empty(len(alive), z_NH.shape[1])
    for part, rows in zip(unit_NH.split(BLOCK), alive.split(BLOCK)):
        part.copy_(z_NH[rows].double() / length_N[rows, None])
    found = torch.full((len(z_NH), k), -1, dtype=torch.int32, device=z_NH.device)
    if k and len(unit_NH) > 1:
        near = nearest_by_torch(unit_NH, k) if z_NH.device.type != "cpu" else _by_numba(unit_NH, k, exact_up_to)
        found[alive] = torch.where(near >= 0, alive[near], -1).int()
    return found


def _by_numba(unit_NH: Tensor, k: int, exact_up_to: int) -> Tensor:
    who = np.full((len(unit_NH), k), -1, dtype=np.int32)
    find = _exact if len(unit_NH) <= exact_up_to else _approximate
    find(unit_NH, who)
    return torch.from_numpy(who).long()


def _exact(unit_NH: Tensor, who: np.ndarray) -> None:
    """Compares all pairs, each once."""
    nodes, width = unit_NH.shape
    z = unit_NH.numpy()
    best = np.full(who.shape, -np.inf)
    least = np.full(nodes, -np.inf, dtype=np.float32)
    margin = np.float32(margin_of(width))
    rows, columns = TILE
    room = torch.empty(rows * columns, device="cpu")
    for column in range(0, nodes, columns):
        right = unit_NH[column : column + columns].t()
        for row in range(0, min(column + columns, nodes), rows):
            left = unit_NH[row : row + rows]
            near = room[: len(left) * right.shape[1]].view(len(left), -1)
            torch.mm(left, right, out=near)
            nearest_kernels.update(near.numpy(), row, column, z, margin, best, who, least)


def _approximate(unit_NH: Tensor, who: np.ndarray) -> None:
    """Compares a row with those of the `PROBED` lists, of sqrt(N), whose centres are nearest to it."""
    # 50 MB that only a host with a client above the limit needs.
    import faiss

    nodes, width = unit_NH.shape
    z = unit_NH.numpy()
    # Centres are drawn from a fixed seed, and no sum is cut by a number of threads.
    faiss.omp_set_num_threads(1)
    index = faiss.IndexIVFFlat(faiss.IndexFlatIP(width), width, math.isqrt(nodes), faiss.METRIC_INNER_PRODUCT)
    index.cp.seed = 0
    index.train(z)
    index.add(z)
    index.nprobe = PROBED
    best = np.full(who.shape, -np.inf)
    for start in range(0, nodes, BLOCK):
        _, found = index.search(z[start : start + BLOCK], who.shape[1] + 1)
        nearest_kernels.offer_all(z, start, found, best, who)
