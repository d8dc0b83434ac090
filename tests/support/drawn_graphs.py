"""Random small graphs behind one another, and what such graphs hold, read entry by entry."""

import networkx as nx
import numpy as np

from shoal.algorithms.graphs.graph_augmentation import SmallGraphs

SIZES = (1, 4, 6, 3, 9, 2)


def drawn(sizes: tuple[int, ...] = SIZES, seed: int = 0) -> tuple[SmallGraphs, list[nx.Graph]]:
    """Random graphs, the first of one node, and the same as NetworkX has them; features lie in reverse order."""
    each = [nx.gnp_random_graph(size, 0.5, seed=seed + number) for number, size in enumerate(sizes)]
    dense = nx.to_numpy_array(nx.disjoint_union_all(each)) > 0
    source, target = np.nonzero(dense)
    indptr = np.concatenate([[0], np.cumsum(dense.sum(1))])
    assert (np.diff(source) >= 0).all()
    nodes = len(dense)
    return SmallGraphs(np.concatenate([[0], np.cumsum(sizes)]), indptr, target, np.arange(nodes)[::-1].copy()), each


def dense_of(graphs: SmallGraphs) -> np.ndarray:
    """The adjacency, whose entries ascend in a row and occur once."""
    dense = np.zeros((len(graphs.row), len(graphs.row)))
    assert (graphs.indptr[0], graphs.indptr[-1]) == (0, len(graphs.indices))
    for node, (start, stop) in enumerate(zip(graphs.indptr[:-1], graphs.indptr[1:], strict=True)):
        assert (np.diff(graphs.indices[start:stop]) > 0).all()
        dense[node, graphs.indices[start:stop]] = 1
    return dense


def edges_of(graphs: SmallGraphs) -> list[set[tuple[int, int]]]:
    """The edges of every graph by the rows of features of their ends, the smaller one first."""
    found: list[set[tuple[int, int]]] = [set() for _ in range(len(graphs))]
    dense = dense_of(graphs)
    assert np.array_equal(dense, dense.T)
    assert not dense.diagonal().any()
    for a, b in np.argwhere(dense):
        graph = int(np.searchsorted(graphs.first, a, side="right")) - 1
        assert graphs.first[graph] <= b < graphs.first[graph + 1]
        found[graph].add((min(graphs.row[a], graphs.row[b]), max(graphs.row[a], graphs.row[b])))
    return found
