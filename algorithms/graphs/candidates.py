"""The pairs of nodes that may become edges: those of a graph, and random ones."""

from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from shoal.algorithms.graphs import pair_kernels
from shoal.algorithms.graphs.completed_graph import CompletedGraph
from shoal.algorithms.graphs.pairs import compiled


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
    count = pair_kernels.merged(low, high, np.sort(keys.numpy()), nodes, pairs_2S, known_S)
    return Candidates(torch.from_numpy(pairs_2S)[:, :count].contiguous(), torch.from_numpy(known_S)[:count])


def _by_torch(pairs_2M: Tensor, keys: Tensor, nodes: int) -> Candidates:
    known = pairs_2M[0].long() * nodes + pairs_2M[1]
    every, number = torch.cat([known, keys]).unique(return_inverse=True)
    known_S = torch.zeros(len(every), dtype=torch.bool, device=every.device)
    known_S[number[: len(known)]] = True
    return Candidates(torch.stack([every // max(nodes, 1), every % max(nodes, 1)]).int(), known_S)
