"""Rows of features: a dense array, or only what is not zero, in the arrays that lie in a file."""

from dataclasses import dataclass
from typing import Any

import numpy as np

BLOCK_VALUES = 1 << 22
# Share of values that are not zero, above which products of dense rows are faster (`benchmarks/spmm.py`).
MOST_FULL = 0.4


@dataclass(frozen=True, eq=False)
class CsrRows:
    """Sparse rows `[N, F]`. SciPy's own class has no float16.

    Attributes:
        indptr: Where each row starts, int32 `[N + 1]`.
        columns: Columns, int32 `[E]`, ascending in a row.
        values: float32 or float16 `[E]`.
        features: Width F.
    """

    indptr: np.ndarray
    columns: np.ndarray
    values: np.ndarray
    features: int

    def __len__(self) -> int:
        return len(self.indptr) - 1

    @property
    def shape(self) -> tuple[int, int]:
        return len(self), self.features

    @property
    def dtype(self) -> np.dtype:
        return self.values.dtype

    @property
    def entries(self) -> int:
        """Number of stored values E."""
        return len(self.values)

    @property
    def nbytes(self) -> int:
        return self.indptr.nbytes + self.columns.nbytes + self.values.nbytes

    def __getitem__(self, rows: np.ndarray) -> "CsrRows":
        """Some rows, integers `[n]`, in the order asked for."""
        counts = np.diff(self.indptr)[rows]
        indptr = np.zeros(len(rows) + 1, dtype=np.int32)
        np.cumsum(counts, out=indptr[1:])
        places = np.arange(indptr[-1]) + np.repeat(self.indptr[rows] - indptr[:-1], counts)
        return CsrRows(indptr, self.columns[places], self.values[places], self.features)

    def toarray(self) -> np.ndarray:
        """Returns the rows as a dense array `[N, F]`."""
        # The import takes 0.2 s of every process, and one that reads manifests needs no matrix.
        import scipy.sparse as sp

        values = self.values.astype(np.float32, copy=False)
        return (
            sp.csr_array((values, self.columns, self.indptr), shape=self.shape).toarray().astype(self.dtype, copy=False)
        )


Rows = np.ndarray | CsrRows


def dense_bytes(rows: int, features: int, dtype: Any) -> int:
    """Counts the bytes of dense rows."""
    return rows * features * np.dtype(dtype).itemsize


def sparse_bytes(rows: int, entries: int, dtype: Any) -> int:
    """Counts the bytes of sparse rows with so many values in all."""
    return 4 * rows + entries * (4 + np.dtype(dtype).itemsize)


def gains_sparse(shape: tuple[int, ...], entries: int, dtype: Any) -> bool:
    """Whether rows `[N, F]` with so many values take fewer bytes and less time in products as sparse rows of a type."""
    rows, features = shape
    few = entries <= MOST_FULL * rows * features
    return few and sparse_bytes(rows, entries, dtype) < dense_bytes(rows, features, dtype)


def entries_of(x: Any) -> int:
    """Counts the values that an array or SciPy CSR has as sparse rows."""
    return int(np.count_nonzero(x)) if isinstance(x, np.ndarray) else int(x.nnz)


def csr_of(x: Any) -> Any:
    """Converts an array in memory to SciPy CSR float32, in blocks of rows; keeps a CSR as it is."""
    if not isinstance(x, np.ndarray):
        return x
    import scipy.sparse as sp

    step = max(1, BLOCK_VALUES // max(1, x.shape[1]))
    starts = range(0, len(x), step)
    blocks = [sp.csr_array(x[start : start + step].astype(np.float32)) for start in starts]
    return sp.vstack(blocks, format="csr") if blocks else sp.csr_array(x.shape, dtype=np.float32)
