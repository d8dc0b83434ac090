"""Hops a relation: means over the senders of each kind of edges, computed once, before any training.

Axes: N nodes, R relations, E entries, F features.
"""

from typing import Any

import numpy as np
import scipy.sparse as sp

from shoal.storage.errors import ShoalError
from shoal.storage.graph.propagation import require_held
from shoal.storage.graph.rows import CsrRows, Rows, gains_sparse

KEY = "propagation.relations"
# Rows of a dense hop that are summed at a time.
ROWS_A_BLOCK = 1 << 14


def relation_hops(
    indptr: np.ndarray, indices: np.ndarray, kind_ER: np.ndarray, x: Rows, steps: int, dtype: str
) -> list[Rows]:
    """Computes X^(k, r) = M_r Z^(k-1) for k = 1 to K, in each for all r, each `[N, F]` of `dtype`, K R in all.

    M_r takes the mean over the senders of a node by relation r, zero where there are none; Z^(0) = X and
    Z^(k) = sum_r X^(k, r). So a hop is the sum, over the meta-paths of k steps that end with r, of SeHGNN's features
    (Yang et al., AAAI 2023, eq. 4), of which those of other kinds at the start lie in other columns. A hop is computed
    from the ones before as stored, and is sparse where features are and that gains (`gains_sparse`).

    Args:
        indptr, indices: CSR of the graph.
        kind_ER: Ones at the relations of every entry, else zeros, `[E, R]`.
        x: Features `[N, F]`.

    Raises:
        ShoalError: Features of edges are no kinds, or a value is too large for float16.
    """
    if ((kind_ER != 0) & (kind_ER != 1)).any():
        raise ShoalError(KEY, "hops a relation read kinds of edges, features that are 0 or 1, found others; set false")
    result: list[Rows] = []
    last = _matrix_of(x)
    for step in range(steps):
        hops = [_hop(_means(indptr, indices, kind_E), last, dtype) for kind_E in kind_ER.T]
        result += hops
        if step < steps - 1:
            last = _sum(hops)
    return result


def _means(indptr: np.ndarray, indices: np.ndarray, kind_E: np.ndarray) -> sp.csr_array:
    """Makes the matrix of means over senders by one relation, float32 `[N, N]`."""
    entry = np.flatnonzero(kind_E)
    starts = np.searchsorted(entry, indptr)
    counts, nodes = np.diff(starts), len(indptr) - 1
    shares = np.repeat((1 / np.maximum(counts, 1)).astype(np.float32), counts)
    return sp.csr_array((shares, indices[entry], starts), shape=(nodes, nodes))


def _hop(means: sp.csr_array, x: np.ndarray | sp.csr_array, dtype: str) -> Rows:
    if sp.issparse(x):
        product = sp.csr_array(means @ x)
        product.eliminate_zeros()
        product.sort_indices()
        require_held(float(np.abs(product.data).max(initial=0)), np.dtype(dtype))
        if gains_sparse(product.shape, product.nnz, dtype):
            columns = product.indices.astype(np.int32)
            return CsrRows(product.indptr.astype(np.int32), columns, product.data.astype(dtype), product.shape[1])
        return product.toarray().astype(dtype)
    hop, peak = np.empty(x.shape, dtype=dtype), 0.0
    for start in range(0, len(hop), ROWS_A_BLOCK):
        block = means[start : start + ROWS_A_BLOCK] @ x
        peak = max(peak, float(np.abs(block).max(initial=0)))
        with np.errstate(over="ignore"):
            hop[start : start + ROWS_A_BLOCK] = block
    require_held(peak, hop.dtype)
    return hop


def _sum(hops: list[Rows]) -> np.ndarray | sp.csr_array:
    """Sums the hops of a step, float32; sparse, if all are."""
    matrices: list[Any] = [_matrix_of(hop) for hop in hops]
    first, *others = matrices
    if sp.issparse(first) and not all(map(sp.issparse, others)):
        first = first.toarray()
    total = first if sp.issparse(first) else np.array(first)
    for other in others:
        if sp.issparse(total):
            total = total + other
        else:
            total += other.toarray() if sp.issparse(other) else other
    return total


def _matrix_of(x: Rows) -> np.ndarray | sp.csr_array:
    """Returns rows as float32, dense or as SciPy's."""
    if isinstance(x, CsrRows):
        return sp.csr_array((x.values.astype(np.float32), x.columns, x.indptr), shape=x.shape)
    return x.astype(np.float32, copy=False)
