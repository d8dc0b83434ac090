"""Headers and archives are compared with the bytes that are there; every kind of sound array comes back."""

import io
import os
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
import scipy.sparse as sp

from shoal.storage.files.bounded_npy import load_npy, matrix_of, open_npz, require_free


def header_of(descr: Any, shape: tuple[int, ...]) -> bytes:
    text = repr({"descr": descr, "fortran_order": False, "shape": shape}).ljust(117) + "\n"
    return b"\x93NUMPY\1\0" + len(text).to_bytes(2, "little") + text.encode()


@pytest.mark.parametrize("mapped", [False, True])
@pytest.mark.parametrize(
    "array",
    [
        np.arange(6).reshape(2, 3),
        np.asfortranarray(np.arange(6).reshape(2, 3)),
        np.arange(4, dtype=">i4"),
        np.array(7.5),
        np.empty((2, 0), dtype=np.int64),
        np.array([True, False]),
    ],
)
def test_sound_arrays_come_back(tmp_path: Path, array: np.ndarray, mapped: bool) -> None:
    np.save(tmp_path / "a.npy", array)
    found = load_npy(tmp_path / "a.npy", mapped)
    assert (found.dtype, found.shape) == (array.dtype, array.shape)
    assert np.array_equal(found, array)
    with (tmp_path / "a.npz").open("wb") as file:
        np.savez_compressed(file, one=array, two=np.zeros(100_000))
    with open_npz(tmp_path / "a.npz") as npz:
        assert npz.names == ["one", "two"]
        assert np.array_equal(npz["one"], array)
        assert not npz["two"].any()


@pytest.mark.parametrize("mapped", [False, True])
@pytest.mark.parametrize(
    ("content", "says"),
    [
        (header_of("<i8", (2**40,)), "announces 8796093022208 bytes"),
        (header_of("<i8", (2**62, 2**62)), "announces"),
        (header_of("<i8", (3,)) + bytes(16), r"announces 24 bytes of int64 \[3\], there are 16"),
        (header_of("<i8", (1,)) + bytes(16), "announces 8 bytes"),
        (header_of("<i8", (-1,)) + bytes(8), r"shape \[-1\]"),
        (header_of("|O", (1,)) + bytes(8), "Python objects"),
        (header_of([("a", "<i8")], (1,)) + bytes(8), "records"),
        (b"\x93NUMPY\3\0" + bytes(200), r"version 3\.0"),
        (b"\x93NUMPY\1\0\x60\0" + b"(" * 96, "header cannot be read"),
        (b"", "magic"),
        (b"PK\3\4" + bytes(100), "several arrays"),
    ],
)
def test_a_header_that_is_not_of_what_is_there(tmp_path: Path, content: bytes, says: str, mapped: bool) -> None:
    (tmp_path / "a.npy").write_bytes(content)
    with pytest.raises(ValueError, match=says):
        load_npy(tmp_path / "a.npy", mapped)


def test_a_pipe_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "a.npy")
    for place in (tmp_path / "a.npy", Path("/dev/zero"), tmp_path):
        with pytest.raises(OSError, match=r"Is no file|Is a directory"):
            load_npy(place)


def member(name: str, content: bytes) -> bytes:
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr(f"{name}.npy", content)
    return made.getvalue()


def test_an_archive_that_announces_more_than_it_can_hold(tmp_path: Path) -> None:
    path = tmp_path / "a.npz"
    content = bytearray(member("x", header_of("<i8", (2**26,))))
    # The size of the member in the directory: half a gigabyte of a hundred bytes.
    directory = content.index(b"PK\1\2")
    content[directory + 24 : directory + 28] = (2**29 + 128).to_bytes(4, "little")
    path.write_bytes(content)
    with open_npz(path) as npz, pytest.raises(ValueError, match=r"536871040 bytes cannot come from \d+"):
        npz.header("x")
    path.write_bytes(member("x", header_of("<i8", (2**40,)) + bytes(80)))
    with open_npz(path) as npz, pytest.raises(ValueError, match="announces 8796093022208 bytes"):
        npz["x"]
    with open_npz(path) as npz, pytest.raises(KeyError):
        npz["y"]


def test_more_than_the_free_memory(tmp_path: Path) -> None:
    require_free(1)
    with pytest.raises(MemoryError, match="GiB are free"):
        require_free(psutil.virtual_memory().total)
    # A file with a hole, as large as it says.
    size = 2 * psutil.virtual_memory().total
    header = header_of("|u1", (size,))
    (tmp_path / "a.npy").write_bytes(header)
    os.truncate(tmp_path / "a.npy", len(header) + size)
    with pytest.raises(MemoryError, match="GiB are free"):
        load_npy(tmp_path / "a.npy")


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
