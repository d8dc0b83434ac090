"""A client's graph with edges added between similar nodes, and pairs of nodes that may become edges."""

from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from shoal.algorithms.graphs.pairs import compiled, merged, symmetric_rows
from shoal.storage.errors import ShoalError

MOST_ENTRIES = 2**31


class CompletedGraph(NamedTuple):
    """A' = A or kNN, symmetric and without loops (FGGP, equation 6); tensors, so that `View.cache` can keep it.

    Attributes:
        indptr: Row starts, int32 `[N + 1]`, on the processor.
        indices: Columns, int32 `[2 M]`, ascending in a row, on the processor.
        pairs_2M: Its edges i < j, int32, ascending by i and then by j, where it was asked for.
    """

    indptr: Tensor
    indices: Tensor
    pairs_2M: Tensor

    @property
    def nodes(self) -> int:
        """Number of nodes N."""
        return len(self.indptr) - 1


def completed(indptr: np.ndarray, indices: np.ndarray, nearest_NK: Tensor, device: torch.device) -> CompletedGraph:
    """Adds an edge from every node to each of its nearest ones.

    Args:
        indptr: Row starts of A, as `View.csr` gives them.
        indices: Its columns.
        nearest_NK: The value of `nearest`: int32, -1 where there is no node.
        device: Where the pairs are to be.

    Raises:
        ShoalError: A' has more entries than int32 can count.
    """
    nodes = len(indptr) - 1
    row_E = np.repeat(np.arange(nodes, dtype=np.int64), np.diff(indptr))
    upper_E = indices > row_E
    one, place = np.nonzero(nearest_NK.cpu().numpy() >= 0)
    other = nearest_NK.cpu().numpy()[one, place].astype(np.int64)
    added = np.minimum(one, other) * nodes + np.maximum(one, other)
    keys_M = np.unique(np.concatenate([row_E[upper_E] * nodes + indices[upper_E], added]))
    if 2 * len(keys_M) >= MOST_ENTRIES:
        raise ShoalError(f"a client's completed graph has {len(keys_M):,} edges; take fewer neighbours or more clients")
    pairs_2M = np.stack(np.divmod(keys_M, max(nodes, 1))).astype(np.int32)
    starts, columns = symmetric_rows(*pairs_2M, np.ones(len(keys_M), np.bool_), nodes)
    pairs = torch.from_numpy(pairs_2M).to(device)
    return CompletedGraph(torch.from_numpy(starts), torch.from_numpy(columns), pairs)


class Candidates(NamedTuple):
    """Pairs i < j, each once, ascending by i and then by j.

    Attributes:
        pairs_2S: Their ends, int32.
        known_S: Whether a pair is the graph's; bool.
    """

    pairs_2S: Tensor
    known_S: Tensor


def draw_candidates(graph: CompletedGraph, random_pairs: int, rng: torch.Generator) -> Candidates:
    """All pairs of a graph, and of every node some with other nodes, uniform; one drawn twice counts once.

    Args:
        graph: The graph.
        random_pairs: Draws of every node.
        rng: Where randomness comes from, for the device of the graph's pairs.
    """
    nodes, pairs_2M = graph.nodes, graph.pairs_2M
    device = pairs_2M.device
    count = random_pairs * nodes if nodes > 1 else 0
    one = torch.arange(count, device=device) // max(random_pairs, 1)
    other = torch.randint(max(nodes - 1, 1), (count,), generator=rng, device=device)
    other += other >= one
    keys = torch.minimum(one, other) * nodes + torch.maximum(one, other)
    return _by_numba(pairs_2M, keys, nodes) if compiled(pairs_2M) else _by_torch(pairs_2M, keys, nodes)


def _by_numba(pairs_2M: Tensor, keys: Tensor, nodes: int) -> Candidates:
    low, high = pairs_2M.numpy()
    most = pairs_2M.shape[1] + len(keys)
    pairs_2S, known_S = np.empty((2, most), np.int32), np.empty(most, np.bool_)
    count = merged(low, high, np.sort(keys.numpy()), nodes, pairs_2S, known_S)
    return Candidates(torch.from_numpy(pairs_2S)[:, :count].contiguous(), torch.from_numpy(known_S)[:count])


def _by_torch(pairs_2M: Tensor, keys: Tensor, nodes: int) -> Candidates:
    known = pairs_2M[0].long() * nodes + pairs_2M[1]
    every, number = torch.cat([known, keys]).unique(return_inverse=True)
    known_S = torch.zeros(len(every), dtype=torch.bool, device=every.device)
    known_S[number[: len(known)]] = True
    return Candidates(torch.stack([every // max(nodes, 1), every % max(nodes, 1)]).int(), known_S)
