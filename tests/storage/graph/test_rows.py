"""Sparse rows and sparse matrices against the dense ones of the same numbers."""

from pathlib import Path

import numpy as np
import pytest
import scipy.sparse as sp
import torch
from support.errors import refused
from support.induced_parts import csr_rows
from support.sparse_rows import sparse

from shoal.storage.datasets.registry import record
from shoal.storage.datasets.synthetic.induced_graphs import LEVELS
from shoal.storage.graph import rows
from shoal.storage.graph.layout import chosen_layout, require_possible, stored_bytes
from shoal.storage.graph.rows import csr_of, dense_bytes, entries_of, is_smaller_sparse, sparse_bytes
from shoal.storage.graph.sparse_matrix import SparseMatrix
from shoal.storage.options.dataset_names import DATASETS, IN_MEMORY, may_be_sparse


def words(rows: int, columns: int, dtype: str = "float32") -> np.ndarray:
    rng = np.random.default_rng(0)
    x = (rng.random((rows, columns)) < 0.1) * rng.integers(1, 9, (rows, columns))
    x[rows // 2] = 0
    return x.astype(dtype)


@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize("chosen", [[], [3], [9, 0, 9, 5], list(range(10))])
def test_rows_in_any_order(dtype: str, chosen: list[int]) -> None:
    x = words(10, 40, dtype)
    found = csr_rows(x)[np.array(chosen, dtype=np.int64)]
    assert found.shape == (len(found), 40) == (len(chosen), 40)
    assert found.toarray().dtype == found.dtype == dtype
    np.testing.assert_array_equal(found.toarray(), x[chosen])


def test_bytes_are_those_of_the_arrays() -> None:
    for dtype, of_value in (("float32", 8), ("float16", 6)):
        x = words(10, 40, dtype)
        found = csr_rows(x)
        assert found.entries == np.count_nonzero(x)
        assert sparse_bytes(10, found.entries, dtype) == 40 + of_value * found.entries == found.nbytes - 4
        assert dense_bytes(10, 40, dtype) == x.nbytes


@pytest.mark.parametrize(("dtype", "entries"), [("float32", 44), ("float16", 26)])
def test_smaller_is_compared_in_bytes(dtype: str, entries: int) -> None:
    x = np.zeros((10, 10), dtype=np.float32)
    x.flat[:entries] = 1
    for given in (x, sp.csr_array(x)):
        assert is_smaller_sparse(given, dtype)
        assert entries_of(given) == entries
    x.flat[entries] = 1
    assert not is_smaller_sparse(x, dtype)


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


def test_every_dataset_is_in_memory_or_always_dense() -> None:
    in_blocks = {name for name in DATASETS if record(name).finite}
    assert set(DATASETS) - set(IN_MEMORY) == in_blocks | {"sbm", "sbm-graphs", *LEVELS}
    assert may_be_sparse("Cora", None)
    assert not may_be_sparse("ogbn-products", None)


def test_a_folder_whose_features_stay_on_disk_is_dense(tmp_path: Path) -> None:
    assert may_be_sparse("files", str(tmp_path))
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


def test_features_that_are_not_in_memory_cannot_be_sparse() -> None:
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


def test_what_it_is(dense: torch.Tensor) -> None:
    matrix = sparse(dense)
    assert matrix.shape == (9, 7)
    assert len(matrix) == 9
    assert matrix.dtype == torch.float32
    assert torch.equal(matrix.to_dense(), dense)
    entries = int((dense != 0).sum())
    assert matrix.most_bytes == 4 * (10 + 8) + 16 * entries
    assert matrix.prepared() is matrix
    transposed = matrix.transposed
    parts = (*matrix.parts(), transposed.crow_indices(), transposed.col_indices(), transposed.values())
    assert matrix.most_bytes == sum(part.nbytes for part in parts)
    both = sparse(dense @ dense.t())
    own = SparseMatrix(both.csr, both.csr)
    assert own.transposed is own.csr
    assert own.most_bytes == sum(part.nbytes for part in both.parts())


@pytest.mark.parametrize("half", [False, True])
def test_the_transpose(dense: torch.Tensor, half: bool) -> None:
    dense = dense.half() if half else dense
    matrix = sparse(dense)
    transposed = matrix.transposed
    assert torch.equal(transposed.to_dense(), dense.t())
    assert transposed.dtype == dense.dtype
    assert transposed.crow_indices().dtype == transposed.col_indices().dtype == torch.int32
    assert matrix.transposed is transposed


def test_product_and_gradient(dense: torch.Tensor) -> None:
    matrix, weight = sparse(dense), torch.randn(7, 3, requires_grad=True)
    expected = torch.autograd.grad((dense @ weight).sin().sum(), weight)
    torch.testing.assert_close(torch.autograd.grad((matrix @ weight).sin().sum(), weight), expected)
    # The weight may lie by rows or by columns.
    for lying in (weight.detach(), torch.randn(3, 7).t()):
        product = matrix @ lying
        assert not product.requires_grad
        torch.testing.assert_close(product, dense @ lying)


def test_a_product_is_float32_under_autocast(dense: torch.Tensor) -> None:
    weight = torch.randn(7, 3)
    with torch.autocast("cpu", torch.bfloat16):
        found = sparse(dense) @ weight.bfloat16()
    assert found.dtype == torch.float32
    torch.testing.assert_close(found, dense @ weight.bfloat16().float())


def test_what_memory_held_before_does_not_show() -> None:
    """The result of a product is not filled first."""
    matrix = SparseMatrix.of(np.zeros(6, np.int32), np.zeros(0, np.int32), np.zeros(0, np.float32), 4)
    for _ in range(50):
        torch.full((5, 3), torch.nan)
        assert torch.equal(matrix @ torch.randn(4, 3), torch.zeros(5, 3))


@pytest.mark.parametrize(("start", "stop"), [(0, 9), (3, 4), (4, 4), (5, 9), (5, 20)])
def test_successive_rows_share_memory(dense: torch.Tensor, start: int, stop: int) -> None:
    matrix = sparse(dense)
    block = matrix.block(start, stop)
    assert torch.equal(block.to_dense(), dense[start:stop])
    if stop > start:
        offset = int(matrix.parts()[0][start])
        assert block.parts()[2].data_ptr() == matrix.parts()[2].data_ptr() + 4 * offset
