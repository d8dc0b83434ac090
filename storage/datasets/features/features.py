"""The feature matrix: sparse where that gains, finite, rows scaled on request; in blocks of rows."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import scipy.sparse as sp

from shoal.storage.errors import ShoalError
from shoal.storage.graph.rows import csr_of, entries_of, gains_sparse

BLOCK_VALUES = 1 << 22


def compact(x: np.ndarray) -> Any:
    """Features `[N, F]` as float32: SciPy CSR if that gains (`gains_sparse`), else dense."""
    x = np.asarray(x, dtype=np.float32)
    return csr_of(x) if gains_sparse(x.shape, entries_of(x), np.float32) else x


def check_finite(x: Any, where: str) -> None:
    """Refuses NaN and infinity in features `[N, F]`, dense or SciPy CSR; names `where` and the first row with one."""
    if sp.issparse(x):
        for first in range(0, len(x.data), BLOCK_VALUES):
            bad = ~np.isfinite(x.data[first : first + BLOCK_VALUES])
            if bad.any():
                _refuse(where, int(np.searchsorted(x.indptr, first + int(bad.argmax()), side="right")) - 1)
        return
    for first, last in _blocks(x):
        bad = ~np.isfinite(x[first:last]).all(axis=1)
        if bad.any():
            _refuse(where, first + int(bad.argmax()))


def row_normalized(x: Any, where: str) -> Any:
    """Features `[N, F]` in memory with rows that sum to 1, of the same kind and type; a row of zeros stays so.

    A ShoalError names `where`: a feature is negative, so that sums mean nothing.
    """
    if sp.issparse(x):
        scaled = x.copy()
        _require_none_negative(x.data, where)
        scale = _inverse(np.asarray(x.sum(axis=1, dtype=np.float64)).ravel())
        scaled.data *= np.repeat(scale, np.diff(x.indptr)).astype(x.dtype)
        return scaled
    scaled = np.empty(x.shape, dtype=x.dtype)
    for first, last in _blocks(x):
        block = x[first:last]
        _require_none_negative(block, where)
        scaled[first:last] = block * _inverse(block.sum(axis=1, dtype=np.float64))[:, None]
    return scaled


def _blocks(x: np.ndarray) -> Iterator[tuple[int, int]]:
    rows = max(1, BLOCK_VALUES // max(1, x.shape[1]))
    for first in range(0, len(x), rows):
        yield first, min(first + rows, len(x))


def _inverse(sums: np.ndarray) -> np.ndarray:
    return np.divide(1.0, sums, out=np.zeros_like(sums), where=sums > 0)


def _refuse(where: str, row: int) -> None:
    raise ShoalError(where, f"row {row} of the features has NaN or infinity as float; replace such values")


def _require_none_negative(values: np.ndarray, where: str) -> None:
    if (values < 0).any():
        raise ShoalError(where, "negative features have no sum to divide by; set data.row_normalize to false")
