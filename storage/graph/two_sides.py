"""Graphs whose nodes are of two kinds, as users and items are: every edge joins one of each."""

import numba
import numpy as np

from shoal.storage.graph.graph import Graph
from shoal.storage.graph.pairs import NEITHER

# A cycle of a graph of one kind is odd half of the time: one in a thousand of such graphs has ten, and all even.
CYCLES = 10


def sides_of(graph: Graph, cycles: int = CYCLES) -> np.ndarray:
    """Finds the side of every node, int8 `[N]` of ONE and OTHER; NEITHER in a graph that has no two sides.

    Of several graphs (`Graph.domains`) each is looked at by itself. In each connected component the side of its first
    node is ONE, which is right for all where nodes of one kind come before those of the other. A node without an edge
    is on neither side. A graph has two sides if it has no odd cycle, and so many independent ones at least: a tree
    tells nothing of kinds.
    """
    side = np.zeros(graph.nodes, dtype=np.int8)
    first = 0
    for nodes in [domain.nodes for domain in graph.domains] or [graph.nodes]:
        end = first + nodes
        trees = _colour(graph.indptr, graph.indices, first, end, side)
        edges = int(graph.indptr[end] - graph.indptr[first]) // 2
        # Nodes without an edge are trees as well, so that this is the number of independent cycles.
        if trees < 0 or edges - nodes + trees < cycles:
            side[first:end] = NEITHER
        first = end
    return side


@numba.njit(cache=True)
def _colour(indptr: np.ndarray, indices: np.ndarray, first: int, end: int, side: np.ndarray) -> int:
    """Fills in the sides of the rows of a graph by search in breadth; its number of components, -1 at an odd cycle."""
    queue = np.empty(end - first, dtype=np.int64)
    components = 0
    for root in range(first, end):
        if side[root] != 0:
            continue
        components += 1
        if indptr[root] == indptr[root + 1]:
            continue
        side[root] = 1
        queue[0] = root
        done, waiting = 0, 1
        while done < waiting:
            node = queue[done]
            done += 1
            for e in range(indptr[node], indptr[node + 1]):
                other = indices[e]
                if side[other] == side[node]:
                    return -1
                if side[other] == 0:
                    side[other] = 3 - side[node]
                    queue[waiting] = other
                    waiting += 1
    return components
