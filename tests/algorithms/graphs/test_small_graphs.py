"""Graphs chosen and cut from others, against NetworkX and dense matrices, and what a backbone reads of them."""

from collections.abc import Callable

import networkx as nx
import numpy as np
import pytest
import torch
from support.drawn_graphs import SIZES, dense_of, drawn, edges_of

from shoal.algorithms.graphs.graph_augmentation import adjacency_of, cut_up
from shoal.algorithms.models.build import build
from shoal.algorithms.models.inputs.structure_codes import structure_codes
from shoal.storage.graph.sparse_matrix import SparseMatrix
from shoal.storage.store.view import View


def test_some_graphs_in_another_order() -> None:
    graphs, each = drawn()
    assert (len(graphs), graphs.sizes.tolist()) == (6, list(SIZES))
    assert np.array_equal(np.stack([graphs.source, graphs.indices]), np.nonzero(dense_of(graphs)))
    chosen = graphs.some(np.array([4, 0, 2, 1]))
    assert chosen.sizes.tolist() == [9, 1, 6, 4]
    expected = nx.to_numpy_array(nx.disjoint_union_all([each[i] for i in (4, 0, 2, 1)]))
    np.testing.assert_array_equal(dense_of(chosen), expected)
    rows = [graphs.row[graphs.first[i] : graphs.first[i + 1]] for i in (4, 0, 2, 1)]
    assert chosen.row.tolist() == np.concatenate(rows).tolist()


def test_entries_in_any_order_and_twice() -> None:
    indptr, indices = adjacency_of(np.array([2, 0, 2, 2, 0]), np.array([1, 3, 0, 1, 1]), 5)
    assert indptr.tolist() == [0, 2, 2, 4, 4, 4]
    assert indices.tolist() == [1, 3, 0, 1]


def test_parts_keep_the_edges_inside_them() -> None:
    whole = nx.karate_club_graph()
    dense = nx.to_numpy_array(whole, weight=None)
    part = np.random.default_rng(3).permutation(np.arange(34) % 5)
    indptr = np.concatenate([[0], np.cumsum(dense.sum(1).astype(int))])
    graphs = cut_up(indptr, np.nonzero(dense)[1], part)
    assert graphs.sizes.tolist() == [7, 7, 7, 7, 6]
    edges = edges_of(graphs)
    for number in range(5):
        mine = np.flatnonzero(part == number)
        assert sorted(graphs.row[graphs.first[number] : graphs.first[number + 1]]) == mine.tolist()
        assert edges[number] == {(min(e), max(e)) for e in whole.subgraph(mine.tolist()).edges}


@pytest.mark.parametrize("name", ["gcn", "gin", "sage", "gat", "star"])
def test_what_a_backbone_reads(name: str, make_view: Callable[..., View]) -> None:
    graphs, _ = drawn()
    x = np.random.default_rng(1).standard_normal((len(graphs.row), 5)).astype(np.float32)
    data = make_view(len(x), [], [0] * len(x), [0], 3, x)
    task = "graph" if name == "star" else "node"
    module = build(name, 5, 3, 0, 0.0, {"hidden": 8}, task=task)
    inner = module.backbone if name == "star" else module
    batch = graphs.batch(data, inner)
    adjacency = torch.from_numpy(dense_of(graphs)).float()
    looped = adjacency + torch.eye(len(adjacency))
    degree, root = adjacency.sum(1), looped.sum(1).rsqrt()
    expected = {
        "gcn": root[:, None] * looped * root,
        "sage": adjacency / degree.clamp_min(1)[:, None],
        "gat": looped,
    }.get(name, adjacency)
    assert len(batch.operators) == inner.depth
    for operator in batch.operators:
        torch.testing.assert_close(operator.to_dense(), expected)
        torch.testing.assert_close(SparseMatrix(operator.transposed).to_dense(), expected.T)
    (read,) = batch.hops
    np.testing.assert_array_equal(read, x[::-1])
    assert batch.first.tolist() == graphs.first.tolist()
    assert (batch.codes_NQ is None) == (name != "star")
    if batch.codes_NQ is not None:
        assert torch.equal(batch.codes_NQ, structure_codes(adjacency.to_sparse_csr(), batch.first))
