"""Hops of sparse features, as long as sparse rows gain, with the bits of the dense kernel."""

import numba
import numpy as np

from shoal.storage.errors import ShoalError
from shoal.storage.graph.rows import CsrRows, gains_sparse

MAX_ENTRIES = 2**31
# A row with fewer columns than one in so many is sorted; of others all columns are looked through.
SORTED_BELOW = 16
Pair = tuple[np.ndarray, np.ndarray]
Triple = tuple[np.ndarray, np.ndarray, np.ndarray]


def next_hop(csr: Pair, x: CsrRows, scalings: Pair, dtype: str, weight: np.ndarray | None) -> CsrRows | None:
    """diag(received) (A + I) diag(sent) x, by (sent, received) and A's CSR, of ones or weights; None: dense gains.

    Sums are float32 and run over a node itself and then its neighbours, as in `kernels/spmm.py`: zeros that are left
    out change no sum. Raises ShoalError: a value of the result is too large for float16.
    """
    counts = np.empty(len(x), dtype=np.int64)
    _count(*csr, x.indptr, x.columns, x.features, counts)
    entries = int(counts.sum())
    if entries >= MAX_ENTRIES or not gains_sparse(x.shape, entries, dtype):
        return None
    pointer = np.zeros(len(x) + 1, dtype=np.int32)
    np.cumsum(counts, out=pointer[1:])
    columns, found = np.empty(entries, dtype=np.int32), np.empty(entries, dtype=np.float32)
    values = x.values.astype(np.float32, copy=False)
    _fill(csr, weight, (x.indptr, x.columns, values), scalings, x.features, (pointer, columns, found))
    return CsrRows(pointer, columns, _rounded(found, dtype), x.features)


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
def _fill(csr: Pair, weight: np.ndarray | None, x: Triple, scalings: Pair, features: int, out: Triple) -> None:
    """Writes columns, ascending, and values of each row of the hop; all three matrices are row starts and so on."""
    (indptr, indices), (pointer, columns, values), (sent, received) = csr, x, scalings
    out_pointer, out_columns, out_values = out
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
