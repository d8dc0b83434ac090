"""Parts within exact bounds on their size: refined, and nodes given away by too large ones and to the lightest."""

import heapq
from collections.abc import Callable

import numba
import numpy as np

from shoal.partition.out_of_core.blocks import Block, Level, Passes, blocks, weight_at
from shoal.storage.kernels.prefetch import fetch_ahead

# Losses below EXACT are counted one by one, larger ones by powers of two.
EXACT = 32
LOSSES = EXACT + 32
PASSES = Passes("refinement", most=6, converged=0.003)


def size_bound(nodes: int, clients: int, imbalance: float) -> int:
    """Most nodes that a client may have: `imbalance` times the mean, rounded down, or the mean, rounded up."""
    # A mean of 1000 and an imbalance of 1.03 are 1030, which the product of floats just misses.
    return max(-(-nodes // clients), int(imbalance * nodes / clients + 1e-6))


def balance(level: Level, part_N: np.ndarray, weight_P: np.ndarray, high: int, entries: int) -> None:
    """Moves nodes out of parts of more than `high` nodes, in place: those first that lose the fewest edges.

    A node goes to the part it has most edges to among those with room, or to any with room. The entries are read once,
    so what nodes lose is what they lost before the first of them moved. The nodes of the level weigh one; arguments are
    those of `refine`.
    """
    assert level.node_weights is None
    assert high * len(weight_P) >= weight_P.sum()
    if weight_P.max() <= high:
        return
    loss_N = np.zeros(level.nodes, dtype=np.int8)
    to_N = np.full(level.nodes, -1, dtype=np.int32)
    count_PL = np.zeros((len(weight_P), LOSSES), dtype=np.int64)
    connection_P = np.zeros(len(weight_P), dtype=np.int64)
    for block in blocks(level, entries):
        _losses(block, part_N, weight_P, connection_P, high, loss_N, to_N, count_PL)
    last_P = (np.cumsum(count_PL, axis=1) < (weight_P - high)[:, None]).sum(axis=1)
    _move_out(part_N, weight_P, high, loss_N, to_N, last_P)


def fill_lightest(part_N: np.ndarray, weight_P: np.ndarray, node_weights: np.ndarray | None) -> None:
    """Gives each node of part -1, the heaviest first, to the part that is the lightest at that moment, in place."""
    left = np.flatnonzero(part_N < 0).astype(np.int32)
    if node_weights is not None:
        left = left[np.argsort(-node_weights[left], kind="stable")]
    _fill_lightest(left, node_weights, part_N, weight_P)


@numba.njit(cache=True)
def _fill_lightest(left: np.ndarray, node_weights: np.ndarray | None, part_N: np.ndarray, weight_P: np.ndarray) -> None:
    heap = [(weight_P[part], part) for part in range(len(weight_P))]
    heapq.heapify(heap)
    for node in left:
        part = heap[0][1]
        part_N[node] = part
        weight_P[part] += weight_at(node_weights, node)
        heapq.heapreplace(heap, (weight_P[part], part))


@numba.njit(cache=True)
def _losses(
    b: Block,
    part_N: np.ndarray,
    weight_P: np.ndarray,
    connection_P: np.ndarray,
    high: int,
    loss_N: np.ndarray,
    to_N: np.ndarray,
    count_PL: np.ndarray,
) -> None:
    """Target of each node of a part over the bound, and its loss: exact to 31 edges, then by powers of two."""
    touched = np.empty(len(weight_P), dtype=np.int32)
    for row in range(len(b.indptr) - 1):
        node = b.first + row
        current = part_N[node]
        if current < 0 or weight_P[current] <= high:
            continue
        count = 0
        for e in range(b.indptr[row], b.indptr[row + 1]):
            part = part_N[b.indices[e]]
            if connection_P[part] == 0:
                touched[count] = part
                count += 1
            connection_P[part] += 1
        loss = connection_P[current]
        for t in range(count):
            part = touched[t]
            if part != current and weight_P[part] < high and connection_P[current] - connection_P[part] < loss:
                loss = connection_P[current] - connection_P[part]
                to_N[node] = part
        for t in range(count):
            connection_P[touched[t]] = 0
        step = max(loss, 0)
        if step >= EXACT:
            power = 1
            while step >> power >= EXACT:
                power += 1
            step = EXACT - 1 + power
        loss_N[node] = step
        count_PL[current, step] += 1


@numba.njit(cache=True)
def _move_out(
    part_N: np.ndarray, weight_P: np.ndarray, high: int, loss_N: np.ndarray, to_N: np.ndarray, last_P: np.ndarray
) -> None:
    """First all nodes that lose less than the last loss needed, then as many of those as are needed."""
    open_part = 0
    for last in range(2):
        for node in range(len(part_N)):
            current = part_N[node]
            if current < 0 or weight_P[current] <= high or loss_N[node] > last_P[current] - 1 + last:
                continue
            to = to_N[node]
            if to < 0 or weight_P[to] >= high:
                while weight_P[open_part] >= high:
                    open_part += 1
                to = open_part
            part_N[node] = to
            weight_P[current] -= 1
            weight_P[to] += 1


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

    The same rule as clustering, with parts for clusters (Meyerhenke, Sanders and Schulz, SEA 2014, section 4.1). The
    part of every node, int32 `[N]`, is -1 for nodes without edges; the weights of parts, int64, are kept up to date,
    and no move brings one below `low` or above `high`. So many `entries` are read at a time, which changes no number.
    Nodes of one step decide at the same time; those that would move decide again, one after another.
    """
    PASSES.run(
        level,
        entries,
        lambda *rows: _decide(*rows, part_N, weight_P, low, high),
        lambda *rows: _move(*rows, part_N, weight_P, low, high),
        report,
    )


@numba.njit(cache=True, nogil=True)
def _decide(
    begin: int, end: int, b: Block, to: np.ndarray, part_N: np.ndarray, weight_P: np.ndarray, low: int, high: int
) -> None:
    connection_P = np.zeros(len(weight_P), dtype=np.int64)
    touched = np.empty(len(weight_P), dtype=np.int32)
    for row in range(begin, end):
        to[row] = _best(b, row, part_N, weight_P, connection_P, touched, low, high)


@numba.njit(cache=True)
def _move(
    begin: int, end: int, b: Block, to: np.ndarray, part_N: np.ndarray, weight_P: np.ndarray, low: int, high: int
) -> int:
    connection_P = np.zeros(len(weight_P), dtype=np.int64)
    touched = np.empty(len(weight_P), dtype=np.int32)
    moved = 0
    for row in range(begin, end):
        node = b.first + row
        current = part_N[node]
        if to[row] == current:
            continue
        # Neighbours may have moved in this step. Decided again, a move never makes the cut larger.
        best = _best(b, row, part_N, weight_P, connection_P, touched, low, high)
        if best != current:
            weight = weight_at(b.node_weights, row)
            weight_P[current] -= weight
            weight_P[best] += weight
            part_N[node] = best
            moved += 1
    return moved


@numba.njit(cache=True)
def _best(
    b: Block,
    row: int,
    part_N: np.ndarray,
    weight_P: np.ndarray,
    connection_P: np.ndarray,
    touched: np.ndarray,
    low: int,
    high: int,
) -> int:
    """Part that a row should be in; `connection_P` is 0 before and after."""
    current = part_N[b.first + row]
    if current < 0:
        return current
    count = 0
    for e in range(b.indptr[row], b.indptr[row + 1]):
        fetch_ahead(part_N, b.indices, e)
        part = part_N[b.indices[e]]
        if connection_P[part] == 0:
            touched[count] = part
            count += 1
        connection_P[part] += weight_at(b.weights, e)
    weight = weight_at(b.node_weights, row)
    best, best_connection, best_weight = current, connection_P[current], weight_P[current] - weight
    stays = best_weight < low
    for t in range(count):
        part = touched[t]
        connection = connection_P[part]
        connection_P[part] = 0
        if stays or part == current or weight_P[part] + weight > high:
            continue
        if connection > best_connection or (connection == best_connection and weight_P[part] < best_weight):
            best, best_connection, best_weight = part, connection, weight_P[part]
    return best
