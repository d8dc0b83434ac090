"""Pairs of nodes as items: the edges of a client, of which a share is held out, and as many pairs without an edge.

Edges are undirected and counted once. Between two of `nodes` rows there are nodes (nodes - 1) / 2 pairs, numbered from
0: those of rows one apart, counted round a circle, then two apart, and so on, each in the order of where they start.
"""

from collections.abc import Iterable

import numpy as np

from shoal.storage.errors import ShoalError
from shoal.storage.graph.induced import Induced
from shoal.storage.graph.pairs import EDGE, NO_EDGE, ONE, OTHER, Pairs
from shoal.storage.options.split import SplitOptions
from shoal.storage.options.split_codes import TEST, TRAIN, VAL
from shoal.storage.shards.split import random_split, to_codes

# The stream that pairs without an edge are drawn from, beside that of the split.
WITHOUT_EDGE = 1
# Bytes of an undirected edge while pairs are drawn and held-out edges are taken away, measured and rounded up.
OF_EDGE = 192


def draw_pairs(part: Induced, client: int, options: SplitOptions, side: np.ndarray | None = None) -> Pairs:
    """Divides the edges of a client by the shares of a split, and draws as many pairs without an edge for every part.

    These are drawn uniformly from the pairs that are no edge of the client's whole graph, held-out edges included; no
    pair is in two parts. Where fewer exist, all of them are dealt to the parts in proportion. What belongs to no part,
    because the shares sum to less than one, is an edge of the graph and no item. Shares are rounded as those of nodes.
    In a graph of two sides they join one of each: a pair within a side is no edge for a reason that a model sees.

    Args:
        part: The graph of the client.
        client: Its number; with `options.split_seed` it keys the random streams.
        options: Shares and seed.
        side: The side of every row, as `sides_of` has them; None: the graph has none.
    """
    nodes = len(part.node)
    edges = _edges(part)
    code = to_codes(random_split(np.zeros(len(edges)), np.arange(len(edges)), client, options), len(edges))
    wanted = [int((code == value).sum()) for value in (TRAIN, VAL, TEST)]
    rng = np.random.default_rng([options.split_seed, client, WITHOUT_EDGE])
    if side is None or not side.any():
        others = _without_edge(edges, nodes, sum(wanted), rng)
    else:
        others = _between_sides(edges, side, sum(wanted), rng)
    # Each part has as many as there are edges, if enough exist.
    ends = np.cumsum([0, *wanted]) * len(others) // max(sum(wanted), 1)
    return _pairs(
        nodes,
        np.concatenate([edges[code > 0], others]),
        np.repeat(np.array([EDGE, NO_EDGE], dtype=np.int8), [sum(wanted), len(others)]),
        np.concatenate([code[code > 0], np.repeat(np.array([TRAIN, VAL, TEST], dtype=np.int8), np.diff(ends))]),
    )


def union_of(nodes: int, clients: Iterable[tuple[np.ndarray, Pairs]]) -> Pairs:
    """Joins the pairs of clients of one graph, with labels and parts; gives each client the graph's row of its rows."""
    empty = np.empty((0, 2), np.int64), np.empty(0, np.int8), np.empty(0, np.int8)
    every = [empty, *((np.sort(row_of[pairs.ends], axis=1), pairs.label, pairs.part) for row_of, pairs in clients)]
    return _pairs(nodes, *(np.concatenate(arrays) for arrays in zip(*every)))


def without_held_out(part: Induced, pairs: Pairs) -> Induced:
    """Keeps the rows, in their order, and the edges among them but the held-out ones, in both directions."""
    nodes = len(part.node)
    row = np.repeat(np.arange(nodes), np.diff(part.indptr))
    key = np.minimum(row, part.indices) * nodes + np.maximum(row, part.indices)
    smaller, larger = pairs.ends[pairs.held_out].astype(np.int64).T
    kept = ~np.isin(key, smaller * nodes + larger)
    before = np.concatenate([[0], np.cumsum(kept)])
    return Induced(part.node, before[part.indptr], part.indices[kept])


def require_room(client: int, entries: int, limit: int) -> None:
    """Refuses to draw the pairs of a client that would need more memory than there is. Raises ShoalError: it would."""
    needed = OF_EDGE * (entries // 2)
    if needed > limit:
        raise ShoalError(
            f"engine.memory_limit is {limit >> 20}MiB, but to hold out edges of client {client} takes "
            f"{-(-needed >> 20)}MiB: raise it or use more clients"
        )


def _edges(part: Induced) -> np.ndarray:
    """Lists every edge once, the smaller row first, int64 `[E, 2]`, ascending."""
    row = np.repeat(np.arange(len(part.node)), np.diff(part.indptr))
    once = row < part.indices
    return np.stack([row[once], part.indices[once].astype(np.int64)], axis=1)


def _without_edge(edges: np.ndarray, nodes: int, wanted: int, rng: np.random.Generator) -> np.ndarray:
    """Draws pairs that are no edge, or all there are, int64 `[n, 2]`, in random order, the smaller row first."""
    return _ends(_untaken(nodes * (nodes - 1) // 2, _numbers(edges, nodes), wanted, rng), nodes)


def _between_sides(edges: np.ndarray, side: np.ndarray, wanted: int, rng: np.random.Generator) -> np.ndarray:
    """Draws pairs of a row on one side and a row on the other in the same way, numbered from 0 row by row."""
    left, right = np.flatnonzero(side == ONE), np.flatnonzero(side == OTHER)
    place = np.zeros(len(side), dtype=np.int64)
    place[left], place[right] = np.arange(len(left)), np.arange(len(right))
    is_one = side[edges[:, 0]] == ONE
    taken = place[np.where(is_one, *edges.T)] * len(right) + place[np.where(is_one, *edges.T[::-1])]
    numbers = _untaken(len(left) * len(right), taken, wanted, rng)
    return np.sort(np.stack([left[numbers // len(right)], right[numbers % len(right)]], axis=1), axis=1)


def _untaken(pairs: int, taken: np.ndarray, wanted: int, rng: np.random.Generator) -> np.ndarray:
    """Draws numbers below `pairs` that are not taken, or all there are, in random order."""
    taken = np.sort(taken)
    free = pairs - len(taken)
    place = _distinct(free, min(wanted, free), rng)
    # taken[i] - i free pairs have a smaller number than taken[i]; so many are passed over on the way to a place.
    return np.asarray(place + np.searchsorted(taken - np.arange(len(taken)), place, side="right"))


def _distinct(end: int, count: int, rng: np.random.Generator) -> np.ndarray:
    """Draws different numbers below `end`, uniformly, int64, in random order, in memory of a few times theirs."""
    if 2 * count >= end:
        return rng.permutation(end)[:count]
    drawn = np.empty(0, dtype=np.int64)
    while len(drawn) < count:
        drawn = np.union1d(drawn, rng.integers(end, size=count - len(drawn)))
    return rng.permutation(drawn)


def _numbers(ends: np.ndarray, nodes: int) -> np.ndarray:
    """Numbers every pair `[n, 2]`, the smaller row first; a pair has the number of its shorter way round."""
    first, second = ends.T
    apart = second - first
    far = 2 * apart > nodes
    return (np.where(far, nodes - apart, apart) - 1) * nodes + np.where(far, second, first)


def _ends(numbers: np.ndarray, nodes: int) -> np.ndarray:
    """Inverts `_numbers`."""
    first = numbers % nodes
    return np.sort(np.stack([first, (first + numbers // nodes + 1) % nodes], axis=1), axis=1)


def _pairs(nodes: int, ends: np.ndarray, label: np.ndarray, part: np.ndarray) -> Pairs:
    """Sorts pairs `[n, 2]` in any order, the smaller row first, as a shard keeps them."""
    order = np.lexsort((ends[:, 1], ends[:, 0]))
    starts = np.searchsorted(ends[order, 0], np.arange(nodes + 1)).astype(np.int32)
    return Pairs(starts, ends[order, 1].astype(np.int32), label[order], part[order])
