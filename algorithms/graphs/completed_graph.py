"""A client's graph with edges added between similar nodes, and pairs of nodes that may become edges."""

from typing import Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor

from shoal.algorithms.graphs.pairs import joined_pairs, keys_of_drawn, symmetric_rows
from shoal.storage.errors import ShoalError

MOST_ENTRIES = 2**31


class CompletedGraph(NamedTuple):
    """A' = A or kNN, symmetric and without loops (FGGP, equation 6), as ascending CSR of int32 on the processor.

    `pairs_2M` are its edges i < j, int32, ascending by i and then by j. Tensors, so that `View.cache` can keep it.
    """

    indptr: Tensor
    indices: Tensor
    pairs_2M: Tensor

    @property
    def nodes(self) -> int:
        """Number of nodes N."""
        return len(self.indptr) - 1


def complete_graph(indptr: np.ndarray, indices: np.ndarray, nearest_NK: Tensor, device: torch.device) -> CompletedGraph:
    """Adds an edge from every node to each of its `nearest` ones (int32, -1 where there is none) to A, given as CSR.

    The pairs are put on `device`. Raises a `ShoalError` if A' has more entries than int32 can count.
    """
    nodes = len(indptr) - 1
    row_E = np.repeat(np.arange(nodes, dtype=np.int64), np.diff(indptr))
    upper_E = indices > row_E
    near_NK = nearest_NK.cpu().numpy()
    row, place = np.nonzero(near_NK >= 0)
    other = near_NK[row, place].astype(np.int64)
    added = np.minimum(row, other) * nodes + np.maximum(row, other)
    keys_M = np.unique(np.concatenate([row_E[upper_E] * nodes + indices[upper_E], added]))
    if 2 * len(keys_M) >= MOST_ENTRIES:
        raise ShoalError(f"a client's completed graph has {len(keys_M):,} edges; take fewer neighbours or more clients")
    pairs_2M = np.stack(np.divmod(keys_M, max(nodes, 1))).astype(np.int32)
    starts, columns = symmetric_rows(pairs_2M, nodes)
    return CompletedGraph(torch.from_numpy(starts), torch.from_numpy(columns), torch.from_numpy(pairs_2M).to(device))


class Candidates(NamedTuple):
    """Pairs i < j, int32, each once, ascending by i and then by j, and whether a pair is the graph's, bool."""

    pairs_2S: Tensor
    known_S: Tensor


def draw_candidates(
    graph: CompletedGraph, random_pairs: int | Literal["all"], rng: torch.Generator, first: Tensor | None = None
) -> Candidates:
    """Collects all pairs of a graph and `random_pairs` drawn for every node, or all; a double one counts once.

    `first` are first nodes of small graphs that lie behind one another, int64 `[G + 1]`: no pair is of two of these.
    """
    nodes, pairs_2M = graph.nodes, graph.pairs_2M
    if first is not None:
        keys = _every_key(first) if random_pairs == "all" else _drawn_keys(first, random_pairs, rng)
        return _joined(pairs_2M, keys, nodes)
    if random_pairs == "all":
        every_2S = torch.triu_indices(nodes, nodes, 1, dtype=torch.int32, device=pairs_2M.device)
        i, j = pairs_2M.long()
        all_known_S = torch.zeros(every_2S.shape[1], dtype=torch.bool, device=pairs_2M.device)
        all_known_S[i * (2 * nodes - i - 1) // 2 + j - i - 1] = True
        return Candidates(every_2S, all_known_S)
    device = pairs_2M.device
    count = random_pairs * nodes if nodes > 1 else 0
    other_D = torch.randint(max(nodes - 1, 1), (count,), generator=rng, device=device)
    return _joined(pairs_2M, np.sort(keys_of_drawn(other_D.cpu().numpy(), max(random_pairs, 1), nodes)), nodes)


def _joined(pairs_2M: Tensor, keys: np.ndarray, nodes: int) -> Candidates:
    joined = joined_pairs(pairs_2M.cpu().numpy(), keys, nodes)
    return Candidates(*(torch.from_numpy(part).to(pairs_2M.device) for part in joined))


def _drawn_keys(first: Tensor, of_each: int, rng: torch.Generator) -> np.ndarray:
    """Draws partners of every node in its own small graph; returns ascending keys i nodes + j, i < j, int64."""
    starts, sizes, nodes = *_sizes(first), int(first[-1])
    node_D = np.repeat(np.arange(nodes), np.where(np.repeat(sizes, sizes) > 1, of_each, 0))
    start_D, size_D = (np.repeat(of_graph, sizes)[node_D] for of_graph in (starts, sizes))
    u_D = torch.rand(len(node_D), dtype=torch.float64, generator=rng, device=rng.device).cpu().numpy()
    other_D = start_D + (u_D * (size_D - 1)).astype(np.int64)
    other_D += other_D >= node_D
    return np.sort(np.minimum(node_D, other_D) * nodes + np.maximum(node_D, other_D))


def _every_key(first: Tensor) -> np.ndarray:
    """Lists the keys of all pairs within small graphs."""
    nodes, keys = int(first[-1]), [np.empty(0, np.int64)]
    for start, size in zip(*_sizes(first)):
        low, high = np.triu_indices(size, 1)
        keys.append((start + low) * nodes + start + high)
    return np.concatenate(keys)


def _sizes(first: Tensor) -> tuple[np.ndarray, np.ndarray]:
    """Returns the first node and the number of nodes of every small graph, int64."""
    ends = first.cpu().numpy()
    return ends[:-1], np.diff(ends)
