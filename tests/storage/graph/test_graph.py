"""Edges, weights and labels of a graph against sets and dense matrices; sparse rows and matrices against dense ones."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from support.errors import refused
from support.induced_parts import csr_rows
from support.sparse_rows import sparse

from shoal.storage.datasets.registry import record
from shoal.storage.datasets.synthetic.induced_graphs import LEVELS
from shoal.storage.graph import rows
from shoal.storage.graph.edge_weights import clean_weights, degrees, weights_among
from shoal.storage.graph.from_arrays import class_count
from shoal.storage.graph.graph import Cleaning, Graph, clean_edges
from shoal.storage.graph.induced import induce, kept_entries
from shoal.storage.graph.layout import chosen_layout, require_possible, stored_bytes
from shoal.storage.graph.rows import csr_of, dense_bytes, entries_of, gains_sparse, sparse_bytes
from shoal.storage.graph.sparse_matrix import SparseMatrix
from shoal.storage.options.dataset_names import DATASETS, IN_MEMORY, may_be_sparse

DTYPES = st.sampled_from(["int8", "uint8", "int32", "uint32", "int64", "uint64"])


@given(nodes=st.integers(1, 9), dtype=DTYPES, data=st.data())
def test_equals_a_set_of_pairs(nodes: int, dtype: str, data: st.DataObject) -> None:
    node = st.integers(0, nodes - 1)
    given_pairs = data.draw(st.lists(st.tuples(node, node), max_size=40))
    indptr, indices, counts = clean_edges(np.array(given_pairs, dtype=dtype).reshape(-1, 2).T, nodes, "test")
    distinct = {(a, b) for a, b in given_pairs if a != b}
    wanted = distinct | {(b, a) for a, b in distinct}
    loops = sum(a == b for a, b in given_pairs)
    assert [list(indices[indptr[a] : indptr[a + 1]]) for a in range(nodes)] == [
        sorted(b for source, b in wanted if source == a) for a in range(nodes)
    ]
    doubles = len(given_pairs) - loops - len(distinct)
    assert counts == Cleaning(len(given_pairs), loops, doubles, reversed_added=len(wanted) - len(distinct))
    assert (indptr.dtype, indices.dtype) == (np.int64, np.int32)


@pytest.mark.parametrize("copies", [127, 128, 256, 512])
def test_an_edge_repeated_beyond_the_range_of_a_byte_stays(copies: int) -> None:
    edges = np.repeat(np.array([[0], [1]]), copies, axis=1)
    indptr, indices, counts = clean_edges(edges, 2, "test")
    assert (indptr.tolist(), indices.tolist()) == ([0, 1, 2], [1, 0])
    assert counts.duplicates == copies - 1


def edges(given: Any) -> object:
    return clean_edges(np.array(given), 4, "here")


def weights(given: Any) -> object:
    return clean_weights(np.array([[0, 1], [1, 0]]), np.array(given), 2, "here")


def labels(given: Any) -> object:
    return class_count(np.array(given, dtype=np.int64), "here")


@pytest.mark.parametrize(
    ("read", "given", "says"),
    [
        (edges, [[0], [4]], "names node 4, but the 4 nodes"),
        (edges, [[-1], [4]], "names node -1"),
        (edges, [[0, 1], [1, 2], [2, 3]], "int64 [3, 2]"),
        (edges, [[0.0], [1.0]], "float64"),
        (edges, [0, 1], "int64 [2]"),
        (weights, [1.0, 0.0], "row 1 is 0.0"),
        (weights, [-2, 1], "row 0 is -2"),
        (weights, [1.0, np.nan], "row 1 is nan"),
        (weights, [np.inf, 1.0], "row 0 is inf"),
        (weights, [1e39, 1.0], "row 0 is 1e+39"),
        (weights, [1.0, 1e-50], "row 1 is 1e-50"),
        (weights, [1.0, 1.0, 1.0], "must be numbers [2], the weight of every edge, found float64 [3]"),
        (weights, np.ones((2, 2)), "found float64 [2, 2]"),
        (weights, ["1", "2"], "found <U1 [2]"),
        (
            weights,
            [2.0, 3.0],
            "the edge of nodes 0 and 1 weighs 2 and 3; edges are undirected: give one weight each, or",
        ),
        (weights, [2.0, 2.0001], "weighs 2 and 2.0001"),
        (labels, [0, 1, 2**31 - 1, 1], "row 2 has label 2147483647, which makes 2147483648 classes, but 4 nodes"),
        (labels, [1024], "row 0 has label 1024"),
        (labels, np.append(np.arange(2000), 3000), "row 2000 has label 3000"),
        (labels, np.full(2**17 + 1, 2**17), "row 0 has label 131072"),
        (labels, [0, -2], "row 1 is -2"),
        (labels, [-1, -1], "no node has a label"),
        (labels, [], "no node has a label"),
    ],
)
def test_refuses(read: Any, given: Any, says: str) -> None:
    with refused("here", says=says):
        read(given)


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


def test_weights_that_differ_by_rounding_are_the_smallest_both_ways() -> None:
    low, high = np.float32(0.3), np.nextafter(np.float32(0.3), np.float32(1))
    edges = np.array([[0, 1, 1, 2, 0], [1, 0, 2, 1, 1]])
    # Entries are 0-1, 1-0, 1-2, 2-1.
    assert clean_weights(edges, np.array([high, low, 2, 2, high]), 3, "here").tolist() == [low, low, 2, 2]


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
    for part in induce(indptr, indices, client, kept_entries(indptr, indices, client), range(3)):
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


def words(rows: int, columns: int, dtype: str = "float32") -> np.ndarray:
    rng = np.random.default_rng(0)
    x = (rng.random((rows, columns)) < 0.1) * rng.integers(1, 9, (rows, columns))
    x[rows // 2] = 0
    return x.astype(dtype)


@pytest.mark.parametrize(("dtype", "of_value"), [("float32", 8), ("float16", 6)])
@pytest.mark.parametrize("chosen", [[], [3], [9, 0, 9, 5], list(range(10))])
def test_rows_in_any_order_and_their_bytes(dtype: str, of_value: int, chosen: list[int]) -> None:
    x = words(10, 40, dtype)
    rows = csr_rows(x)
    assert rows.entries == np.count_nonzero(x)
    assert sparse_bytes(10, rows.entries, dtype) == 40 + of_value * rows.entries == rows.nbytes - 4
    assert dense_bytes(10, 40, dtype) == x.nbytes
    found = rows[np.array(chosen, dtype=np.int64)]
    assert found.shape == (len(found), 40) == (len(chosen), 40)
    assert found.toarray().dtype == found.dtype == dtype
    np.testing.assert_array_equal(found.toarray(), x[chosen])


@pytest.mark.parametrize(("dtype", "entries"), [("float32", 40), ("float16", 26)])
def test_sparse_rows_are_at_most_two_fifths_full_and_smaller(dtype: str, entries: int) -> None:
    x = np.zeros((10, 10), dtype=np.float32)
    x.flat[:entries] = 1
    for layout in (x, sp.csr_array(x)):
        assert entries_of(layout) == entries
    assert [gains_sparse((10, 10), count, dtype) for count in (entries, entries + 1)] == [True, False]


@pytest.mark.parametrize("block", [1, 100, 1 << 22])
@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_csr_of_arrays_in_blocks(monkeypatch: pytest.MonkeyPatch, block: int, dtype: str) -> None:
    monkeypatch.setattr(rows, "BLOCK_VALUES", block)
    x = words(10, 40, dtype)
    found = csr_of(x)
    assert found.dtype == np.float32
    assert found.has_canonical_format
    np.testing.assert_array_equal(found.toarray(), x)
    assert csr_of(found) is found
    assert csr_of(x[:0]).shape == (0, 40)


def test_what_is_in_memory_may_be_sparse(tmp_path: Path) -> None:
    in_blocks = {name for name in DATASETS if record(name).finite}
    assert set(DATASETS) - set(IN_MEMORY) == in_blocks | {"sbm", "sbm-graphs", *LEVELS}
    assert may_be_sparse("Cora", None)
    assert not may_be_sparse("ogbn-products", None)
    assert may_be_sparse("files", str(tmp_path))
    # The features of a folder stay on the disk.
    (tmp_path / "x.npy").touch()
    assert not may_be_sparse("files", str(tmp_path))
    assert may_be_sparse("files", str(tmp_path / "graph.npz"))


def test_auto_is_the_smaller_one_and_a_word_is_taken() -> None:
    few, many = sp.csr_array(np.eye(10, dtype=np.float32)), np.ones((10, 10), dtype=np.float32)
    for x, smaller in ((few, "sparse"), (many, "dense")):
        assert chosen_layout(x, "auto", "cora", None, "float32") == smaller
        assert chosen_layout(x, "auto", "sbm", None, "float32") == "dense"
        for layout in ("dense", "sparse"):
            assert chosen_layout(x, layout, "cora", None, "float32") == layout
    assert stored_bytes(few, "sparse", "float16") == 10 * 4 + 10 * 6
    assert stored_bytes(few, "dense", "float16") == 200
    with refused("data.layout"):
        require_possible("sparse", "sbm", None)
    for layout, dataset in (("auto", "sbm"), ("sparse", "physics")):
        require_possible(layout, dataset, None)


@pytest.fixture
def dense() -> torch.Tensor:
    """Nine rows, of which the third and the last are empty, as is the second column."""
    torch.manual_seed(0)
    found = torch.randn(9, 7) * (torch.rand(9, 7) < 0.4)
    found[[2, 8]] = 0
    found[:, 1] = 0
    return found


@pytest.mark.parametrize("half", [False, True])
def test_a_matrix_and_its_transpose(dense: torch.Tensor, half: bool) -> None:
    dense = dense.half() if half else dense
    matrix = sparse(dense)
    transposed = matrix.transposed
    assert (matrix.shape, len(matrix), matrix.dtype, transposed.dtype) == ((9, 7), 9, dense.dtype, dense.dtype)
    assert torch.equal(matrix.to_dense(), dense)
    assert torch.equal(transposed.to_dense(), dense.t())
    assert transposed.crow_indices().dtype == transposed.col_indices().dtype == torch.int32
    assert matrix.transposed is transposed


def test_bytes_of_a_matrix_and_of_one_that_is_its_own_transpose(dense: torch.Tensor) -> None:
    matrix = sparse(dense)
    assert matrix.most_bytes == 4 * (10 + 8) + 16 * int((dense != 0).sum())
    assert matrix.prepare() is matrix
    transposed = matrix.transposed
    parts = (*matrix.parts(), transposed.crow_indices(), transposed.col_indices(), transposed.values())
    assert matrix.most_bytes == sum(part.nbytes for part in parts)
    both = sparse(dense @ dense.t())
    own = SparseMatrix(both.csr, both.csr)
    assert own.transposed is own.csr
    assert own.most_bytes == sum(part.nbytes for part in both.parts())


def test_a_product_is_float32_under_autocast(dense: torch.Tensor) -> None:
    weight = torch.randn(7, 3)
    with torch.autocast("cpu", torch.bfloat16):
        found = sparse(dense) @ weight.bfloat16()
    assert found.dtype == torch.float32
    torch.testing.assert_close(found, dense @ weight.bfloat16().float())


@pytest.mark.parametrize(("start", "stop"), [(0, 9), (3, 4), (4, 4), (5, 9), (5, 20)])
def test_successive_rows_share_memory(dense: torch.Tensor, start: int, stop: int) -> None:
    matrix = sparse(dense)
    block = matrix.block(start, stop)
    assert torch.equal(block.to_dense(), dense[start:stop])
    if stop > start:
        offset = int(matrix.parts()[0][start])
        assert block.parts()[2].data_ptr() == matrix.parts()[2].data_ptr() + 4 * offset
