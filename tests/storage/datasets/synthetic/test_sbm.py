"""The synthetic graph: what was asked for is measured on the result."""

import dataclasses
import time

import numpy as np
import pytest
import scipy.sparse as sp

from shoal.storage.datasets.registry import load
from shoal.storage.datasets.sources.source import DataSource
from shoal.storage.errors import ShoalError
from shoal.storage.graph.graph import Graph

SMALL = DataSource("sbm", nodes=3000, classes=5, blocks=20)


def homophily(graph: Graph) -> float:
    sources = np.repeat(np.arange(graph.nodes), np.diff(graph.indptr))
    return float((graph.y[sources] == graph.y[graph.indices]).mean())


def nearest_mean_accuracy(x: np.ndarray, y: np.ndarray) -> float:
    """Share of the second half of the nodes that lie nearest to their class's mean over the first half."""
    half = len(y) // 2
    means = np.stack([x[:half][y[:half] == c].mean(axis=0) for c in range(int(y.max()) + 1)])
    distances = ((x[half:, None, :] - means[None]) ** 2).sum(axis=2)
    return float((distances.argmin(axis=1) == y[half:]).mean())


def test_same_seed_same_graph_other_seed_other_graph() -> None:
    first, again, other = load(SMALL), load(SMALL), load(dataclasses.replace(SMALL, seed=1))
    for field in ("indptr", "indices", "x", "y"):
        assert np.array_equal(getattr(first, field), getattr(again, field))
        assert not np.array_equal(getattr(first, field), getattr(other, field))


def test_features_do_not_depend_on_the_edges() -> None:
    sparse, dense = load(dataclasses.replace(SMALL, degree=4)), load(dataclasses.replace(SMALL, degree=20))
    assert np.array_equal(sparse.y, dense.y)
    assert np.array_equal(sparse.x, dense.x)


@pytest.mark.parametrize("asked", [0.0, 0.5, 0.8, 1.0])
@pytest.mark.parametrize("blocks", [None, 40])
def test_homophily_degree_and_shapes_are_as_asked(asked: float, blocks: int | None) -> None:
    graph = load(dataclasses.replace(SMALL, homophily=asked, blocks=blocks))
    assert homophily(graph) == pytest.approx(asked, abs=0.01)
    assert graph.entries / graph.nodes == pytest.approx(10, abs=0.1)
    assert (graph.nodes, graph.features, graph.classes) == (3000, 32, 5)
    assert (graph.x.dtype, graph.y.dtype) == (np.float32, np.int64)
    assert set(np.unique(graph.y)) == set(range(5))
    assert graph.synthetic


def test_a_community_of_one_class_is_cut_off_without_edges_across() -> None:
    graph = load(dataclasses.replace(SMALL, homophily=1.0, degree=20))
    ones = np.ones(graph.entries)
    adjacency = sp.csr_array((ones, graph.indices, graph.indptr), shape=(graph.nodes, graph.nodes))
    count, community = sp.csgraph.connected_components(adjacency)
    assert count == 20
    sizes = np.bincount(community)
    assert sizes.max() > 3 * sizes.min()
    assert all(len(np.unique(graph.y[community == i])) == 1 for i in range(count))


def test_neighbours_tell_more_than_features() -> None:
    graph = load(DataSource("sbm", nodes=4000))
    ones = np.ones(graph.entries, dtype=np.float32)
    adjacency = sp.csr_array((ones, graph.indices, graph.indptr), shape=(graph.nodes, graph.nodes))
    averaged = (adjacency @ graph.x + graph.x) / (np.diff(graph.indptr) + 1)[:, None]
    raw, propagated = nearest_mean_accuracy(graph.x, graph.y), nearest_mean_accuracy(averaged, graph.y)
    assert 0.15 < raw < 0.6
    assert propagated > raw + 0.2
    silent = load(DataSource("sbm", nodes=4000, signal=0))
    assert nearest_mean_accuracy(silent.x, silent.y) < 0.15


def test_communities_too_small_for_their_edges_leave_some_out() -> None:
    graph = load(DataSource("sbm", nodes=8, classes=4, degree=4, homophily=1.0))
    assert graph.entries == 8


def test_is_made_by_array_operations() -> None:
    """A hundred thousand nodes cost as much as five sorts of eight million numbers at most, about a second."""
    values = np.random.default_rng(0).random(8_000_000)
    start = time.perf_counter()
    np.sort(values, kind="stable")
    unit = time.perf_counter() - start
    start = time.perf_counter()
    load(DataSource("sbm", nodes=100_000, blocks=100))
    assert time.perf_counter() - start < 5 * unit


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("nodes", 39), ("classes", 1), ("blocks", 4), ("features", 0), ("degree", -1.0),
        ("degree", 3000.0), ("homophily", 1.1), ("homophily", float("nan")), ("signal", -1.0), ("seed", -1),
    ],
)  # fmt: skip
def test_refuses_by_key(key: str, value: float) -> None:
    with pytest.raises(ShoalError, match=rf"^data\.{key}: {value} must be "):
        load(dataclasses.replace(SMALL, **{key: value}))
