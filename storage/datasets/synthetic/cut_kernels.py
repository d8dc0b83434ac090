"""The loops that cut small graphs out of a large one: what hops reach, and the edges between its nodes."""

import numba
import numpy as np


@numba.njit(cache=True)
def reach(
    indptr: np.ndarray,
    indices: np.ndarray,
    centres: np.ndarray,
    hops: tuple[int, int],
    smallest: int,
    met: np.ndarray,
    found: np.ndarray,
) -> int:
    """Fills the front of `found`, int64, with nodes that hops reach, centres first, in the order in which they are met.

    It takes the least of `hops`, and further ones up to the most while there are fewer than `smallest` nodes; it ends
    when `found` is full. `met` is bool `[N]`, False before and after. Returns how many nodes were found.
    """
    count = len(centres)
    for at in range(count):
        found[at] = centres[at]
        met[centres[at]] = True
    first = 0
    for hop in range(hops[1]):
        if hop >= hops[0] and count >= smallest:
            break
        end = count
        for at in range(first, end):
            for entry in range(indptr[found[at]], indptr[found[at] + 1]):
                node = indices[entry]
                if not met[node] and count < len(found):
                    met[node] = True
                    found[count] = node
                    count += 1
        first = end
    for at in range(count):
        met[found[at]] = False
    return count


@numba.njit(cache=True)
def entries_between(
    indptr: np.ndarray,
    indices: np.ndarray,
    nodes: np.ndarray,
    before: int,
    row_of: np.ndarray,
    degree: np.ndarray,
    columns: np.ndarray,
) -> int:
    """Fills the front of `columns`, int32, with the entries between ascending nodes, row by row, and `degree` of rows.

    Rows are numbered on from `before`. `row_of` is int32 `[N]`, -1 before and after. Returns the number of entries.
    """
    for row in range(len(nodes)):
        row_of[nodes[row]] = row
    count = 0
    for row in range(len(nodes)):
        start = count
        for entry in range(indptr[nodes[row]], indptr[nodes[row] + 1]):
            column = row_of[indices[entry]]
            if column >= 0:
                columns[count] = before + column
                count += 1
        degree[row] = count - start
    for row in range(len(nodes)):
        row_of[nodes[row]] = -1
    return count
