"""Hops of a graph: X, ÃX, Ã²X, … computed once, before any training."""

import numpy as np

from shoal.storage.errors import ShoalError
from shoal.storage.graph.edge_weights import degrees
from shoal.storage.graph.rows import CsrRows, Rows
from shoal.storage.graph.sparse_hops import next_hop
from shoal.storage.kernels.spmm import converts_halves, spmm
from shoal.storage.options.propagation import PropagationOptions

# That are float32 at a time, on a processor that does not convert float16.
COLUMNS = 256


def propagate(
    indptr: np.ndarray, indices: np.ndarray, x: np.ndarray, r: float, out: np.ndarray, weight: np.ndarray | None = None
) -> None:
    """One hop: out = D^(r-1) (A + I) D^(-r) x, D being the degrees with self loop (FedGTA, equation 1).

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
    limit = float(np.finfo(out.dtype).max)
    if out.dtype == np.float16 and peak > limit:
        raise ShoalError("propagation.dtype", f"float16 ends at {limit:g}, but a hop reaches {peak:g}; use float32")


def hops(
    indptr: np.ndarray, indices: np.ndarray, x: Rows, propagation: PropagationOptions, weight: np.ndarray | None = None
) -> list[Rows]:
    """Hop 1 to K of a graph that fits in memory, each `[N, F]` of `propagation.dtype`; see `propagate`.

    A hop is computed from the one before as stored, so hops in memory and on disk are the same. Those of sparse
    features are sparse as long as that gains (`gains_sparse`).
    """
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


def _scalings(indptr: np.ndarray, r: float, weight: np.ndarray | None) -> tuple[np.ndarray, np.ndarray]:
    """D^(-r) and D^(r-1), float32 `[N]` each."""
    if weight is not None:
        own = degrees(indptr, weight)
        return (own**-r).astype(np.float32), (own ** (r - 1)).astype(np.float32)
    neighbours = np.diff(indptr)
    # Most nodes share their degree with others: powers of a table, not of every node.
    degree = np.arange(1.0, neighbours.max(initial=0) + 2)
    sent, received = (degree**-r).astype(np.float32), (degree ** (r - 1)).astype(np.float32)
    return sent[neighbours], received[neighbours]


def _numba_view(array: np.ndarray) -> np.ndarray:
    """float16 seen as uint16, as numba has no float16; float32 as it is."""
    return array.view(np.uint16) if array.dtype == np.float16 else array


def _read_only(array: np.ndarray) -> np.ndarray:
    """A read-only view, so that memory maps and arrays in memory share one compiled kernel."""
    view = array.view()
    view.flags.writeable = False
    return view
