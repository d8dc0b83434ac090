"""Edges and their weights against sets of pairs, loops in a dict, dense matrices, and graphs written down by hand."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.errors import refused

from shoal.storage.graph.edge_weights import clean_weights, degrees, weights_among
from shoal.storage.graph.from_arrays import class_count
from shoal.storage.graph.graph import Cleaning, Graph, clean_edges
from shoal.storage.graph.induced import induced, kept_entries


@given(
    nodes=st.integers(1, 9),
    dtype=st.sampled_from(["int8", "uint8", "int32", "uint32", "int64", "uint64"]),
    data=st.data(),
)
def test_equals_a_set_of_pairs(nodes: int, dtype: str, data: st.DataObject) -> None:
    node = st.integers(0, nodes - 1)
    given_pairs = data.draw(st.lists(st.tuples(node, node), max_size=40))
    edge_index = np.array(given_pairs, dtype=dtype).reshape(-1, 2).T

    indptr, indices, counts = clean_edges(edge_index, nodes, "test")

    distinct = {(a, b) for a, b in given_pairs if a != b}
    wanted = distinct | {(b, a) for a, b in distinct}
    loops = sum(a == b for a, b in given_pairs)
    assert [list(indices[indptr[a] : indptr[a + 1]]) for a in range(nodes)] == [
        sorted(b for source, b in wanted if source == a) for a in range(nodes)
    ]
    assert counts == Cleaning(
        entries_read=len(given_pairs),
        self_loops=loops,
        duplicates=len(given_pairs) - loops - len(distinct),
        reversed_added=len(wanted) - len(distinct),
    )
    assert (indptr.dtype, indices.dtype) == (np.int64, np.int32)


@pytest.mark.parametrize("copies", [127, 128, 256, 512])
def test_an_edge_repeated_beyond_the_range_of_a_byte_stays(copies: int) -> None:
    edges = np.repeat(np.array([[0], [1]]), copies, axis=1)
    indptr, indices, counts = clean_edges(edges, 2, "test")
    assert (indptr.tolist(), indices.tolist()) == ([0, 1, 2], [1, 0])
    assert counts.duplicates == copies - 1


@pytest.mark.parametrize(
    ("edges", "says"),
    [
        (np.array([[0], [4]]), "names node 4, but the 4 nodes"),
        (np.array([[-1], [4]]), "names node -1"),
        (np.array([[0, 1, 2], [1, 2, 3]]).T, "int64 [3, 2]"),
        (np.array([[0.0], [1.0]]), "float64"),
        (np.array([0, 1]), "int64 [2]"),
    ],
)
def test_refuses(edges: np.ndarray, says: str) -> None:
    with refused("here", says=says):
        clean_edges(edges, 4, "here")


def test_items_of_many_graphs() -> None:
    """Graphs of 2, 1 and 3 nodes."""
    indptr, indices, _ = clean_edges(np.array([[0, 3], [1, 4]]), 6, "test")
    graph = Graph("small", indptr, indices, np.zeros((6, 1)), np.array([7, 8, 9]), 10)
    many = replace(graph, graph_of=np.array([0, 0, 1, 2, 2, 2]))
    assert (many.nodes, many.items, many.item_name) == (6, 3, "graph")
    assert many.of_nodes(many.y).tolist() == [7, 7, 8, 9, 9, 9]
    assert many.of_items(np.array([5, 5, 6, 4, 4, 4])).tolist() == [5, 6, 4]
    one = replace(graph, y=np.arange(6))
    assert (one.items, one.item_name) == (6, "node")
    assert one.of_nodes(one.y) is one.of_items(one.y) is one.y


@pytest.mark.parametrize(
    ("y", "classes"), [([0], 1), ([-1, 5], 6), ([1023, -1], 1024), (np.arange(3000), 3000), ([0, 2, -1, 1], 3)]
)
def test_one_more_than_the_largest(y: list[int], classes: int) -> None:
    assert class_count(np.array(y), "y.npy") == classes


@pytest.mark.parametrize(
    ("y", "says"),
    [
        ([0, 1, 2**31 - 1, 1], "row 2 has label 2147483647, which makes 2147483648 classes, but 4 nodes"),
        ([1024], "row 0 has label 1024"),
        (np.append(np.arange(2000), 3000), "row 2000 has label 3000"),
        (np.full(2**17 + 1, 2**17), "row 0 has label 131072"),
        ([0, -2], "row 1 is -2"),
        ([-1, -1], "no node has a label"),
        ([], "no node has a label"),
    ],
)
def test_absurd_labels(y: list[int], says: str) -> None:
    with refused("y.npy", says=says):
        class_count(np.array(y, dtype=np.int64), "y.npy")


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
def test_refuses_weights(weight: Any, says: str) -> None:
    with refused("my.csv", says=says):
        clean_weights(np.array([[0, 1], [1, 0]]), np.array(weight), 2, "my.csv")
