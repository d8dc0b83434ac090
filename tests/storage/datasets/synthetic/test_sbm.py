"""Synthetic graphs, one and many: what was asked for is measured on the result."""

import dataclasses
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
from support.errors import refused

from shoal.storage.datasets.registry import items_ahead, load
from shoal.storage.datasets.sources.source import DataSource
from shoal.storage.graph.graph import Graph, clean_edges

SMALL = DataSource("sbm", nodes=3000, classes=5, blocks=20)
MANY = DataSource("sbm-graphs", graphs=300, nodes=9000, classes=3, degree=6.0)


def nearest_mean_accuracy(x: np.ndarray, y: np.ndarray) -> float:
    """Share of the second half of the nodes that lie nearest to their class's mean over the first half."""
    half = len(y) // 2
    means = np.stack([x[:half][y[:half] == c].mean(axis=0) for c in range(int(y.max()) + 1)])
    distances = ((x[half:, None, :] - means[None]) ** 2).sum(axis=2)
    return float((distances.argmin(axis=1) == y[half:]).mean())


def adjacency(graph: Graph) -> sp.csr_array:
    ones = np.ones(graph.entries, dtype=np.float32)
    return sp.csr_array((ones, graph.indices, graph.indptr), shape=(graph.nodes, graph.nodes))


@pytest.mark.parametrize("options", [SMALL, MANY], ids=["one", "many"])
def test_same_seed_same_graph_other_seed_other_graph(options: DataSource) -> None:
    first, again, other = load(options), load(options), load(dataclasses.replace(options, seed=1))
    for field in ("indptr", "indices", "x", "y"):
        assert np.array_equal(getattr(first, field), getattr(again, field))
        assert not np.array_equal(getattr(first, field), getattr(other, field))


def test_features_do_not_depend_on_the_edges() -> None:
    sparse, dense = load(dataclasses.replace(SMALL, degree=4)), load(dataclasses.replace(SMALL, degree=20))
    assert np.array_equal(sparse.y, dense.y)
    assert np.array_equal(sparse.x, dense.x)


@pytest.mark.parametrize("asked", [0.0, 0.8, 1.0])
@pytest.mark.parametrize("blocks", [None, 40])
def test_homophily_degree_and_shapes_are_as_asked(asked: float, blocks: int | None) -> None:
    graph = load(dataclasses.replace(SMALL, homophily=asked, blocks=blocks))
    sources = np.repeat(np.arange(graph.nodes), np.diff(graph.indptr))
    assert (graph.y[sources] == graph.y[graph.indices]).mean() == pytest.approx(asked, abs=0.01)
    assert graph.entries / graph.nodes == pytest.approx(10, abs=0.1)
    assert (graph.nodes, graph.features, graph.classes) == (3000, 32, 5)
    assert (graph.x.dtype, graph.y.dtype) == (np.float32, np.int64)
    assert set(np.unique(graph.y)) == set(range(5))
    assert graph.synthetic


def test_a_community_of_one_class_is_cut_off_without_edges_across() -> None:
    graph = load(dataclasses.replace(SMALL, homophily=1.0, degree=20))
    count, community = sp.csgraph.connected_components(adjacency(graph))
    assert count == 20
    sizes = np.bincount(community)
    assert sizes.max() > 3 * sizes.min()
    assert all(len(np.unique(graph.y[community == i])) == 1 for i in range(count))


def test_neighbours_tell_more_than_features() -> None:
    graph = load(DataSource("sbm", nodes=4000))
    averaged = (adjacency(graph) @ graph.x + graph.x) / (np.diff(graph.indptr) + 1)[:, None]
    raw, propagated = nearest_mean_accuracy(graph.x, graph.y), nearest_mean_accuracy(averaged, graph.y)
    assert 0.15 < raw < 0.6
    assert propagated > raw + 0.2
    silent = load(DataSource("sbm", nodes=4000, signal=0))
    assert nearest_mean_accuracy(silent.x, silent.y) < 0.15


def test_communities_too_small_for_their_edges_leave_some_out() -> None:
    assert load(DataSource("sbm", nodes=8, classes=4, degree=4, homophily=1.0)).entries == 8


def edges_of(graph: Graph, number: int) -> tuple[int, np.ndarray]:
    """Nodes of a graph, and its edges counted from its first node, `[E, 2]`, both directions."""
    nodes = np.flatnonzero(graph.graph_of == number)
    rows = [(v - nodes[0], u - nodes[0]) for v in nodes for u in graph.indices[graph.indptr[v] : graph.indptr[v + 1]]]
    return len(nodes), np.array(rows, dtype=np.int64).reshape(-1, 2)


def test_many_graphs_are_what_was_asked_for() -> None:
    options = dataclasses.replace(MANY, homophily=0.9)
    graph = load(options)
    assert (graph.items, graph.nodes, graph.classes, graph.synthetic) == (items_ahead(options), 9000, 3, True)
    assert np.bincount(graph.y).tolist() == [100, 100, 100]
    sizes = np.bincount(graph.graph_of)
    assert sizes.min() >= 1
    # A gamma distribution of shape 2 has a standard deviation of its mean over the root of 2.
    assert sizes.std() == pytest.approx(30 / 2**0.5, rel=0.2)
    inside, of_several = 0, 0
    for number in range(300):
        size, edges = edges_of(graph, number)
        assert edges.size == 0 or 0 <= edges.min() <= edges.max() < size
        block = np.arange(size) % (graph.y[number] + 1)
        if graph.y[number]:
            inside += int((block[edges[:, 0]] == block[edges[:, 1]]).sum())
            of_several += len(edges)
    assert graph.entries / 9000 == pytest.approx(6, rel=0.15)
    assert inside / of_several == pytest.approx(0.9, abs=0.05)
    source = np.repeat(np.arange(9000), np.diff(graph.indptr))
    indptr, indices, cleaning = clean_edges(np.stack([source, graph.indices]), 9000, "test")
    np.testing.assert_array_equal(indptr, graph.indptr)
    np.testing.assert_array_equal(indices, graph.indices)
    assert (cleaning.self_loops, cleaning.duplicates, cleaning.reversed_added) == (0, 0, 0)
    assert (graph.indptr.dtype, graph.indices.dtype, graph.y.dtype) == (np.int64, np.int32, np.int64)


def test_features_of_many_show_the_class_by_the_signal() -> None:
    loud, silent = (load(dataclasses.replace(MANY, signal=signal)) for signal in (3.0, 0.0))
    label = loud.of_nodes(loud.y)
    centres = np.array([(loud.x - silent.x)[label == k].mean(0) for k in range(3)])
    np.testing.assert_allclose(loud.x - silent.x, centres[label], atol=1e-3)
    np.testing.assert_allclose(np.linalg.norm(centres, axis=1), 3.0, rtol=1e-3)
    assert silent.x.std() == pytest.approx(1, abs=0.02)


def test_small_graphs_are_full_and_lonely_nodes_have_no_edge() -> None:
    full = load(DataSource("sbm-graphs", graphs=20, nodes=80, classes=2, degree=70.0, homophily=0.5))
    sizes = np.bincount(full.graph_of)
    assert full.entries == (sizes * (sizes - 1)).sum()
    assert load(DataSource("sbm-graphs", graphs=50, nodes=50, classes=2)).entries == 0


@pytest.mark.parametrize(
    ("options", "key", "value"),
    [
        *((SMALL, *changed) for changed in (
            ("nodes", 39), ("classes", 1), ("blocks", 4), ("features", 0), ("degree", -1.0), ("degree", 3000.0),
            ("homophily", 1.1), ("homophily", float("nan")), ("signal", -1.0), ("seed", -1))),
        *((MANY, *changed) for changed in (
            ("classes", 1), ("graphs", 2), ("nodes", 299), ("features", 0), ("degree", -1.0), ("homophily", 1.5),
            ("signal", 1e7))),
    ],
)  # fmt: skip
def test_options_out_of_range_are_refused(options: DataSource, key: str, value: Any) -> None:
    with refused(f"{'data' if options is SMALL else 'data.options'}.{key}", says=f"{value} must be "):
        load(dataclasses.replace(options, **{key: value}))


def test_more_than_the_memory_is_refused() -> None:
    with refused("data.options.nodes", says="it needs "):
        load(dataclasses.replace(MANY, nodes=2**31 - 1, features=2**20))
