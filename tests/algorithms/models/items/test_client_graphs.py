"""Batches cut from a client's graphs against PyG's batches of these graphs."""

from collections.abc import Callable, Sequence

import numpy as np
import pytest
import torch
from support.dense_graphs import operator_of
from support.made_models import graphs_of
from torch_geometric.data import Batch, Data

from shoal.algorithms.models.build import build
from shoal.algorithms.models.inputs.neighbourhood import GraphBatch
from shoal.algorithms.models.items.client_graphs import ClientGraphs
from shoal.storage.shards.view import View

FEATURES, CLASSES = 5, 3
GraphView = Callable[..., View]
# What each multiplies by.
COUPLED = {"gin": "sum", "sage": "mean", "gcn": "symmetric", "gat": "attention"}
every_operator = pytest.mark.parametrize("name", COUPLED)


def graphs_for(view: View, name: str) -> ClientGraphs:
    return graphs_of(view, build(name, FEATURES, CLASSES, 2, 0.0, {"hidden": 8}, task="graph"))


def dense(operator: str, graphs: Sequence[Data]) -> np.ndarray:
    """The matrix of some graphs by its definition."""
    batch = Batch.from_data_list(list(graphs))
    a = np.zeros((batch.num_nodes, batch.num_nodes))
    a[tuple(batch.edge_index.numpy())] = 1
    return operator_of(operator, a)


def assert_is(batch: GraphBatch, operator: str, graphs: Sequence[Data]) -> None:
    expected = Batch.from_data_list(list(graphs))
    assert batch.first.tolist() == expected.ptr.tolist()
    (x,) = batch.hops
    torch.testing.assert_close(x, expected.x, rtol=0, atol=0)
    first, second = batch.operators
    assert first is second
    matrix = dense(operator, graphs)
    np.testing.assert_allclose(first.to_dense(), matrix, rtol=1e-6)
    np.testing.assert_allclose(first.transposed.to_dense(), matrix.T, rtol=1e-6)
    for part in first.parts()[:2]:
        assert part.dtype == torch.int32


@every_operator
@pytest.mark.parametrize("chosen", [[0], [1], [2], [4, 0, 3], [2, 1], [3, 4], [0, 1, 2, 3, 4]])
def test_some_are_those_of_pyg(graph_view: GraphView, pyg_graphs: list[Data], name: str, chosen: list[int]) -> None:
    """In any order, a graph of one node and one without edges among them."""
    batch = graphs_for(graph_view(pyg_graphs), name).some(torch.tensor(chosen))
    assert_is(batch, COUPLED[name], [pyg_graphs[g] for g in chosen])


@every_operator
def test_parts_and_all(graph_view: GraphView, pyg_graphs: list[Data], name: str) -> None:
    view = graph_view(pyg_graphs)
    graphs = graphs_for(view, name)
    assert_is(graphs.all(), COUPLED[name], pyg_graphs)
    for part, rows in {"train": [0, 1], "val": [2], "test": [3, 4]}.items():
        assert_is(graphs.part(part), COUPLED[name], [pyg_graphs[g] for g in rows])
        assert graphs.part(part).hops[0] is graphs.part(part).hops[0]  # kept
    (whole,) = graphs.successive(1)
    assert_is(whole, COUPLED[name], pyg_graphs)
    one = graph_view(pyg_graphs[1:3])
    assert graphs_for(one, name).part("train").first is one.graph_ptr


@pytest.mark.parametrize(("rows", "wanted"), [(1, [1, 1, 1, 1, 1]), (5, [2, 2, 1]), (8, [3, 2]), (99, [5])])
def test_successive_rows_of_hops(graph_view: GraphView, pyg_graphs: list[Data], rows: int, wanted: list[int]) -> None:
    """Whole graphs of 4, 1, 3, 2 and 5 nodes; one with more nodes than are asked for is not divided."""
    view = graph_view(pyg_graphs, hops=2)
    batches = list(graphs_for(view, "gamlp").successive(rows))
    assert [len(batch.first) - 1 for batch in batches] == wanted
    for k in range(3):
        assert torch.equal(torch.cat([batch.hops[k] for batch in batches]), view.hop(k))
    assert torch.cat([batch.first.diff() for batch in batches]).tolist() == [4, 1, 3, 2, 5]
    assert all(batch.first[0] == 0 and not batch.operators for batch in batches)


def test_some_rows_of_hops(graph_view: GraphView, pyg_graphs: list[Data]) -> None:
    view = graph_view(pyg_graphs, hops=2)
    graphs = graphs_for(view, "gamlp")
    batch = graphs.some(torch.tensor([3, 0]))
    for k, rows in enumerate(batch.hops):
        assert torch.equal(rows, view.hop(k)[[8, 9, 0, 1, 2, 3]])
    assert batch.first.tolist() == [0, 2, 6]
    assert [len(rows) for rows in graphs.part("test").hops] == [7, 7, 7]


@every_operator
def test_standalone_graphs_of_one_node(graph_view: GraphView, pyg_graphs: list[Data], name: str) -> None:
    """As in node tasks: what a node hears has its own features."""
    x = torch.randn(3, FEATURES)
    batch = graphs_for(graph_view(pyg_graphs), name).standalone(x)
    assert batch.first.tolist() == [0, 1, 2, 3]
    assert torch.equal(batch.hops[0], x)
    np.testing.assert_allclose(batch.operators[0].to_dense(), np.eye(3))
