"""Structure codes by hand on the smallest graphs, and against powers of dense matrices."""

from collections.abc import Sequence

import numpy as np
import pytest
import torch
from support.dense_graphs import join
from torch import Tensor

from shoal.algorithms.models.inputs.structure_codes import DEGREES, STEPS, structure_codes
from shoal.storage.graph.graph import clean_edges

Graph = tuple[int, Sequence[tuple[int, int]]]
PATH: Graph = 3, [(0, 1), (1, 2)]
TRIANGLE: Graph = 3, [(0, 1), (1, 2), (2, 0)]
ALONE: Graph = 1, []


def codes_of(graphs: Sequence[Graph]) -> Tensor:
    first = np.cumsum([0, *(nodes for nodes, _ in graphs)])
    edges = [(a + low, b + low) for low, (_, pairs) in zip(first, graphs) for a, b in pairs]
    indptr, indices, _ = clean_edges(np.array(edges, dtype=np.int64).reshape(-1, 2).T, int(first[-1]), "test")
    starts, columns = torch.from_numpy(indptr).int(), torch.from_numpy(indices).int()
    adjacency = torch.sparse_csr_tensor(starts, columns, torch.ones(len(columns)), size=(first[-1], first[-1]))
    return structure_codes(adjacency, torch.from_numpy(first))


def one_hot(degree: int) -> list[float]:
    return [float(column == degree - 1) for column in range(DEGREES)]


def near(found: Tensor, expected: Sequence[float]) -> None:
    torch.testing.assert_close(found, torch.tensor(expected))


def test_triangle() -> None:
    """(P^k)_vv = 1/3 + 2/3 (-1/2)^k."""
    for row in codes_of([TRIANGLE]):
        near(row, [1 / 3 + 2 / 3 * (-0.5) ** k for k in range(1, 17)] + one_hot(2))
        near(row[:4], [0.0, 0.5, 0.25, 0.375])


@pytest.mark.parametrize("graphs", [[ALONE], [ALONE, PATH, ALONE], [(4, [])]])
def test_nodes_without_edges_have_zeros(graphs: list[Graph]) -> None:
    codes = codes_of(graphs)
    assert not codes[0].any()
    assert not codes[-1].any()
    if len(graphs) == 3:
        assert torch.equal(codes[1:4], codes_of([PATH]))


@pytest.mark.parametrize("sizes", [[5, 12, 1, 7], [64, 3, 65], [130, 2, 90, 64, 1, 129]])
def test_dense_powers(sizes: list[int]) -> None:
    """Of graphs of all sizes behind one another, each for itself."""
    rng = np.random.default_rng(len(sizes))
    graphs: list[Graph] = [(n, np.argwhere(np.triu(rng.random((n, n)) < max(0.15, 3 / n), 1)).tolist()) for n in sizes]
    expected = []
    for n, pairs in graphs:
        a = join(n, pairs)
        p = a / np.maximum(a.sum(0), 1)
        power = np.eye(n)
        walks = np.zeros((n, STEPS))
        for k in range(STEPS):
            power = p @ power
            walks[:, k] = power.diagonal()
        degrees = np.zeros((n, DEGREES))
        for v, degree in enumerate(a.sum(1).astype(int)):
            if degree:
                degrees[v, min(degree, DEGREES) - 1] = 1
        expected.append(np.concatenate([walks, degrees], axis=1))
    found = codes_of(graphs)
    np.testing.assert_allclose(found.numpy(), np.concatenate(expected), rtol=1e-4, atol=1e-6)
    assert found[:, 2].any()
