"""Sparse matrices of .npz files, checked entry by entry before compiled code indexes with them."""

from typing import Any

import numpy as np
import scipy.sparse as sp

from storage.bounded_npy import Npz

COMPRESSED = {"csr": sp.csr_array, "csc": sp.csc_array}


def matrix_of(npz: Npz, rows: int | None = None) -> Any:
    """The matrix that `scipy.sparse.save_npz` wrote, CSR, CSC or COO, entry by entry as it lies there.

    Args:
        npz: The open file.
        rows: Rows that it must have; None: any number.

    Raises:
        ValueError: It is no such matrix.
        KeyError: A piece of it is missing.
        MemoryError: It is larger than the free memory.
    """
    kind = npz["format"].item()
    kind = kind.decode("ascii") if isinstance(kind, bytes) else str(kind)
    shape = shape_of(npz["shape"])
    if rows is not None and shape[0] != rows:
        raise ValueError(f"{shape[0]} rows, but there are {rows} nodes")
    if kind in COMPRESSED:
        return compressed(kind, npz["data"], npz["indices"], npz["indptr"], shape)
    if kind != "coo":
        raise ValueError(f"a sparse matrix of format {kind[:20]!r}; save it as CSR")
    data, row, col = npz["data"], _integers("row", npz["row"]), _integers("col", npz["col"])
    return sp.coo_array((_numbers(data), (row, col)), shape=shape)


def compressed(kind: str, data: np.ndarray, indices: np.ndarray, indptr: np.ndarray, shape: tuple[int, int]) -> Any:
    """A CSR or CSC matrix from its three pieces.

    Raises:
        ValueError: They do not fit one another, or an index is out of range.
    """
    pieces = _numbers(data), _integers("indices", indices), _integers("indptr", indptr)
    # SciPy leaves out this check of a pointer that ends with 0.
    degrees_of(indptr, indices)
    matrix = COMPRESSED[kind](pieces, shape=shape)
    matrix.check_format(full_check=True)
    return matrix


def shape_of(values: np.ndarray) -> tuple[int, int]:
    """Rows and columns.

    Raises:
        ValueError: Not two numbers from 0 to 2^31 - 1.
    """
    if values.shape != (2,) or values.dtype.kind not in "iu" or values.min() < 0 or values.max() >= 2**31:
        raise ValueError("shape must be two numbers below 2^31")
    return int(values[0]), int(values[1])


def degrees_of(indptr: np.ndarray, indices: np.ndarray) -> np.ndarray:
    """Entries of every row, `[N]`.

    Raises:
        ValueError: The row pointer does not fit the entries.
    """
    pointer = _integers("indptr", indptr)
    if not len(pointer) or pointer[0] != 0 or pointer[-1] != len(indices) or (pointer[1:] < pointer[:-1]).any():
        raise ValueError("the row pointer does not fit the neighbours")
    return np.diff(pointer)


def _integers(name: str, values: np.ndarray) -> np.ndarray:
    if values.ndim != 1 or values.dtype.kind not in "iu":
        raise ValueError(f"{name}: must be integers in one row, found {values.dtype} {list(values.shape)}")
    # Of unsigned ones differences wrap, and compiled code knows no other byte order.
    if values.dtype.kind == "u" and len(values) and values.max() >= 2**63:
        raise ValueError(f"{name}: {values.max()} is out of range")
    return values.astype(np.int64 if values.dtype.kind == "u" else values.dtype.newbyteorder("="), copy=False)


def _numbers(values: np.ndarray) -> np.ndarray:
    if values.ndim != 1 or values.dtype.kind not in "fiub":
        raise ValueError(f"data: must be numbers in one row, found {values.dtype} {list(values.shape)}")
    return values.astype(values.dtype.newbyteorder("="), copy=False)
