"""Features of edges: numbers of every entry of a CSR, or none."""

from typing import Any

import numpy as np

from shoal.storage.errors import ShoalError
from shoal.storage.graph.edge_weights import ROUNDING

WAY_OUT = "or set data.edge_features to drop"
# More are refused: each is stored for every edge, both ways.
MOST = 4096


def clean_edge_attr(edge_index: np.ndarray, attr: Any, nodes: int, where: str) -> np.ndarray:
    """Cleans features of edges as `clean_edges` of `shoal.storage.graph.graph` cleans these, float32 `[E, D]`.

    `attr` is that of every edge as given, numbers `[G, D]` or `[G]`. The entry of row i and column j has the features
    of the edge from j to i, or, where this is not given, those of the edge from i to j. Self loops are taken out with
    theirs. Raises ShoalError: they are of another shape or no finite numbers, or an edge that is given again has
    others.
    """
    given_GD = numbers_of_edges(attr, edge_index.shape[1], where)
    source, target = (ends.astype(np.int64) for ends in edge_index)
    proper = np.flatnonzero(source != target)
    source, target = source[proper], target[proper]
    key = np.concatenate([target * nodes + source, source * nodes + target])
    reversed_G = np.repeat([False, True], len(proper))
    # Edges that are given come before those that are given the other way round.
    order = np.lexsort((reversed_G, key))
    key, reversed_G, edge = key[order], reversed_G[order], np.concatenate([proper, proper])[order]
    starts = np.concatenate([[True], key[1:] != key[:-1]]) if len(key) else np.zeros(0, dtype=bool)
    first = np.flatnonzero(starts)
    chosen = edge[first]
    of_entry = np.cumsum(starts) - 1
    # Whoever gives both ways may give two values; of one way all are the same.
    same_way = reversed_G == reversed_G[first][of_entry]
    with np.errstate(invalid="ignore"):
        apart = np.abs(given_GD[edge] - given_GD[chosen[of_entry]]) > ROUNDING * np.abs(given_GD[edge])
    wrong = np.flatnonzero(apart.any(1) & same_way)
    if len(wrong):
        a, b = divmod(int(key[wrong[0]]), nodes)
        a, b = (a, b) if reversed_G[wrong[0]] else (b, a)
        column = int(apart[wrong[0]].argmax())
        raise ShoalError(
            where,
            f"the edge from node {a} to node {b} is given twice, and differs in column {column}; keep one, {WAY_OUT}",
        )
    return given_GD[chosen]


def merge_relations(
    edge_index: np.ndarray, attr: np.ndarray, kinds: int, where: object
) -> tuple[np.ndarray, np.ndarray]:
    """Joins edges that are given more than once the same way to one.

    The first `kinds` features are relations, a column of zeros and ones each: the joined edge has a one where any of
    its edges has one. Takes and gives integers `[2, G]` and numbers `[G, D]`. Raises ShoalError: such edges differ in
    another feature.
    """
    source, target = (ends.astype(np.int64) for ends in edge_index)
    if not len(source):
        return edge_index, attr
    key = source * (int(edge_index.max()) + 1) + target
    order = np.argsort(key, kind="stable")
    first = np.flatnonzero(np.diff(key[order], prepend=-1))
    merged, least = np.maximum.reduceat(attr[order], first), np.minimum.reduceat(attr[order, kinds:], first)
    differ = np.flatnonzero((merged[:, kinds:] != least).any(1))
    # The first of equal ones is where the edge came first.
    kept = order[first]
    if len(differ):
        row = int(kept[differ].min())
        raise ShoalError(
            where, f"the edge of row {row} is given again with other numbers, and has one of each; keep one, {WAY_OUT}"
        )
    by_place = np.argsort(kept)
    return edge_index[:, kept[by_place]], merged[by_place]


def add_relations(edge_index: np.ndarray, attr: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Joins edges of several relations to one, whose features are in columns of their own: adds them up.

    Takes and gives integers `[2, G]` and numbers `[G, D]`, in the order in which edges come first.
    """
    if not edge_index.size:
        return edge_index, attr
    key = edge_index[0].astype(np.int64) * (int(edge_index.max()) + 1) + edge_index[1]
    _, first, edge = np.unique(key, return_index=True, return_inverse=True)
    order = np.argsort(first)
    place = np.empty(len(order), dtype=np.int64)
    place[order] = np.arange(len(order))
    summed = np.zeros((len(order), attr.shape[1]), dtype=attr.dtype)
    np.add.at(summed, place[edge], attr)
    return edge_index[:, first[order]], summed


def numbers_of_edges(attr: Any, edges: int, where: object) -> np.ndarray:
    """Reads features of edges as given, float32 `[G, D]`. Raises ShoalError: as `clean_edge_attr`."""
    fits = isinstance(attr, np.ndarray) and attr.ndim in (1, 2) and len(attr) == edges and attr.dtype.kind in "fiub"
    width = attr.shape[1] if fits and attr.ndim == 2 else 1
    if not fits or not 0 < width <= MOST:
        form = f"{attr.dtype} {list(attr.shape)}" if isinstance(attr, np.ndarray) else type(attr).__name__
        raise ShoalError(
            where,
            f"must be numbers [{edges}, D], D features of every edge, at most {MOST}, found {form}; {WAY_OUT[3:]}",
        )
    with np.errstate(over="ignore", under="ignore"):
        given_GD = attr.reshape(edges, width).astype(np.float32)
    wrong = np.argwhere(~np.isfinite(given_GD))
    if len(wrong):
        row, column = (int(place) for place in wrong[0])
        value = attr.reshape(edges, width)[row, column]
        raise ShoalError(where, f"row {row}, column {column} is {value}; features are finite: change it, {WAY_OUT}")
    return given_GD
