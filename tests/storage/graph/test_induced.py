"""Parts of a graph: what the nodes of a client induce, against SciPy, and neighbours that are drawn."""

from collections.abc import Callable

import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.sparse.csgraph import breadth_first_order, connected_components
from support.induced_parts import part_of

from shoal.storage.graph.graph import Graph
from shoal.storage.graph.induced import Induced, induced, kept_entries
from shoal.storage.graph.neighbour_sampling import Drawn, draw_neighbours


def whole(graph: Graph) -> sp.csr_array:
    ones = np.ones(graph.entries, dtype=np.int8)
    return sp.csr_array((ones, graph.indices, graph.indptr), shape=(graph.nodes, graph.nodes))


def dense(part: Induced) -> np.ndarray:
    shape = (len(part.node), len(part.node))
    return sp.csr_array((np.ones(len(part.indices)), part.indices, part.indptr), shape=shape).toarray()


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 10_000), nodes=st.integers(1, 25), density=st.floats(0, 0.5), share=st.floats(0, 1))
def test_any_part_of_any_graph(
    make_graph: Callable[..., Graph], seed: int, nodes: int, density: float, share: float
) -> None:
    graph = make_graph(seed, nodes, density)
    chosen = np.flatnonzero(np.random.default_rng(seed).random(nodes) <= share)
    part = part_of(graph, chosen)
    np.testing.assert_array_equal(np.sort(part.node), chosen)
    np.testing.assert_array_equal(dense(part), whole(graph)[part.node][:, part.node].toarray())
    for row in range(len(chosen)):
        assert (np.diff(part.indices[part.indptr[row] : part.indptr[row + 1]]) > 0).all()

    # SciPy's breadth-first search, from the smallest id of every component.
    local = whole(graph)[chosen][:, chosen].tocsr()
    local.sort_indices()
    component = connected_components(local)[1] if len(chosen) else np.empty(0)
    roots = np.unique(component, return_index=True)[1]
    order = [breadth_first_order(local, root, return_predecessors=False) for root in np.sort(roots)]
    np.testing.assert_array_equal(part.node, chosen[np.concatenate(order)] if order else chosen)


def test_clients_of_one_pass_are_those_of_many(make_graph: Callable[..., Graph]) -> None:
    graph = make_graph(5, 90, 0.1)
    assignment = np.random.default_rng(5).integers(0, 4, 90).astype(np.int32)
    kept = kept_entries(graph.indptr, graph.indices, assignment)
    together = list(induced(graph.indptr, graph.indices, assignment, kept, [3, 0, 2]))
    for client, found in zip([3, 0, 2], together):
        alone = part_of(graph, np.flatnonzero(assignment == client))
        for a, b in zip((found.node, found.indptr, found.indices), (alone.node, alone.indptr, alone.indices)):
            np.testing.assert_array_equal(a, b)


def star(leaves: int) -> tuple[np.ndarray, np.ndarray]:
    """Node 0 is the neighbour of all others; the last node has none."""
    indptr = np.concatenate([[0], [leaves] * 1, leaves + np.arange(1, leaves + 1), [2 * leaves]])
    return indptr.astype(np.int32), np.concatenate([np.arange(1, leaves + 1), np.zeros(leaves)]).astype(np.int32)


@pytest.fixture
def graph() -> tuple[np.ndarray, np.ndarray]:
    upper = np.triu(np.random.default_rng(0).random((60, 60)) < 0.2, 1)
    upper[:, 7] = upper[7] = False
    matrix = sp.csr_array(upper | upper.T)
    return matrix.indptr.astype(np.int32), matrix.indices.astype(np.int32)


def neighbours(drawn: Drawn, row: int) -> list[int]:
    return drawn.nodes[drawn.indices[drawn.indptr[row] : drawn.indptr[row + 1]]].tolist()


@pytest.mark.parametrize("fanout", [-1, 1, 3, 12, 1000])
def test_every_row_hears_some_of_its_own_neighbours_once(graph: tuple[np.ndarray, np.ndarray], fanout: int) -> None:
    indptr, indices = graph
    rows = np.array([40, 7, 3, 12, 59, 0])
    drawn = draw_neighbours(indptr, indices, rows, fanout, np.random.default_rng(1))
    assert drawn.nodes[:6].tolist() == rows.tolist()
    assert len(set(drawn.nodes.tolist())) == len(drawn.nodes)
    assert set(range(6, len(drawn.nodes))) <= set(drawn.indices.tolist())
    for i, row in enumerate(rows):
        own = indices[indptr[row] : indptr[row + 1]].tolist()
        heard = neighbours(drawn, i)
        assert len(heard) == len(set(heard)) == (len(own) if fanout < 0 else min(len(own), fanout))
        assert set(heard) <= set(own)
    assert neighbours(drawn, 1) == []


def test_every_neighbour_is_as_likely() -> None:
    indptr, indices = star(10)
    rng = np.random.default_rng(2)
    counts = np.zeros(12)
    for _ in range(3000):
        counts[neighbours(draw_neighbours(indptr, indices, np.array([0]), 3, rng), 0)] += 1
    # Three of ten: 900 each, with a standard deviation of 25.
    assert np.abs(counts[1:11] - 900).max() < 125
    assert counts[0] == counts[11] == 0


def test_the_same_stream_draws_the_same(graph: tuple[np.ndarray, np.ndarray]) -> None:
    rows = np.arange(60)
    first, again, other = (draw_neighbours(*graph, rows, 4, np.random.default_rng(seed)) for seed in (5, 5, 6))
    assert all(np.array_equal(a, b) for a, b in zip(first, again))
    assert not np.array_equal(first.indices, other.indices)


def test_nothing_to_draw() -> None:
    indptr, indices = star(3)
    nobody = draw_neighbours(indptr, indices, np.empty(0, dtype=np.int64), 2, np.random.default_rng(0))
    assert [len(part) for part in nobody] == [0, 1, 0]
    alone = draw_neighbours(indptr, indices, np.array([4]), 2, np.random.default_rng(0))
    assert (alone.nodes.tolist(), alone.indptr.tolist(), len(alone.indices)) == ([4], [0, 0], 0)
