"""Small graphs, chosen and cut from others, against NetworkX and dense matrices; views of them, graph by graph."""

from collections import Counter
from itertools import combinations

import networkx as nx
import numpy as np
import pytest
import torch
from support.dense_graphs import operator_of
from support.drawn_graphs import SIZES, dense_of, drawn, edges_of
from support.fixtures import MakeView

from shoal.algorithms.graphs.graph_augmentation import adjacency_of, cut_up, with_other_edges, without_nodes
from shoal.algorithms.models.build import build
from shoal.algorithms.models.inputs.structure_codes import structure_codes
from shoal.storage.graph.sparse_matrix import SparseMatrix

NOTHING = np.random.default_rng(0)


@pytest.mark.parametrize("share", [0.0, 0.2, 0.5, 0.99])
def test_every_graph_loses_its_share_of_nodes(share: float) -> None:
    graphs, _ = drawn()
    before = edges_of(graphs)
    fewer = without_nodes(graphs, share, np.random.default_rng(1))
    # 0.2: of 1, 4, 6, 3, 9 and 2 nodes none, none, one, none, one and none.
    assert fewer.sizes.tolist() == [size - int(share * size) for size in SIZES]
    assert fewer.sizes.min() >= 1
    after = edges_of(fewer)
    for number in range(len(SIZES)):
        rows = graphs.row[graphs.first[number] : graphs.first[number + 1]].tolist()
        kept = fewer.row[fewer.first[number] : fewer.first[number + 1]].tolist()
        assert kept == [row for row in rows if row in kept]
        assert after[number] == {edge for edge in before[number] if set(edge) <= set(kept)}


@pytest.mark.parametrize("share", [0.0, 0.2, 0.5, 0.99])
def test_every_graph_has_a_share_of_other_edges(share: float) -> None:
    graphs, _ = drawn((1, 20, 30, 2), seed=4)
    before = edges_of(graphs)
    other = with_other_edges(graphs, share, np.random.default_rng(1))
    assert other.first.tolist() == graphs.first.tolist()
    assert other.row.tolist() == graphs.row.tolist()
    added, twice = 0, 0
    for old, new in zip(before, edges_of(other), strict=True):
        changed = int(share * len(old))
        # One that was removed may be drawn again, and one that is there, too.
        assert len(old) - changed <= len(new) <= len(old)
        assert len(old - new) <= changed
        added += len(new - old)
        twice += changed
    if share == 0:
        assert not added
    if share == 0.2:
        assert 0.25 * twice < added < twice


def test_nodes_are_drawn_evenly_and_pairs_too() -> None:
    graphs, _ = drawn((5, 5), seed=2)
    rng = np.random.default_rng(3)
    views = [without_nodes(graphs, 0.4, rng) for _ in range(1000)]
    kept = Counter(row for view in views for row in view.row.tolist())
    assert sorted(kept) == list(range(10))
    # 600 each, with a standard deviation of 16.
    assert all(abs(count - 600) < 80 for count in kept.values())
    # Of two nodes of a graph both stay in 3 of 10 draws.
    together = Counter(pair for view in views for pair in combinations(sorted(view.row[:3].tolist()), 2))
    assert all(abs(together[pair] - 300) < 80 for pair in combinations(range(5, 10), 2))


def test_added_pairs_are_drawn_evenly() -> None:
    graphs, _ = drawn((5, 6), seed=2)
    rng = np.random.default_rng(3)
    before = edges_of(graphs)[1]
    views = [edges_of(with_other_edges(graphs, 0.3, rng))[1] for _ in range(500)]
    new = Counter(edge for view in views for edge in view - before)
    possible = [pair for pair in combinations(range(6), 2) if pair not in before]
    assert sorted(new) == possible
    each = int(0.3 * len(before)) * 500 / 15
    assert all(abs(count - each) < 6 * each**0.5 for count in new.values())
    kept = Counter(edge for view in views for edge in view & before)
    low, high = min(kept.values()), max(kept.values())
    assert high - low < 0.2 * high


def test_graphs_without_edges() -> None:
    lonely = drawn((1, 1, 1))[0]
    assert edges_of(with_other_edges(lonely, 0.9, NOTHING)) == [set(), set(), set()]
    assert edges_of(without_nodes(lonely, 0.9, NOTHING)) == [set(), set(), set()]


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
def test_what_a_backbone_reads(name: str, make_view: MakeView) -> None:
    graphs, _ = drawn()
    x = np.random.default_rng(1).standard_normal((len(graphs.row), 5)).astype(np.float32)
    data = make_view(len(x), [], [0] * len(x), [0], 3, x)
    task = "graph" if name == "star" else "node"
    module = build(name, 5, 3, 0, 0.0, {"hidden": 8}, task=task)
    inner = module.backbone if name == "star" else module
    batch = graphs.batch(data, inner)
    adjacency = torch.from_numpy(dense_of(graphs)).float()
    kind = {"gcn": "symmetric", "sage": "mean", "gat": "attention"}.get(name, "sum")
    expected = torch.from_numpy(operator_of(kind, dense_of(graphs))).float()
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
