"""Weights of edges against loops over edges in a dict, and over dense matrices."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.errors import refused

from shoal.storage.graph.edge_weights import clean_weights, degrees, weights_among
from shoal.storage.graph.graph import clean_edges
from shoal.storage.graph.induced import induced, kept_entries

NODES = 12


def drawn(seed: int, edges: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Edges with loops and doubles, each either way, their weights, and the weights as a dense matrix without loops."""
    rng = np.random.default_rng(seed)
    edge_index = rng.integers(NODES, size=(2, edges))
    upper = np.triu(rng.uniform(0.1, 9, size=(NODES, NODES)), 1).astype(np.float32)
    of_pair = upper + upper.T + 5 * np.eye(NODES, dtype=np.float32)
    dense = np.zeros((NODES, NODES), dtype=np.float32)
    for one, other in edge_index.T:
        if one != other:
            dense[one, other] = dense[other, one] = of_pair[one, other]
    return edge_index, of_pair[tuple(edge_index)], dense


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 2**20), st.integers(0, 40))
def test_every_edge_has_its_weight_both_ways(seed: int, edges: int) -> None:
    edge_index, weight, dense = drawn(seed, edges)
    indptr, indices, _ = clean_edges(edge_index, NODES, "test")
    found = clean_weights(edge_index, weight.astype(np.float64), NODES, "test")
    if found is None:
        assert not dense.any()
        return
    assert found.dtype == np.float32
    row = np.repeat(np.arange(NODES), np.diff(indptr))
    np.testing.assert_array_equal(found, dense[row, indices])
    np.testing.assert_allclose(degrees(indptr, found), 1 + dense.sum(1, dtype=np.float64), rtol=1e-12)
    # Parts of the graph, whose rows are in another order.
    client = np.random.default_rng(seed).integers(3, size=NODES).astype(np.int32)
    for part in induced(indptr, indices, client, kept_entries(indptr, indices, client), range(3)):
        inside = np.repeat(part.node, np.diff(part.indptr)), part.node[part.indices]
        np.testing.assert_array_equal(weights_among(part, indptr, indices, found), dense[inside])


def test_weights_that_are_all_one_say_nothing() -> None:
    edges = np.array([[0, 1, 2], [1, 2, 2]])
    assert clean_weights(edges, np.ones(3), 3, "test") is None
    # That of a loop is taken out with it.
    assert clean_weights(edges, np.array([1, 1, 7]), 3, "test") is None
    assert clean_weights(edges, np.array([1, 2, 1]), 3, "test") is not None


def test_degrees_without_weights_and_of_rows_without_edges() -> None:
    indptr = np.array([0, 0, 2, 2, 3, 3])
    np.testing.assert_array_equal(degrees(indptr, None), [1, 3, 1, 2, 1])
    np.testing.assert_array_equal(degrees(indptr, np.array([0.5, 2, 4], dtype=np.float32)), [1, 3.5, 1, 5, 1])
    np.testing.assert_array_equal(degrees(np.array([0, 0]), np.empty(0, dtype=np.float32)), [1])
    # Many small weights beside a large one are not lost.
    many = np.concatenate([[2.0**24], np.ones(1000)]).astype(np.float32)
    assert degrees(np.array([0, 1001]), many).tolist() == [2**24 + 1001]


@pytest.mark.parametrize(
    ("weight", "says"),
    [
        ([1.0, 0.0], "row 1 is 0.0"),
        ([-2, 1], "row 0 is -2"),
        ([1.0, np.nan], "row 1 is nan"),
        ([np.inf, 1.0], "row 0 is inf"),
        ([1e39, 1.0], "row 0 is 1e+39"),
        ([1.0, 1e-50], "row 1 is 1e-50"),
        ([1.0, 1.0, 1.0], "must be numbers [2], the weight of every edge, found float64 [3]"),
        (np.ones((2, 2)), "found float64 [2, 2]"),
        (["1", "2"], "found <U1 [2]"),
        ([2.0, 3.0], "the edge of nodes 0 and 1 weighs 2 and 3"),
    ],
)
def test_refuses(weight: Any, says: str) -> None:
    with refused("my.csv", says=says):
        clean_weights(np.array([[0, 1], [1, 0]]), np.array(weight), 2, "my.csv")
