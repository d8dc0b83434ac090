"""The reliability of a client for every class, from its features and its graph (FedTAD)."""

import numpy as np
import scipy.sparse as sp
import torch
from torch import Tensor

from shoal.storage.graph.sparse_matrix import SparseMatrix
from shoal.storage.shards.view import View

# Rows of powers of the walk, and pairs of nodes whose features are compared, that are in memory at once.
WALKERS, PAIRS = 1024, 8192


def class_reliability(data: View, steps: int) -> Tensor:
    """Sums the reliability of training nodes by class, float32 `[C]`; never negative, zero without such a node.

    A node's is the mean of cosines with its neighbours and of one with itself, which is 1. What is compared are
    features and, behind them, the chances that a random walk is back after 1 to `steps` steps (`return_chances`).
    """
    total_C = torch.zeros(data.classes, dtype=torch.float64)
    rows = data.train.cpu()
    if not len(rows):
        return total_C.float()
    indptr, indices = data.csr
    degree = np.diff(indptr)[rows.numpy()].astype(np.int64)
    # The pairs (i, j) of a training node and a neighbour, in their order.
    first = np.repeat(indptr[rows.numpy()].astype(np.int64), degree)
    behind = np.arange(degree.sum()) - np.repeat(degree.cumsum() - degree, degree)
    place, other = np.repeat(np.arange(len(rows)), degree), indices[first + behind].astype(np.int64)
    needed = np.unique(np.concatenate([rows.numpy(), other]))
    chance = torch.from_numpy(return_chances(indptr, indices, needed, steps))
    cosine = [torch.zeros(0, dtype=torch.float64)]
    for start in range(0, len(other), PAIRS):
        part = slice(start, start + PAIRS)
        ends = (rows.numpy()[place[part]], other[part])
        here, there = (torch.cat([_features(data, i), chance[np.searchsorted(needed, i)]], 1) for i in ends)
        cosine.append(torch.cosine_similarity(here, there))
    of_node_N = torch.ones(len(rows), dtype=torch.float64).index_add_(0, torch.from_numpy(place), torch.cat(cosine))
    total_C.index_add_(0, data.train_label.cpu(), of_node_N / torch.from_numpy(degree + 1))
    return total_C.clamp_min(0).float()


def return_chances(indptr: np.ndarray, indices: np.ndarray, rows: np.ndarray, steps: int) -> np.ndarray:
    """Computes (P^k)_vv, P = A D^-1, for some nodes v and k = 1 to `steps`, float64 `[n, steps]`.

    A is symmetric, of ones. With W = D^-1 A, whose rows are where walkers are, (W^(a+b))_vv is the sum over u of
    (W^a)_vu (W^b)_vu d_v / d_u, so that half as many powers are made.
    """
    degree = np.diff(indptr).astype(np.float64)
    share = 1 / np.maximum(degree, 1)
    walk = sp.csr_array((np.repeat(share, np.diff(indptr)), indices, indptr), (len(degree), len(degree)))
    chance = np.zeros((len(rows), steps))
    for start in range(0, len(rows), WALKERS):
        part = rows[start : start + WALKERS]
        count = np.ones(len(part)), part, np.arange(len(part) + 1)
        power, last = sp.csr_array(count, (len(part), len(degree))), None
        for k in range(1, steps + 1):
            # The powers a and b of k = a + b are equal, or the next one is made.
            last, power = (power, power @ walk) if k % 2 else (power, power)
            chance[start : start + WALKERS, k - 1] = (last.multiply(power) @ share) * degree[part]
    return chance


def _features(data: View, rows: np.ndarray) -> Tensor:
    x_NF = data.rows(0, torch.from_numpy(rows))
    return (x_NF.to_dense() if isinstance(x_NF, SparseMatrix) else x_NF).cpu().double()
