"""clean_edges against sets of pairs, and against graphs small enough to write down."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.errors import refused

from shoal.storage.graph.from_arrays import class_count
from shoal.storage.graph.graph import Cleaning, Graph, clean_edges


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
