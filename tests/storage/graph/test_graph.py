"""clean_edges against sets of pairs, and against graphs small enough to write down."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.storage.errors import ShoalError
from shoal.storage.graph.graph import Cleaning, Graph, clean_edges, first_rows


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


def test_path_of_four_nodes_given_one_way_with_a_loop_and_a_duplicate() -> None:
    edges = np.array([[0, 1, 2, 3, 0], [1, 2, 3, 3, 1]])
    indptr, indices, counts = clean_edges(edges, 4, "test")
    assert indptr.tolist() == [0, 1, 3, 5, 6]
    assert indices.tolist() == [1, 0, 2, 1, 3, 2]
    assert counts == Cleaning(entries_read=5, self_loops=1, duplicates=1, reversed_added=3)


@pytest.mark.parametrize("nodes", [0, 3])
def test_no_edges(nodes: int) -> None:
    indptr, indices, counts = clean_edges(np.empty((2, 0), dtype=np.int64), nodes, "test")
    assert indptr.tolist() == [0] * (nodes + 1)
    assert len(indices) == 0
    assert counts == Cleaning(0, 0, 0, 0)


@pytest.mark.parametrize("copies", [127, 128, 256, 512])
def test_an_edge_repeated_beyond_the_range_of_a_byte_stays(copies: int) -> None:
    edges = np.repeat(np.array([[0], [1]]), copies, axis=1)
    indptr, indices, counts = clean_edges(edges, 2, "test")
    assert (indptr.tolist(), indices.tolist()) == ([0, 1, 2], [1, 0])
    assert counts.duplicates == copies - 1


@pytest.mark.parametrize(
    ("edges", "message"),
    [
        (np.array([[0], [4]]), r"^here: edge_index names node 4, but the 4 nodes"),
        (np.array([[-1], [4]]), r"^here: edge_index names node -1, but"),
        (np.array([[0, 1, 2], [1, 2, 3]]).T, r"^here: .* shape \[2, E\], found int64 \[3, 2\]"),
        (np.array([[0.0], [1.0]]), r"^here: .*integers.* found float64"),
        (np.array([0, 1]), r"^here: .* found int64 \[2\]"),
    ],
)
def test_refuses(edges: np.ndarray, message: str) -> None:
    with pytest.raises(ShoalError, match=message):
        clean_edges(edges, 4, "here")


def test_graph_counts_nodes_entries_and_features() -> None:
    indptr, indices, _ = clean_edges(np.array([[0, 1], [1, 2]]), 4, "test")
    graph = Graph("path", indptr, indices, np.zeros((4, 5), np.float32), np.zeros(4, np.int64), classes=1)
    assert (graph.nodes, graph.entries, graph.features) == (4, 4, 5)


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


@given(st.lists(st.integers(1, 5), max_size=6))
def test_first_rows(sizes: list[int]) -> None:
    graph_of = np.repeat(np.arange(len(sizes)) * 3, sizes)
    assert first_rows(graph_of).tolist() == [sum(sizes[:number]) for number in range(len(sizes) + 1)]
