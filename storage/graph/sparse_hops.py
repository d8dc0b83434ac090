"""Hops of sparse features: sparse as long as that gains, then dense, with the bits of the dense kernel."""

import numba
import numpy as np

from shoal.storage.errors import ShoalError
from shoal.storage.graph.rows import BLOCK_VALUES, CsrRows, Rows, gains_sparse

MAX_ENTRIES = 2**31
# A row with fewer columns than one in so many is sorted; of others all columns are looked through.
SORTED_BELOW = 16


def next_hop(
    indptr: np.ndarray,
    indices: np.ndarray,
    x: CsrRows,
    sent: np.ndarray,
    received: np.ndarray,
    dtype: str,
    weight: np.ndarray | None = None,
) -> Rows:
    """diag(received) (A + I) diag(sent) x, sparse where that gains; `weight` are A's entries, None: ones.

    Sums are float32 and run over a node itself and then its neighbours, as in `kernels/spmm.py`: zeros that are left
    out change no sum. Raises ShoalError: a value of the result is too large for float16.
    """
    counts = np.empty(len(x), dtype=np.int64)
    _count(indptr, indices, x.indptr, x.columns, x.features, counts)
    entries = int(counts.sum())
    values = x.values.astype(np.float32, copy=False)
    given = indptr, indices, x.indptr, x.columns, values, sent, received, weight
    if entries < MAX_ENTRIES and gains_sparse(x.shape, entries, dtype):
        pointer = np.zeros(len(x) + 1, dtype=np.int32)
        np.cumsum(counts, out=pointer[1:])
        columns, found = np.empty(entries, dtype=np.int32), np.empty(entries, dtype=np.float32)
        _fill(*given, x.features, pointer, columns, found)
        return CsrRows(pointer, columns, _rounded(found, dtype), x.features)
    out = np.empty(x.shape, dtype=dtype)
    rows = max(1, BLOCK_VALUES // max(1, x.features))
    for start in range(0, len(x), rows):
        block = np.zeros(out[start : start + rows].shape, dtype=np.float32)
        _fill_dense(*given, start, block)
        out[start : start + rows] = _rounded(block, dtype)
    return out


def _rounded(values: np.ndarray, dtype: str) -> np.ndarray:
    with np.errstate(over="ignore"):
        rounded = values.astype(dtype, copy=False)
    if dtype == "float16" and values.size:
        peak, limit = float(np.abs(values).max()), float(np.finfo(np.float16).max)
        if peak > limit:
            raise ShoalError("propagation.dtype", f"float16 ends at {limit:g}, but a hop reaches {peak:g}; use float32")
    return rounded


@numba.njit(cache=True, nogil=True)
def _count(
    indptr: np.ndarray, indices: np.ndarray, pointer: np.ndarray, columns: np.ndarray, features: int, counts: np.ndarray
) -> None:
    """Counts the columns that occur in each row of (A + I) x, int64 `[N]`."""
    seen = np.full(features, -1, dtype=np.int32)
    for row in range(len(counts)):
        count = 0
        for e in range(indptr[row] - 1, indptr[row + 1]):
            j = row if e < indptr[row] else indices[e]
            for place in range(pointer[j], pointer[j + 1]):
                if seen[columns[place]] != row:
                    seen[columns[place]] = row
                    count += 1
        counts[row] = count


@numba.njit(cache=True, nogil=True)
def _fill(
    indptr: np.ndarray,
    indices: np.ndarray,
    pointer: np.ndarray,
    columns: np.ndarray,
    values: np.ndarray,
    sent: np.ndarray,
    received: np.ndarray,
    weight: np.ndarray | None,
    features: int,
    out_pointer: np.ndarray,
    out_columns: np.ndarray,
    out_values: np.ndarray,
) -> None:
    """Writes columns, ascending, and values of each row of the hop."""
    seen = np.full(features, -1, dtype=np.int32)
    total = np.empty(features, dtype=np.float32)
    for row in range(len(out_pointer) - 1):
        start = at = out_pointer[row]
        for e in range(indptr[row] - 1, indptr[row + 1]):
            j = row if e < indptr[row] else indices[e]
            scale = sent[j]
            if weight is not None:
                scale *= np.float32(1) if e < indptr[row] else weight[e]
            for place in range(pointer[j], pointer[j + 1]):
                column, value = columns[place], scale * values[place]
                if seen[column] == row:
                    total[column] += value
                else:
                    seen[column], total[column] = row, value
                    out_columns[at] = column
                    at += 1
        if (at - start) * SORTED_BELOW < features:
            out_columns[start:at].sort()
        else:
            at = start
            for column in range(features):
                if seen[column] == row:
                    out_columns[at] = column
                    at += 1
        for place in range(start, at):
            out_values[place] = total[out_columns[place]] * received[row]


@numba.njit(cache=True, nogil=True)
def _fill_dense(
    indptr: np.ndarray,
    indices: np.ndarray,
    pointer: np.ndarray,
    columns: np.ndarray,
    values: np.ndarray,
    sent: np.ndarray,
    received: np.ndarray,
    weight: np.ndarray | None,
    first: int,
    out: np.ndarray,
) -> None:
    """Adds rows `first` and following of the hop to `out`, zeros `[n, F]`."""
    for row in range(first, first + len(out)):
        total = out[row - first]
        for e in range(indptr[row] - 1, indptr[row + 1]):
            j = row if e < indptr[row] else indices[e]
            scale = sent[j]
            if weight is not None:
                scale *= np.float32(1) if e < indptr[row] else weight[e]
            for place in range(pointer[j], pointer[j + 1]):
                total[columns[place]] += scale * values[place]
        total *= received[row]
