"""Views of small graphs, graph by graph from what is left of them."""

from collections import Counter
from itertools import combinations

import numpy as np
import pytest
from support.drawn_graphs import SIZES, drawn, edges_of

from shoal.algorithms.graphs.graph_augmentation import with_other_edges, without_nodes

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
    views = [edges_of(with_other_edges(graphs, 0.3, rng))[1] for _ in range(1500)]
    new = Counter(edge for view in views for edge in view - before)
    possible = [pair for pair in combinations(range(6), 2) if pair not in before]
    assert sorted(new) == possible
    each = int(0.3 * len(before)) * 1500 / 15
    assert all(abs(count - each) < 6 * each**0.5 for count in new.values())
    kept = Counter(edge for view in views for edge in view & before)
    low, high = min(kept.values()), max(kept.values())
    assert high - low < 0.1 * high


def test_the_same_stream_draws_the_same_and_leaves_the_graphs() -> None:
    graphs, _ = drawn()
    before = edges_of(graphs)
    for alter in (without_nodes, with_other_edges):
        one, two, three = (alter(graphs, 0.5, np.random.default_rng(seed)) for seed in (1, 1, 2))
        assert edges_of(one) == edges_of(two) != edges_of(three)
    assert edges_of(graphs) == before


def test_graphs_without_edges() -> None:
    lonely = drawn((1, 1, 1))[0]
    assert edges_of(with_other_edges(lonely, 0.9, NOTHING)) == [set(), set(), set()]
    assert edges_of(without_nodes(lonely, 0.9, NOTHING)) == [set(), set(), set()]
