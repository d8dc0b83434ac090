"""Neighbours drawn at random from a shard's adjacency, for steps that cannot read the whole graph."""

from typing import NamedTuple

import numba
import numpy as np


class Drawn(NamedTuple):
    """The neighbours drawn for some rows, as CSR of int32: column j is row `nodes[j]` of the shard.

    `nodes`, int64 `[m]`, are first those drawn for, then the others in the order in which they were first drawn.
    """

    nodes: np.ndarray
    indptr: np.ndarray
    indices: np.ndarray


def draw_neighbours(
    indptr: np.ndarray, indices: np.ndarray, rows: np.ndarray, fanout: int, rng: np.random.Generator
) -> Drawn:
    """Draws up to `fanout` neighbours of every row, uniformly and without replacement (GraphSAGE, Alg. 2, N_k).

    Rows are int64 `[n]`, each once; of one with at most `fanout` neighbours, or for -1, all are taken, whatever `rng`
    is.
    """
    degree = indptr[rows + 1] - indptr[rows]
    counts = degree if fanout < 0 else np.minimum(degree, fanout)
    pointer = np.zeros(len(rows) + 1, dtype=np.int32)
    np.cumsum(counts, out=pointer[1:])
    columns = np.empty(pointer[-1], dtype=np.int32)
    nodes = np.empty(len(rows) + len(columns), dtype=np.int64)
    nodes[: len(rows)] = rows
    column_of = np.full(len(indptr) - 1, -1, dtype=np.int32)
    column_of[rows] = np.arange(len(rows), dtype=np.int32)
    count = _draw((indptr, indices), rows, rng.random(len(columns)), column_of, (pointer, columns, nodes))
    return Drawn(nodes[:count].copy(), pointer, columns)


@numba.njit(cache=True)
def _draw(
    csr: tuple[np.ndarray, ...],
    rows: np.ndarray,
    uniform: np.ndarray,
    column_of: np.ndarray,
    drawn: tuple[np.ndarray, ...],
) -> int:
    """Fills columns and the rest of the nodes; returns how many nodes occur."""
    (indptr, indices), (pointer, columns, nodes) = csr, drawn
    count = len(rows)
    for i in range(len(rows)):
        start, first, end = indptr[rows[i]], pointer[i], pointer[i + 1]
        degree = indptr[rows[i] + 1] - start
        for place in range(first, end):
            # Floyd's algorithm: position t of 0..j, or j itself if t was drawn before.
            j = degree - end + place
            position = j
            if end - first < degree:
                position = int(uniform[place] * (j + 1))
                for earlier in range(first, place):
                    if columns[earlier] == position:
                        position = j
                        break
            columns[place] = position
        for place in range(first, end):
            node = indices[start + columns[place]]
            if column_of[node] < 0:
                column_of[node] = count
                nodes[count] = node
                count += 1
            columns[place] = column_of[node]
    return count
