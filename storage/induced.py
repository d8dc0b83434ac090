"""The graph of one client inside the whole graph: its nodes, neighbours close together, and their edges."""

from dataclasses import dataclass

import numba
import numpy as np


@dataclass(frozen=True)
class Induced:
    """An induced subgraph.

    Attributes:
        node: Global id of every row, int64 `[N]`.
        indptr: Row pointer, int64 `[N + 1]`.
        indices: Rows of the neighbours, int32 `[E]`, ascending in a row.
    """

    node: np.ndarray
    indptr: np.ndarray
    indices: np.ndarray


def induced(indptr: np.ndarray, indices: np.ndarray, nodes: np.ndarray, row_of: np.ndarray) -> Induced:
    """Induces the subgraph of some nodes, rows breadth first, ties by global id; edges to other nodes are dropped.

    Args:
        indptr: Row pointer of the whole graph, int64 `[nodes + 1]`.
        indices: Neighbours in the whole graph, int32 `[entries]`.
        nodes: Global ids of the client's nodes, ascending, int64 `[N]`.
        row_of: Scratch of -1, int32 `[nodes]`, given back as it was.
    """
    row_of[nodes] = np.arange(len(nodes), dtype=np.int32)
    pointer, columns = _restrict(indptr, indices, nodes, row_of)
    order = _breadth_first(pointer, columns)
    node = nodes[order]
    row_of[node] = np.arange(len(node), dtype=np.int32)
    pointer, columns = _restrict(indptr, indices, node, row_of)
    _sort_rows(pointer, columns)
    row_of[nodes] = -1
    return Induced(node, pointer, columns)


@numba.njit(cache=True)
def _restrict(
    indptr: np.ndarray, indices: np.ndarray, nodes: np.ndarray, row_of: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    pointer = np.zeros(len(nodes) + 1, dtype=np.int64)
    for row in range(len(nodes)):
        kept = 0
        for e in range(indptr[nodes[row]], indptr[nodes[row] + 1]):
            kept += row_of[indices[e]] >= 0
        pointer[row + 1] = pointer[row] + kept
    columns = np.empty(pointer[-1], dtype=np.int32)
    for row in range(len(nodes)):
        at = pointer[row]
        for e in range(indptr[nodes[row]], indptr[nodes[row] + 1]):
            if row_of[indices[e]] >= 0:
                columns[at] = row_of[indices[e]]
                at += 1
    return pointer, columns


@numba.njit(cache=True)
def _breadth_first(pointer: np.ndarray, columns: np.ndarray) -> np.ndarray:
    nodes = len(pointer) - 1
    order = np.empty(nodes, dtype=np.int64)
    seen = np.zeros(nodes, dtype=np.bool_)
    end = 0
    at = 0
    for root in range(nodes):
        if seen[root]:
            continue
        seen[root] = True
        order[end] = root
        end += 1
        while at < end:
            row = order[at]
            at += 1
            for e in range(pointer[row], pointer[row + 1]):
                if not seen[columns[e]]:
                    seen[columns[e]] = True
                    order[end] = columns[e]
                    end += 1
    return order


@numba.njit(cache=True)
def _sort_rows(pointer: np.ndarray, columns: np.ndarray) -> None:
    for row in range(len(pointer) - 1):
        columns[pointer[row] : pointer[row + 1]].sort()
