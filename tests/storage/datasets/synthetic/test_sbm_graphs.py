"""Synthetic graphs: what is promised of sizes, degrees, communities and features, counted one graph at a time."""

from typing import Any

import numpy as np
import pytest

from shoal.storage.datasets.registry import items_ahead, load
from shoal.storage.datasets.sources.source import DataSource
from shoal.storage.errors import ShoalError
from shoal.storage.graph.graph import Graph, clean_edges

SMALL = {"graphs": 300, "nodes": 9000, "classes": 3, "degree": 6.0}


def edges_of(graph: Graph, number: int) -> tuple[int, np.ndarray]:
    """Nodes of a graph, and its edges counted from its first node, `[E, 2]`, both directions."""
    assert graph.graph_of is not None
    nodes = np.flatnonzero(graph.graph_of == number)
    rows = [(v - nodes[0], u - nodes[0]) for v in nodes for u in graph.indices[graph.indptr[v] : graph.indptr[v + 1]]]
    return len(nodes), np.array(rows, dtype=np.int64).reshape(-1, 2)


def test_graphs_are_what_was_asked_for() -> None:
    options = DataSource("sbm-graphs", **SMALL, homophily=0.9)
    graph = load(options)
    assert (graph.items, graph.nodes, graph.classes, graph.synthetic) == (300, 9000, 3, True)
    assert items_ahead(options) == 300
    assert np.bincount(graph.y).tolist() == [100, 100, 100]
    assert graph.graph_of is not None
    sizes = np.bincount(graph.graph_of)
    assert sizes.min() >= 1
    # A gamma distribution of shape 2 has a standard deviation of its mean over the root of 2.
    assert sizes.std() == pytest.approx(30 / 2**0.5, rel=0.2)
    inside, of_several, pairs = 0, 0, 0
    for number in range(300):
        size, edges = edges_of(graph, number)
        assert edges.size == 0 or 0 <= edges.min() <= edges.max() < size
        block = np.arange(size) % (graph.y[number] + 1)
        if graph.y[number]:
            inside += int((block[edges[:, 0]] == block[edges[:, 1]]).sum())
            of_several += len(edges)
        pairs += len(edges)
    assert pairs == graph.entries
    assert graph.entries / 9000 == pytest.approx(6, rel=0.15)
    assert inside / of_several == pytest.approx(0.9, abs=0.05)
    source = np.repeat(np.arange(9000), np.diff(graph.indptr))
    again = clean_edges(np.stack([source, graph.indices]), 9000, "test")
    np.testing.assert_array_equal(again[0], graph.indptr)
    np.testing.assert_array_equal(again[1], graph.indices)
    assert (again[2].self_loops, again[2].duplicates, again[2].reversed_added) == (0, 0, 0)
    assert (graph.indptr.dtype, graph.indices.dtype, graph.y.dtype) == (np.int64, np.int32, np.int64)


def test_features_show_the_class_by_the_signal() -> None:
    loud, silent = (load(DataSource("sbm-graphs", **SMALL, signal=signal)) for signal in (3.0, 0.0))
    label = loud.of_nodes(loud.y)
    centres = np.array([(loud.x - silent.x)[label == k].mean(0) for k in range(3)])
    np.testing.assert_allclose(loud.x - silent.x, centres[label], atol=1e-3)
    np.testing.assert_allclose(np.linalg.norm(centres, axis=1), 3.0, rtol=1e-3)
    assert silent.x.std() == pytest.approx(1, abs=0.02)


def test_small_graphs_are_full_and_lonely_nodes_have_no_edge() -> None:
    full = load(DataSource("sbm-graphs", graphs=20, nodes=80, classes=2, degree=70.0, homophily=0.5))
    assert full.graph_of is not None
    sizes = np.bincount(full.graph_of)
    for number in range(20):
        assert len(edges_of(full, number)[1]) == sizes[number] * (sizes[number] - 1)
    lonely = load(DataSource("sbm-graphs", graphs=50, nodes=50, classes=2))
    assert lonely.entries == 0


def test_the_same_options_are_the_same_graphs() -> None:
    one, again, other = (load(DataSource("sbm-graphs", **SMALL, seed=seed)) for seed in (1, 1, 2))
    for field in ("indptr", "indices", "x", "y", "graph_of"):
        np.testing.assert_array_equal(getattr(one, field), getattr(again, field))
    assert (one.y != other.y).any()


@pytest.mark.parametrize(
    ("changed", "line"),
    [
        ({"classes": 1}, "data.options.classes: 1 must be at least 2"),
        ({"graphs": 2}, r"data.options.graphs: 2 must be at least data.options.classes \(3\)"),
        ({"nodes": 299}, r"data.options.nodes: 299 must be at least one a graph \(300\)"),
        ({"features": 0}, "data.options.features: 0 must be at least 1"),
        ({"degree": -1.0}, "data.options.degree: -1.0 must be at least 0"),
        ({"homophily": 1.5}, "data.options.homophily: 1.5 must be in 0..1"),
        ({"signal": 1e7}, "data.options.signal: 10000000.0 must be in 0..1e"),
        ({"nodes": 2**31 - 1, "features": 2**20}, "data.options.nodes: 2147483647 of 1048576 features: it needs "),
    ],
)
def test_options_out_of_range(changed: dict[str, Any], line: str) -> None:
    with pytest.raises(ShoalError, match=f"^{line}"):
        load(DataSource("sbm-graphs", **{**SMALL, **changed}))
