"""Weights of edges: a number for every entry of a CSR, or none where all edges weigh 1."""

from typing import Any

import numpy as np

from shoal.storage.errors import ShoalError
from shoal.storage.graph.induced import Induced, entries_among

WAY_OUT = "or leave out all weights"
# The bound is relative, as in `numpy.allclose`: weights computed once for each direction differ in their last bits.
ROUNDING = 1e-5


def clean_weights(edge_index: np.ndarray, weight: Any, nodes: int, where: str) -> np.ndarray | None:
    """Cleans the weights of edges as `clean_edges` of `shoal.storage.graph.graph` cleans these, float32 `[E]`.

    `weight` is that of every edge as given, numbers `[G]` or `[G, 1]`. An edge that is given more than once, the other
    way round or again, weighs the same each time, up to `ROUNDING`; of such weights the smallest is taken. Self loops
    are taken out with their weights. Weights that are all 1 say nothing: None. Raises ShoalError: they are of another
    shape or no numbers, one is not positive and finite in float32, or an edge has two.
    """
    given_G = _numbers(weight, edge_index.shape[1], where)
    source, target = (ends.astype(np.int64) for ends in edge_index)
    proper = source != target
    source, target, given_G = source[proper], target[proper], given_G[proper]
    key = np.concatenate([source * nodes + target, target * nodes + source])
    order = np.argsort(key, kind="stable")
    key, both = key[order], np.concatenate([given_G, given_G])[order]
    if not len(key):
        return None
    first = np.flatnonzero(np.concatenate([[True], key[1:] != key[:-1]]))
    smallest, largest = np.minimum.reduceat(both, first), np.maximum.reduceat(both, first)
    differ = np.flatnonzero(largest - smallest > ROUNDING * largest)
    if len(differ):
        edge = differ[0]
        a, b = divmod(int(key[first[edge]]), nodes)
        raise ShoalError(
            where,
            f"the edge of nodes {a} and {b} weighs {smallest[edge]:.7g} and {largest[edge]:.7g}; edges are "
            f"undirected: give one weight each, {WAY_OUT}",
        )
    return None if (smallest == 1).all() else smallest


def _numbers(weight: Any, edges: int, where: str) -> np.ndarray:
    """Reads weights of edges as given, float32 `[G]`. Raises ShoalError: as `clean_weights`."""
    fits = isinstance(weight, np.ndarray) and weight.shape in ((edges,), (edges, 1)) and weight.dtype.kind in "fiub"
    if not fits:
        form = f"{weight.dtype} {list(weight.shape)}"
        raise ShoalError(where, f"must be numbers [{edges}], the weight of every edge, found {form}")
    with np.errstate(over="ignore", under="ignore"):
        given_G = weight.reshape(edges).astype(np.float32)
    wrong = np.flatnonzero(~(np.isfinite(given_G) & (given_G > 0)))
    if len(wrong):
        value = weight.reshape(edges)[wrong[0]]
        raise ShoalError(
            where, f"row {wrong[0]} is {value}; the weight of an edge is positive and finite: change it, {WAY_OUT}"
        )
    return given_G


def degrees(indptr: np.ndarray, weight: np.ndarray | None) -> np.ndarray:
    """Computes degrees with self loops, which weigh 1, float64 `[N]`; `weight` is float32 `[E]`; None: all are 1."""
    if weight is None:
        return np.diff(indptr) + 1.0
    degree_N = np.ones(len(indptr) - 1)
    filled = np.flatnonzero(np.diff(indptr))
    if len(filled):
        # Rows without an entry lie between no two of these starts.
        degree_N[filled] += np.add.reduceat(weight, indptr[filled], dtype=np.float64)
    return degree_N


def weights_among(part: Induced, indptr: np.ndarray, indices: np.ndarray, weight: np.ndarray) -> np.ndarray:
    """Looks up weights of the edges of a part of a graph, float32 `[e]`, in its order; rows of both are ascending."""
    return np.asarray(weight[entries_among(part, indptr, indices)])
