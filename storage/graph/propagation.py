"""Hops of a graph: X, ÃX, Ã²X, … computed once, before any training."""

import numba
import numpy as np

from shoal.storage.errors import ShoalError
from shoal.storage.graph.edge_weights import degrees
from shoal.storage.graph.rows import CsrRows, Rows, gains_sparse
from shoal.storage.kernels.spmm import converts_halves, spmm
from shoal.storage.options.propagation import PropagationOptions

# So many columns are float32 at a time, on a processor that does not convert float16.
COLUMNS = 256
MAX_ENTRIES = 2**31
# A row with fewer columns than one in so many is sorted; of others all columns are looked through.
SORTED_BELOW = 16
Pair = tuple[np.ndarray, np.ndarray]
Triple = tuple[np.ndarray, np.ndarray, np.ndarray]


def propagate(
    indptr: np.ndarray, indices: np.ndarray, x: np.ndarray, r: float, out: np.ndarray, weight: np.ndarray | None = None
) -> None:
    """Computes one hop: out = D^(r-1) (A + I) D^(-r) x, D being the degrees with self loop (FedGTA, equation 1).

    A, symmetric and without loops, is CSR of fewer than 2^31 entries: ones, or the weights of edges, float32 `[E]`; a
    degree is the sum of a row of A + I. Features `[N, F]` and `out`, no part of them, are float32 or float16,
    C-contiguous; sums are float32 and rounded once. A column's bits depend on no other column. It needs under 50 bytes
    a node. Raises ShoalError: a value of the result is too large for a float16 `out`.
    """
    assert x.shape == out.shape, (x.shape, out.shape)
    assert len(indptr) == len(x) + 1, (len(indptr), len(x))
    assert int(indptr[-1]) == len(indices) < 2**31, (int(indptr[-1]), len(indices))
    for array in (x, out):
        assert array.dtype in (np.float32, np.float16), array.dtype
        assert array.flags.c_contiguous, array.strides
    assert not np.may_share_memory(x, out)
    sent, received = map(_read_only, _scalings(indptr, r, weight))
    adjacency = _read_only(indptr), _read_only(indices.astype(np.int32, copy=False))
    entries = None if weight is None else _read_only(weight)

    def hop(x: np.ndarray, out: np.ndarray) -> float:
        peak = spmm(*adjacency, _read_only(_numba_view(x)), sent, received, _numba_view(out), entries)
        return float(np.int32(peak).view(np.float32))

    if converts_halves() or np.float16 not in (x.dtype, out.dtype):
        peak = hop(x, out)
    else:
        peak = 0.0
        for start in range(0, x.shape[1], COLUMNS):
            columns = slice(start, start + COLUMNS)
            block = np.empty(x[:, columns].shape, dtype=np.float32)
            peak = max(peak, hop(np.ascontiguousarray(x[:, columns], dtype=np.float32), block))
            with np.errstate(over="ignore"):
                out[:, columns] = block
    require_held(peak, out.dtype)


def require_held(peak: float, dtype: np.dtype) -> None:
    """Raises a ShoalError if the largest value of a hop is too large for float16."""
    limit = float(np.finfo(dtype).max)
    if dtype == np.float16 and peak > limit:
        raise ShoalError("propagation.dtype", f"float16 ends at {limit:g}, but a hop reaches {peak:g}; use float32")


def hops(
    indptr: np.ndarray, indices: np.ndarray, x: Rows, propagation: PropagationOptions, weight: np.ndarray | None = None
) -> list[Rows]:
    """Computes hop 1 to K of a graph that fits in memory, each `[N, F]` of `propagation.dtype`; see `propagate`.

    A hop is computed from the one before as stored, so hops in memory and on disk are the same. Those of sparse
    features are sparse as long as that gains (`gains_sparse`).
    """
    if propagation.max_degree is not None:
        indptr, indices, weight = bound_degrees(indptr, indices, propagation.max_degree, weight)
    result: list[Rows] = []
    for _ in range(propagation.hops):
        last = result[-1] if result else x
        if isinstance(last, CsrRows):
            scalings = _scalings(indptr, propagation.r, weight)
            hop = next_hop((indptr, indices), last, scalings, propagation.dtype, weight)
            if hop is not None:
                result.append(hop)
                continue
            last = last.toarray()
        out = np.empty(last.shape, dtype=propagation.dtype)
        propagate(indptr, indices, last, propagation.r, out, weight=weight)
        result.append(out)
    return result


def bound_degrees(
    indptr: np.ndarray, indices: np.ndarray, most: int, weight: np.ndarray | None = None
) -> tuple[np.ndarray, np.ndarray, np.ndarray | None]:
    """Drops edges, drawn at random, of nodes with more than `most`; the graph is as of `propagate`, rows ascending.

    Edges are numbered at random, keyed by `most`. One stays if at both of its nodes fewer than `most` have a smaller
    number: graphs of this degree stay as they are.
    """
    degree = np.diff(indptr)
    if degree.max(initial=0) <= most:
        return indptr, indices, weight
    row = np.repeat(np.arange(len(degree)), degree)
    # An entry's place in the order of columns is that of its other direction in the order of rows.
    other = np.lexsort((row, indices))
    number = np.random.default_rng(most).permutation(len(row))[np.minimum(np.arange(len(row)), other)]
    first = np.empty(len(row), dtype=bool)
    first[np.lexsort((number, row))] = np.arange(len(row)) - indptr[row] < most
    kept = first & first[other]
    few = np.bincount(row[kept], minlength=len(degree)).cumsum()
    return np.append(0, few).astype(indptr.dtype), indices[kept], None if weight is None else weight[kept]


def _scalings(indptr: np.ndarray, r: float, weight: np.ndarray | None) -> tuple[np.ndarray, np.ndarray]:
    """Computes D^(-r) and D^(r-1), float32 `[N]` each."""
    if weight is not None:
        degree_N = degrees(indptr, weight)
        return (degree_N**-r).astype(np.float32), (degree_N ** (r - 1)).astype(np.float32)
    neighbours = np.diff(indptr)
    # Most nodes share their degree with others: powers of a table, not of every node.
    degree = np.arange(1.0, neighbours.max(initial=0) + 2)
    sent, received = (degree**-r).astype(np.float32), (degree ** (r - 1)).astype(np.float32)
    return sent[neighbours], received[neighbours]


def _numba_view(array: np.ndarray) -> np.ndarray:
    """Views float16 as uint16, as numba has no float16; float32 as it is."""
    return array.view(np.uint16) if array.dtype == np.float16 else array


def _read_only(array: np.ndarray) -> np.ndarray:
    """Makes a read-only view, so that memory maps and arrays in memory share one compiled kernel."""
    view = array.view()
    view.flags.writeable = False
    return view


def next_hop(csr: Pair, x: CsrRows, scalings: Pair, dtype: str, weight: np.ndarray | None) -> CsrRows | None:
    """Computes diag(received) (A + I) diag(sent) x from A's CSR, of ones or weights; None: dense rows gain.

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
    columns, values_of_hop = np.empty(entries, dtype=np.int32), np.empty(entries, dtype=np.float32)
    values = x.values.astype(np.float32, copy=False)
    _fill(csr, weight, (x.indptr, x.columns, values), scalings, x.features, (pointer, columns, values_of_hop))
    with np.errstate(over="ignore"):
        rounded = values_of_hop.astype(dtype, copy=False)
    require_held(float(np.abs(values_of_hop).max(initial=0)), rounded.dtype)
    return CsrRows(pointer, columns, rounded, x.features)


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
