"""A graph with edges to near rows, against sets of pairs."""

import numpy as np
import pytest
import torch

from shoal.algorithms.graphs.completed_graph import completed
from shoal.algorithms.models.inputs.neighbourhood import operator_over

CPU = torch.device("cpu")


def by_sets(nodes: int, edges: set[tuple[int, int]], near: list[list[int]]) -> list[tuple[int, int]]:
    added = {(min(i, j), max(i, j)) for i, row in enumerate(near) for j in row if j >= 0}
    return sorted(edges | added)


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize(("nodes", "k", "share"), [(12, 2, 0.2), (7, 0, 0.5), (9, 3, 0.0), (1, 2, 0.0), (4, 3, 1.0)])
def test_edges_of_both_kinds_once_both_ways(nodes: int, k: int, share: float, seed: int) -> None:
    rng = np.random.default_rng(seed)
    a = np.triu(rng.random((nodes, nodes)) < share, 1)
    edges = {(int(i), int(j)) for i, j in np.argwhere(a)}
    near = [[int(j) if j != i else -1 for j in rng.integers(nodes, size=k)] for i in range(nodes)]
    both = a | a.T
    indptr = np.concatenate([[0], both.sum(1).cumsum()]).astype(np.int32)
    indices = np.nonzero(both)[1].astype(np.int32)
    graph = completed(indptr, indices, torch.tensor(near, dtype=torch.int32).reshape(nodes, k), CPU)
    wanted = by_sets(nodes, edges, near)
    assert graph.nodes == nodes
    assert [tuple(pair) for pair in graph.pairs_2M.T.tolist()] == wanted
    dense = np.zeros((nodes, nodes))
    for i, j in wanted:
        dense[i, j] = dense[j, i] = 1
    assert all(part.dtype == torch.int32 for part in graph)
    np.testing.assert_array_equal(graph.indptr, np.concatenate([[0], dense.sum(1).cumsum()]))
    np.testing.assert_array_equal(graph.indices, np.nonzero(dense)[1])
    root = 1 / np.sqrt(dense.sum(1) + 1)
    operator = operator_over("symmetric", graph.indptr.numpy(), graph.indices.numpy())
    np.testing.assert_allclose(operator.to_dense(), root[:, None] * (dense + np.eye(nodes)) * root, rtol=1e-6)
