"""Arrays of a user's own files: what a header announces is compared with the bytes that are there, before any is read.

NumPy takes what a header says, and a header of 100 bytes may say a terabyte. None of these readers unpickles.
"""

import math
import os
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import psutil
import scipy.sparse as sp

from shoal.storage.files.reading import open_plain

HEADERS = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}
# Deflate makes at most 1032 bytes of one.
MOST_OF_A_BYTE = 1100
SHARE_OF_MEMORY = 0.9
MOST_AXES = 8
# The readers below raise these.
NOT_READ = (OSError, ValueError, EOFError, MemoryError)


@dataclass(frozen=True)
class Header:
    """Header of an .npy file.

    Attributes:
        dtype: Of the array, neither of objects nor of records.
        columns_first: It is stored column by column (Fortran order).
        start: Bytes before its first value.
    """

    shape: tuple[int, ...]
    dtype: np.dtype
    columns_first: bool
    start: int


def read_header(file: BinaryIO, length: int) -> Header:
    """Reads the header of an .npy file, or of a member of an .npz file, from its first byte.

    Raises ValueError: it is none, holds Python objects or records, or announces other than the bytes that are there.

    Args:
        length: Its bytes, header included.
    """
    version = np.lib.format.read_magic(file)
    if version not in HEADERS:
        raise ValueError(f"an .npy file of version {version[0]}.{version[1]}")
    try:
        shape, columns_first, dtype = HEADERS[version](file)
    except Exception as error:
        # NumPy parses it as Python text, and damaged text raises almost anything.
        raise ValueError(f"its header cannot be read ({type(error).__name__})") from error
    if dtype.hasobject:
        raise ValueError("an array of Python objects")
    if dtype.names is not None or dtype.subdtype is not None:
        raise ValueError("an array of records")
    if any(axis < 0 for axis in shape) or len(shape) > MOST_AXES:
        raise ValueError(f"an array of shape {list(shape)}")
    announced, there = math.prod(shape) * dtype.itemsize, length - file.tell()
    if announced != there:
        raise ValueError(f"its header announces {announced} bytes of {dtype} {list(shape)}, there are {there}")
    return Header(shape, dtype, columns_first, file.tell())


def load_npy(path: str | Path, mapped: bool = False) -> np.ndarray:
    """Loads the array of an .npy file, whole or as a read-only memory map. Raises what `NOT_READ` names."""
    with open_plain(path) as file:
        if file.read(4) == b"PK\3\4":
            raise ValueError("several arrays; save one with numpy.save")
        file.seek(0)
        header = read_header(file, os.fstat(file.fileno()).st_size)
        if not mapped:
            require_free(math.prod(header.shape) * header.dtype.itemsize)
            file.seek(0)
            return np.lib.format.read_array(file, allow_pickle=False)
    # An empty array cannot be mapped.
    return np.load(path, mmap_mode="r" if math.prod(header.shape) else None, allow_pickle=False)


def reason(error: BaseException) -> str:
    """Says why an array was not read, in one line."""
    text = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
    return " ".join(text.split()) or type(error).__name__


def require_free(needed: int) -> None:
    """Raises:
    MemoryError: So many bytes are not free.
    """
    free = int(SHARE_OF_MEMORY * psutil.virtual_memory().available)
    if needed > free:
        raise MemoryError(f"it needs {needed / 2**30:.1f} GiB of memory, {free / 2**30:.1f} GiB are free")


@contextmanager
def open_npz(path: Path) -> Iterator["Npz"]:
    """Opens an .npz file. Raises OSError, ValueError or zipfile.BadZipFile."""
    with open_plain(path) as file:
        if file.read(6) == np.lib.format.MAGIC_PREFIX:
            raise ValueError("one array, not an .npz archive of named arrays")
        with zipfile.ZipFile(file) as archive:
            yield Npz(archive)


class Npz:
    """The arrays of an open .npz file by name; each is bounded before it is read."""

    def __init__(self, archive: zipfile.ZipFile) -> None:
        self._archive = archive
        self.names = [name.removesuffix(".npy") for name in archive.namelist()]

    def header(self, name: str) -> Header:
        """Reads the header of a member. Raises KeyError: there is none; ValueError: its bytes cannot be an array's."""
        member = self._archive.getinfo(f"{name}.npy")
        if member.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
            raise ValueError(f"{name}: compressed as no .npz file is")
        if member.file_size > MOST_OF_A_BYTE * (member.compress_size + 1):
            raise ValueError(f"{name}: {member.file_size} bytes cannot come from {member.compress_size}")
        with self._archive.open(member) as file:
            return read_header(file, member.file_size)  # type: ignore[arg-type]

    def __getitem__(self, name: str) -> np.ndarray:
        """The array of a name; errors of `header`, and MemoryError: it is larger than the free memory."""
        header = self.header(name)
        require_free(math.prod(header.shape) * header.dtype.itemsize)
        with self._archive.open(f"{name}.npy") as file:
            array = np.lib.format.read_array(file, allow_pickle=False)
            # Reading up to the end compares the checksum.
            if file.read(1):
                raise ValueError(f"{name}: longer than its header says")
        return array


COMPRESSED = {"csr": sp.csr_array, "csc": sp.csc_array}


def matrix_of(npz: Npz, rows: int | None = None) -> Any:
    """Reads the CSR, CSC or COO matrix that `scipy.sparse.save_npz` wrote, with so many rows, if they are known.

    Raises ValueError or KeyError: it is none; MemoryError: it is larger than the free memory.
    """
    kind = npz["format"].item()
    kind = kind.decode("ascii") if isinstance(kind, bytes) else str(kind)
    shape = shape_of(npz["shape"])
    if rows is not None and shape[0] != rows:
        raise ValueError(f"{shape[0]} rows, but there are {rows} nodes")
    if kind in COMPRESSED:
        return build_compressed(kind, npz["data"], npz["indices"], npz["indptr"], shape)
    if kind != "coo":
        raise ValueError(f"a sparse matrix of format {kind[:20]!r}; save it as CSR")
    data, row, col = npz["data"], _integers("row", npz["row"]), _integers("col", npz["col"])
    return sp.coo_array((_numbers(data), (row, col)), shape=shape)


def build_compressed(
    kind: str, data: np.ndarray, indices: np.ndarray, indptr: np.ndarray, shape: tuple[int, int]
) -> Any:
    """Builds a CSR or CSC matrix. Raises ValueError: its arrays do not fit one another, or an index is out of range."""
    arrays = _numbers(data), _integers("indices", indices), _integers("indptr", indptr)
    # SciPy leaves out this check of a pointer that ends with 0.
    degrees_of(indptr, indices)
    matrix = COMPRESSED[kind](arrays, shape=shape)
    matrix.check_format(full_check=True)
    return matrix


def shape_of(values: np.ndarray) -> tuple[int, int]:
    """Returns rows and columns. Raises ValueError: not two numbers from 0 to 2^31 - 1."""
    if values.shape != (2,) or values.dtype.kind not in "iu" or values.min() < 0 or values.max() >= 2**31:
        raise ValueError("shape must be two numbers below 2^31")
    return int(values[0]), int(values[1])


def degrees_of(indptr: np.ndarray, indices: np.ndarray) -> np.ndarray:
    """Counts entries of every row, `[N]`. Raises ValueError: the row pointer does not fit the entries."""
    pointer = _integers("indptr", indptr)
    if not len(pointer) or pointer[0] != 0 or pointer[-1] != len(indices) or (pointer[1:] < pointer[:-1]).any():
        raise ValueError("the row pointer does not fit the neighbours")
    return np.diff(pointer)


def _integers(name: str, values: np.ndarray) -> np.ndarray:
    if values.ndim != 1 or values.dtype.kind not in "iu":
        raise ValueError(f"{name}: must be integers in one row, found {values.dtype} {list(values.shape)}")
    # Differences of unsigned numbers wrap, and compiled code knows no other byte order.
    if values.dtype.kind == "u" and len(values) and values.max() >= 2**63:
        raise ValueError(f"{name}: {values.max()} is out of range")
    return values.astype(np.int64 if values.dtype.kind == "u" else values.dtype.newbyteorder("="), copy=False)


def _numbers(values: np.ndarray) -> np.ndarray:
    if values.ndim != 1 or values.dtype.kind not in "fiub":
        raise ValueError(f"data: must be numbers in one row, found {values.dtype} {list(values.shape)}")
    return values.astype(values.dtype.newbyteorder("="), copy=False)
