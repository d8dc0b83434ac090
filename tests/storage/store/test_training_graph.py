"""The graph of training nodes is that of a shard of these alone, and the others leave no trace in it."""

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shoal.storage.graph.graph import Graph
from shoal.storage.graph.induced import Induced, induced, kept_entries
from shoal.storage.store.shard import Shard, training_graph


def part_of(graph: Graph, nodes: np.ndarray) -> Induced:
    assignment = np.ones(graph.nodes, dtype=np.int32)
    assignment[nodes] = 0
    kept = kept_entries(graph.indptr, graph.indices, assignment)
    return next(induced(graph.indptr, graph.indices, assignment, kept, [0]))


def shard_of(graph: Graph, nodes: np.ndarray) -> Shard:
    part = part_of(graph, nodes)
    label, x = np.zeros(len(nodes), dtype=np.int32), np.zeros((len(nodes), 1), dtype=np.float32)
    return Shard(0, part.node, label, part.indptr.astype(np.int32), part.indices, x)


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 10_000), nodes=st.integers(1, 25), density=st.floats(0, 0.5), share=st.floats(0, 1))
def test_as_if_the_client_had_no_other_node(
    make_graph: Callable[..., Graph], seed: int, nodes: int, density: float, share: float
) -> None:
    graph = make_graph(seed, nodes, density)
    part = np.random.default_rng(seed).choice(3, size=nodes)
    shard = shard_of(graph, np.flatnonzero(part < 2))
    train = np.flatnonzero(part[shard.node] == 0).astype(np.int32)
    found, row = training_graph(shard, train)
    alone = part_of(graph, np.flatnonzero(part == 0))
    np.testing.assert_array_equal(found.node, alone.node)
    np.testing.assert_array_equal(found.indptr, alone.indptr)
    np.testing.assert_array_equal(found.indices, alone.indices)
    np.testing.assert_array_equal(shard.node[row], found.node)
    assert (found.indptr.dtype, found.indices.dtype, row.dtype) == (np.int64, np.int32, np.int64)


@pytest.mark.parametrize("nodes", [0, 3])
def test_nobody_trains(nodes: int) -> None:
    empty = np.zeros(0, dtype=np.int32)
    x = np.zeros((nodes, 1), dtype=np.float32)
    shard = Shard(0, np.arange(nodes), np.zeros(nodes, dtype=np.int32), np.zeros(nodes + 1, dtype=np.int32), empty, x)
    found, row = training_graph(shard, empty)
    assert (len(found.node), found.indptr.tolist(), len(found.indices), len(row)) == (0, [0], 0, 0)
