"""Sparse matrices come back from every format, and no index that points elsewhere reaches compiled code."""

from pathlib import Path

import numpy as np
import pytest
import scipy.sparse as sp

from shoal.storage.files.bounded_npy import degrees_of, matrix_of, open_npz

MATRIX = np.array([[0, 2, 0], [1, 0, 0], [0, 0, 0], [3, 0, 4]], dtype=np.float32)


def saved(path: Path, fmt: str, **changes: np.ndarray) -> Path:
    sp.save_npz(path, sp.coo_array(MATRIX).asformat(fmt))
    with np.load(path) as file:
        pieces = {**file, **changes}
    with path.open("wb") as sink:
        np.savez(sink, **pieces)
    return path


@pytest.mark.parametrize("fmt", ["csr", "csc", "coo"])
def test_every_format_comes_back(tmp_path: Path, fmt: str) -> None:
    with open_npz(saved(tmp_path / "x.npz", fmt)) as npz:
        assert np.array_equal(matrix_of(npz, 4).toarray(), MATRIX)


@pytest.mark.parametrize(
    ("fmt", "changes", "says"),
    [
        ("csr", {"indptr": np.array([0, 1, 2, 2, 0])}, "row pointer"),
        ("csr", {"indptr": np.array([0, 3, 2, 2, 4], dtype=np.uint64)}, "row pointer"),
        ("csr", {"indptr": np.array([0, 1, 2, 2, 9])}, "row pointer"),
        ("csr", {"indptr": np.array([0.0, 1, 2, 2, 4])}, "must be integers"),
        ("csr", {"indices": np.array([1, 0, 0, 3])}, "indices must be < 3"),
        ("csc", {"indices": np.array([1, -3, 0, 3])}, "indices must be >= 0"),
        ("coo", {"row": np.array([0, 1, 3, 4])}, "row index|axis 0 index"),
        ("csr", {"shape": np.array([2**62, 3])}, "below 2.31"),
        ("coo", {"shape": np.array([2**30, 3])}, "1073741824 rows, but there are 4 nodes"),
        ("csr", {"data": np.array(["a"] * 4)}, "data: must be numbers"),
        ("bsr", {}, "format 'bsr'"),
        ("dia", {}, "format 'dia'"),
    ],
)
def test_pieces_that_do_not_fit(tmp_path: Path, fmt: str, changes: dict[str, np.ndarray], says: str) -> None:
    with open_npz(saved(tmp_path / "x.npz", fmt, **changes)) as npz, pytest.raises(ValueError, match=says):
        matrix_of(npz, 4)


def test_degrees() -> None:
    assert degrees_of(np.array([0, 2, 2, 3]), np.zeros(3)).tolist() == [2, 0, 1]
    for pointer in ([], [0, 2], [1, 3], [0, 5, 3]):
        with pytest.raises(ValueError, match="row pointer"):
            degrees_of(np.array(pointer, dtype=np.int64), np.zeros(3))
