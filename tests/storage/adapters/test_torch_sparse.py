"""Adjacencies of torch_sparse itself, in and out: `make test-adapters` compiles it."""

import numpy as np
import pytest
import torch
from torch_geometric.data import Data

from shoal.storage.adapters import from_pyg, from_sparse_tensor, to_sparse_tensor

torch_sparse = pytest.importorskip("torch_sparse", reason="no build for this torch", exc_type=ImportError)


def test_an_adjacency_goes_out_and_comes_back() -> None:
    row, col, weight = torch.tensor([1, 2, 0, 3]), torch.tensor([0, 1, 2, 0]), torch.tensor([1.0, 2, 3, 4])
    given = torch_sparse.SparseTensor(row=row, col=col, value=weight, sparse_sizes=(5, 5))
    x, y = torch.arange(10.0).view(5, 2), torch.tensor([0, 1, 0, 1, -1])
    graph = from_sparse_tensor(given, x, y)
    assert (graph.nodes, graph.entries, graph.edge_weight.sum()) == (5, 8, 20)  # type: ignore[union-attr]
    out = to_sparse_tensor(graph)
    assert isinstance(out, torch_sparse.SparseTensor)
    again = from_sparse_tensor(out, x, y)
    of_pyg = from_pyg(Data(x=x, y=y, adj_t=given.t()))
    for other in (again, of_pyg):
        for name in ("indptr", "indices", "x", "y", "edge_weight"):
            np.testing.assert_array_equal(getattr(other, name), getattr(graph, name), err_msg=name)
