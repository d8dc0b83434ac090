"""Refinement: nodes move to the part that most of their edges lead to, within the bounds on its weight."""

from collections.abc import Callable

import numba
import numpy as np

from shoal.partition.out_of_core.blocks import Block, Level, Passes
from shoal.partition.out_of_core.tally import weight_at
from shoal.storage.kernels.prefetch import fetch_ahead

PASSES = Passes("refinement", most=6, converged=0.001)


def refine(
    level: Level,
    part_N: np.ndarray,
    weight_P: np.ndarray,
    low: int,
    high: int,
    entries: int,
    report: Callable[[str], None],
) -> None:
    """Moves nodes to a part with more of their edge weight, or with as much and less weight of its own, in place.

    The same rule as clustering, with parts for clusters (Meyerhenke, Sanders and Schulz, SEA 2014, section 4.1).

    Args:
        level: The graph.
        part_N: Part of every node, int32 `[N]`, -1 for nodes without edges.
        weight_P: Weight of every part, int64; kept up to date.
        low: No move brings a part below this weight.
        high: No move brings a part above this weight.
        entries: Entries read at a time; changes no number.
        report: See `Passes.run`.
    """
    connection_P = np.zeros(len(weight_P), dtype=np.int64)
    PASSES.run(level, entries, lambda block: _move(block, part_N, weight_P, connection_P, low, high), report)


@numba.njit(cache=True)
def _move(b: Block, part_N: np.ndarray, weight_P: np.ndarray, connection_P: np.ndarray, low: int, high: int) -> int:
    touched = np.empty(len(weight_P), dtype=np.int32)
    moved = 0
    for row in range(len(b.indptr) - 1):
        node = b.first + row
        own = part_N[node]
        if own < 0:
            continue
        count = 0
        for e in range(b.indptr[row], b.indptr[row + 1]):
            fetch_ahead(part_N, b.indices, e)
            part = part_N[b.indices[e]]
            if connection_P[part] == 0:
                touched[count] = part
                count += 1
            connection_P[part] += weight_at(b.weights, e)
        weight = weight_at(b.node_weights, row)
        best, best_connection, best_weight = own, connection_P[own], weight_P[own] - weight
        for t in range(count):
            part = touched[t]
            connection = connection_P[part]
            connection_P[part] = 0
            if part == own or weight_P[part] + weight > high:
                continue
            if connection > best_connection or (connection == best_connection and weight_P[part] < best_weight):
                best, best_connection, best_weight = part, connection, weight_P[part]
        if best != own and weight_P[own] - weight >= low:
            weight_P[own] -= weight
            weight_P[best] += weight
            part_N[node] = best
            moved += 1
    return moved
