from pathlib import Path

import numpy as np
import pytest
import scipy.sparse as sp
from support.errors import refused
from support.induced_parts import csr_rows

from shoal.storage.datasets.registry import record
from shoal.storage.datasets.synthetic.induced_graphs import LEVELS
from shoal.storage.graph import rows
from shoal.storage.graph.layout import chosen_layout, require_possible, stored_bytes
from shoal.storage.graph.rows import csr_of, dense_bytes, entries_of, is_smaller_sparse, sparse_bytes
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
