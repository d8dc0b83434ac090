"""Clients that differ in features, in homophily, or in size: by how much, and that skew turns it from none to all."""

from dataclasses import replace

import numpy as np
import pytest
import scipy.sparse as sp
from support.errors import refused

from shoal.partition.methods.by_label import by_random
from shoal.partition.methods.by_order import _first_component, _same_neighbours
from shoal.partition.methods.cover import sizes_of
from shoal.partition.methods.options import PartitionOptions
from shoal.partition.partitioning import partition
from shoal.partition.quality import quality
from shoal.storage.graph.from_arrays import graph_from_arrays
from shoal.storage.graph.graph import Graph

NODES, CLIENTS = 1200, 6


def block_graph(seed: int = 0) -> Graph:
    """Communities of 20 nodes on a ring, each with its own features; in every second one neighbours differ in class."""
    rng = np.random.default_rng(seed)
    community = np.arange(NODES) // 20
    y = np.where(community % 2 == 0, community % 3, np.arange(NODES) % 3)
    inside = rng.integers(20, size=(2, 6 * NODES)) + 20 * np.tile(rng.integers(NODES // 20, size=6 * NODES), (2, 1))
    ring = np.stack([np.arange(NODES), (np.arange(NODES) + 1) % NODES])
    level = rng.permutation(NODES // 20)[community] / 10
    x = (np.outer(level, [3, 1, 0, 0]) + 0.1 * rng.standard_normal((NODES, 4))).astype(np.float32)
    arrays = {"edge_index": np.concatenate([inside, ring], 1), "x": x, "y": y}
    return graph_from_arrays("blocks", arrays, {name: name for name in arrays})


def homophily_of(graph: Graph, client_N: np.ndarray) -> np.ndarray:
    source = np.repeat(np.arange(graph.nodes), np.diff(graph.indptr))
    kept = client_N[source] == client_N[graph.indices]
    same = graph.y[source] == graph.y[graph.indices]
    counts = [np.bincount(client_N[source], weights=of, minlength=CLIENTS) for of in (kept & same, kept)]
    return counts[0] / counts[1]


@pytest.mark.parametrize("zipf", [0.0, 0.7, 2.0, 10.0])
def test_sizes_follow_zipf(zipf: float) -> None:
    sizes = sizes_of(10_000, 8, zipf)
    assert sizes.sum() == 10_000
    assert sizes.min() >= 1
    expected = np.arange(1, 9) ** -zipf / (np.arange(1, 9) ** -zipf).sum() * (10_000 - 8) + 1
    assert np.abs(sizes - expected).max() <= 1
    assert sizes_of(8, 8, zipf).tolist() == [1] * 8


def test_random_clients_have_these_sizes() -> None:
    graph = block_graph()
    options = PartitionOptions("random", CLIENTS, seed=3)
    even, uneven = (by_random(graph, replace(options, zipf=zipf)) for zipf in (0.0, 1.0))
    assert np.bincount(even).tolist() == [200] * CLIENTS
    assert np.bincount(uneven).tolist() == sizes_of(NODES, CLIENTS, 1.0).tolist()


def test_the_component_is_that_of_a_singular_decomposition() -> None:
    graph = block_graph()
    for x in (graph.x, sp.csr_array(graph.x)):
        component, mean = _first_component(replace(graph, x=x))
        expected = np.linalg.svd(graph.x - graph.x.mean(0), full_matrices=False)[2][0]
        assert abs(component @ expected) == pytest.approx(1, abs=1e-5)
        np.testing.assert_allclose(mean, graph.x.mean(0), atol=1e-5)


def test_same_neighbours_by_hand() -> None:
    arrays = {"edge_index": np.array([[0, 0, 1], [1, 2, 2]]), "x": np.eye(4, dtype=np.float32), "y": [0, 0, 1, -1]}
    arrays["edge_index"] = np.concatenate([arrays["edge_index"], [[2], [3]]], 1)
    graph = graph_from_arrays("four", {**arrays, "y": np.array(arrays["y"])}, {name: name for name in arrays})
    same, labelled = _same_neighbours(graph)
    assert (same.tolist(), labelled.tolist()) == ([1, 1, 0, 0], [2, 2, 2, 0])


@pytest.mark.parametrize("method", ["features", "homophily"])
def test_skew_goes_from_none_to_all(method: str) -> None:
    graph = block_graph()
    spread = []
    for skew in (0.0, 0.6, 1.0):
        client_N = partition(graph, PartitionOptions(method, CLIENTS, skew=skew))
        assert quality(graph, client_N, CLIENTS).balance < 1.15
        assert quality(graph, client_N, CLIENTS).cut_fraction < 0.45
        value = graph.x[:, 0] if method == "features" else None
        of_client = (
            homophily_of(graph, client_N) if value is None else np.bincount(client_N, value) / np.bincount(client_N)
        )
        spread.append(of_client.std())
    assert spread[0] < spread[1] < spread[2]
    assert spread[2] > 2 * spread[0]


def test_clients_in_order_may_have_sizes_by_zipf() -> None:
    graph = block_graph()
    client_N = partition(graph, PartitionOptions("features", CLIENTS, zipf=1.0))
    # Parts are dealt whole.
    assert np.abs(np.bincount(client_N) - sizes_of(NODES, CLIENTS, 1.0)).max() < NODES / 40


def test_small_graphs_are_dealt_by_features() -> None:
    rng, count = np.random.default_rng(0), 60
    graph_of = np.repeat(np.arange(count), 3)
    level = rng.permutation(count)
    x = np.stack([level[graph_of], np.ones(3 * count)], 1).astype(np.float32)
    edges = np.stack([np.arange(3 * count), 3 * graph_of + (np.arange(3 * count) + 1) % 3])
    arrays = {"edge_index": edges, "x": x, "y": np.arange(count) % 2, "graph": graph_of}
    graph = graph_from_arrays("graphs", arrays, {name: name for name in arrays})
    client = partition(graph, PartitionOptions("features", 3))[::3]
    rank = client[np.argsort(level)]
    assert (np.diff(rank) >= 0).all() or (np.diff(rank) <= 0).all()
    assert np.bincount(client).tolist() == [20, 20, 20]
    # However unequal graphs and clients are, each client has one.
    sizes = np.array([100, 5, 5, 4, 4, 4])
    graph_of = np.repeat(np.arange(6), sizes)
    arrays = {"edge_index": np.zeros((2, 0), np.int64), "y": np.arange(6) % 2, "graph": graph_of}
    arrays["x"] = graph_of[:, None].astype(np.float32)
    graph_of_sizes = graph_from_arrays("sizes", arrays, {name: name for name in arrays})
    for zipf in (0.0, 3.0):
        of_nodes = partition(graph_of_sizes, PartitionOptions("features", 5, zipf=zipf))
        assert set(of_nodes) == set(range(5))
        assert all(len(set(of_nodes[graph_of == number])) == 1 for number in range(6))
    with refused("partition.method", says="homophily divides nodes"):
        partition(graph, PartitionOptions("homophily", 3))
    with refused("partition.method", says="homophily divides by labels"):
        partition(replace(block_graph(), classes=0), PartitionOptions("homophily", 3))
