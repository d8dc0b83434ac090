"""Size-constrained label propagation: clusters of bounded weight in a few passes over the entries."""

from collections.abc import Callable

import numba
import numpy as np

from shoal.partition.out_of_core.blocks import Block, Level, Passes, blocks
from shoal.partition.out_of_core.tally import empty_table, mix, tally, weight_at

PASSES = Passes("clustering", most=8, converged=0.01)


def cluster(
    level: Level, limit: int, enough: int, seed: int, entries: int, report: Callable[[str], None]
) -> np.ndarray:
    """Cluster of every node, int32 `[N]`, with the number of some node; -1 for a node without edges.

    In every pass each node, in order, moves to the cluster that it has most edge weight to, of those that it keeps
    within `limit`; a hash of seed and cluster decides between equals (Meyerhenke, Sanders and Schulz, "Partitioning
    Complex Networks via Size-constrained Clustering", SEA 2014). Nodes that stay alone because the cluster they would
    join is full are then joined with each other, if they would have joined the same one, like the leaves of a star
    (LaSalle et al., "Improving Graph Partitioning for Modern Graphs and Architectures", IA3 2015).

    A node heavier than `limit` is a cluster of its own, and nodes that stay alone are joined only if there are more
    than `enough` clusters. Memory: 12 bytes a node, and `entries` read at a time, which changes no number.
    """
    label_N = np.arange(level.nodes, dtype=np.int32)
    weight_N = np.ones(level.nodes, dtype=np.int32)
    if level.node_weights is not None:
        weight_N[:] = level.node_weights
    PASSES.run(level, entries, lambda block: _move(block, label_N, weight_N, limit, seed), report)
    if np.count_nonzero(weight_N) > enough:
        open_N = np.full(level.nodes, -1, dtype=np.int32)
        for block in blocks(level, entries):
            _join(block, label_N, weight_N, open_N, limit)
    return label_N


@numba.njit(cache=True)
def _move(b: Block, label_N: np.ndarray, weight_N: np.ndarray, limit: int, seed: int) -> int:
    key, value, touched = empty_table(b.indptr)
    moved = 0
    for row in range(len(b.indptr) - 1):
        node = b.first + row
        if b.indptr[row] == b.indptr[row + 1]:
            label_N[node] = -1
            continue
        weight = weight_at(b.node_weights, row)
        own = label_N[node]
        best, best_value, best_hash = own, np.int64(0), np.uint64(0)
        for t in range(tally(b, row, label_N, key, value, touched)):
            slot = touched[t]
            label = key[slot]
            key[slot] = -1
            if value[slot] < best_value or (label != own and weight_N[label] + weight > limit):
                continue
            hashed = mix(label, seed)
            if value[slot] > best_value or hashed > best_hash:
                best, best_value, best_hash = label, value[slot], hashed
        if best != own:
            weight_N[own] -= weight
            weight_N[best] += weight
            label_N[node] = best
            moved += 1
    return moved


@numba.njit(cache=True)
def _join(b: Block, label_N: np.ndarray, weight_N: np.ndarray, open_N: np.ndarray, limit: int) -> None:
    key, value, touched = empty_table(b.indptr)
    for row in range(len(b.indptr) - 1):
        node = b.first + row
        weight = weight_at(b.node_weights, row)
        own = label_N[node]
        if own < 0 or weight_N[own] != weight:
            continue
        best, best_value = np.int32(-1), np.int64(0)
        for t in range(tally(b, row, label_N, key, value, touched)):
            slot = touched[t]
            if value[slot] > best_value:
                best, best_value = key[slot], value[slot]
            key[slot] = -1
        other = open_N[best]
        if other >= 0 and weight_N[other] + weight <= limit:
            label_N[node] = other
            weight_N[other] += weight
            weight_N[own] = 0
        else:
            open_N[best] = own
