"""Left factors of dense matrices: features that need not be written out, and sparse matrices of constants."""

import warnings
from abc import ABC, abstractmethod
from functools import cached_property
from typing import Any

import numpy as np
import scipy.sparse as sp
import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

NUMBERS: dict[torch.dtype, Any] = {torch.float32: np.float32, torch.float64: np.float64}


def ranges(starts: Tensor, counts: Tensor) -> Tensor:
    """Lists every range's start, start + 1, …, as many as it counts, int64 `[sum of counts]`."""
    places = torch.arange(int(counts.sum()), device=starts.device)
    places += (starts - counts.cumsum(0) + counts).repeat_interleave(counts)
    return places


# The warning comes once a process.
warnings.filterwarnings("ignore", message="Sparse CSR tensor support is in beta")


class FeatureMatrix(ABC):
    """Features `[N, F]` that a model multiplies by a weight; a dense tensor has the same operations."""

    @property
    @abstractmethod
    def shape(self) -> torch.Size:
        """N and F."""

    @abstractmethod
    def __matmul__(self, dense: Tensor) -> Tensor:
        """The product with a float32 `[F, H]`, which may be differentiated."""

    def float(self) -> "FeatureMatrix":
        """Converts the values to float32; returns itself, if it has them."""
        return self

    @abstractmethod
    def to_dense(self) -> Tensor:
        """Returns the features as a dense tensor `[N, F]`."""

    def __len__(self) -> int:
        return int(self.shape[0])


class SparseMatrix(FeatureMatrix):
    """CSR `[N, M]`: features of nodes, or weights of messages. Its numbers are constants, not parameters.

    Its transpose is made once, and not in every step of training. `csr` has int32 row starts and columns, float32 or
    float16 values.
    """

    def __init__(self, csr: Tensor, transposed: Tensor | None = None, ones: bool = False) -> None:
        """Wraps a CSR tensor with columns ascending in a row; by `ones`, a product need not read the values.

        The transpose, `csr` itself if that is symmetric, is made when a gradient first needs it, where it is not known.
        """
        self.csr = csr
        self._transposed = transposed
        self._ones = ones

    @classmethod
    def of(
        cls, indptr: Any, indices: Any, values: Any, columns: int, transposed: Tensor | None = None
    ) -> "SparseMatrix":
        """Makes one over arrays or tensors, without a copy: row starts and columns int32, values float32 or float16."""
        return cls(_csr(indptr, indices, values, columns), transposed)

    @property
    def shape(self) -> torch.Size:
        return self.csr.shape

    @property
    def dtype(self) -> torch.dtype:
        return self.csr.dtype

    @property
    def device(self) -> torch.device:
        return self.csr.device

    @property
    def most_bytes(self) -> int:
        """Bytes of its arrays and of its transpose, made or not."""
        indptr, indices, values = self.parts()
        size = indptr.nbytes + indices.nbytes + values.nbytes
        return size if self._transposed is self.csr else 2 * size + 4 * (self.shape[1] - self.shape[0])

    def parts(self) -> tuple[Tensor, Tensor, Tensor]:
        """Returns row starts, columns, values."""
        return _parts(self.csr)

    @property
    def transposed(self) -> Tensor:
        """The transpose as CSR `[M, N]`."""
        if self._transposed is None:
            indptr, indices, values = (part.cpu().numpy() for part in self.parts())
            half = values.dtype == np.float16  # SciPy has no such matrices
            csc = sp.csr_array((values.astype(np.float32) if half else values, indices, indptr), self.shape).tocsc()
            kept = csc.data.astype(values.dtype, copy=False)
            made = _csr(csc.indptr.astype(np.int32), csc.indices.astype(np.int32), kept, len(self))
            self._transposed = made.to(self.device)
        return self._transposed

    def prepare(self) -> "SparseMatrix":
        """Makes the transpose, and returns the matrix itself."""
        _ = self.transposed
        return self

    def __matmul__(self, dense: Tensor) -> Tensor:
        if torch.is_autocast_enabled(dense.device.type):
            with torch.autocast(dense.device.type, enabled=False):
                return self @ dense.float()
        if torch.is_grad_enabled() and dense.requires_grad:
            return _Product.apply(dense, self)
        return self.times(dense)

    def times(self, dense: Tensor, out: Tensor | None = None, alpha: float = 1.0, beta: float = 0.0) -> Tensor:
        """Computes alpha A X + beta Y, `[N, H]`, without gradients, in Y = `out`, if given; beta 0 does not read it."""
        return self._factor.times(dense, out, alpha, beta)

    def times_transposed(
        self, dense: Tensor, out: Tensor | None = None, alpha: float = 1.0, beta: float = 0.0
    ) -> Tensor:
        """Does the same with A' `[M, N]` instead of A."""
        return self._transposed_factor.times(dense, out, alpha, beta)

    @property
    def arrays(self) -> tuple[np.ndarray, np.ndarray, np.ndarray | None]:
        """Row starts, columns and values as the kernel of products reads them, on a processor; None: all are ones."""
        return self._factor.arrays

    @property
    def transposed_arrays(self) -> tuple[np.ndarray, np.ndarray, np.ndarray | None]:
        """The same of the transpose."""
        return self._transposed_factor.arrays

    @cached_property
    def form(self) -> tuple[int, int, bool, int] | None:
        """Rows, columns, whether all entries are one, their count; None for other matrices than compiled passes read.

        These are of float32, on a processor, with places in int32.
        """
        if self.dtype != torch.float32 or self.device.type != "cpu":
            return None
        starts, columns, values = self.arrays
        if starts.dtype != np.int32 or columns.dtype != np.int32:
            return None
        return *self.shape, values is None, len(columns)

    @property
    def addresses(self) -> tuple[int, int, int]:
        """Addresses of `arrays`, which stay as long as the matrix; 0 for None."""
        return self._factor.addresses

    @property
    def transposed_addresses(self) -> tuple[int, int, int]:
        """The same of the transpose."""
        return self._transposed_factor.addresses

    @cached_property
    def _factor(self) -> "_Factor":
        return _Factor(self.csr, self._ones)

    @cached_property
    def _transposed_factor(self) -> "_Factor":
        return self._factor if self.transposed is self.csr else _Factor(self.transposed, self._ones)

    def to(self, device: torch.device) -> "SparseMatrix":
        """Copies to a device; returns itself, if it is there."""
        if device == self.device:
            return self
        csr, transposed = self.csr.to(device), self._transposed
        if transposed is not None:
            transposed = csr if transposed is self.csr else transposed.to(device)
        return SparseMatrix(csr, transposed, self._ones)

    def float(self) -> "SparseMatrix":
        if self.dtype == torch.float32:
            return self
        indptr, indices, values = self.parts()
        return SparseMatrix.of(indptr, indices, values.float(), self.shape[1])

    def block(self, start: int, stop: int) -> "SparseMatrix":
        """Returns successive rows, sharing columns and values; itself, if they are all."""
        if start == 0 and stop == len(self):
            return self
        indptr, indices, values = self.parts()
        rows = indptr[start : stop + 1]
        low, high = int(rows[0]), int(rows[-1])
        return SparseMatrix.of(rows - rows[0], indices[low:high], values[low:high], self.shape[1])

    def rows(self, rows: Tensor) -> "SparseMatrix":
        """Selects rows, int64 `[n]`, in the order asked for."""
        indptr, indices, values = self.parts()
        starts = indptr[rows].long()
        counts = indptr[rows + 1].long() - starts
        places = ranges(starts, counts)
        return SparseMatrix.of(_starts(counts), indices[places], values[places], self.shape[1])

    def diagonal_blocks(self, first: Tensor, blocks: Tensor) -> "SparseMatrix":
        """Selects square blocks, in order, of a matrix of nothing else; `first` are first rows, int64 `[G + 1]`."""
        block_csr = _diagonal_blocks(self.csr, first, blocks)
        transposed = self._transposed
        if transposed is not None:
            transposed = block_csr if transposed is self.csr else _diagonal_blocks(transposed, first, blocks)
        return SparseMatrix(block_csr, transposed)

    def to_dense(self) -> Tensor:
        return self.csr.to_dense()


# Features that a model multiplies by a weight, and those that a store holds.
Features = Tensor | FeatureMatrix
StoredFeatures = Tensor | SparseMatrix


def require_stored(x: Features) -> StoredFeatures:
    """Asserts that features are a tensor or a sparse matrix, and nothing that is computed in a product."""
    assert isinstance(x, Tensor | SparseMatrix), type(x).__name__
    return x


class _Product(torch.autograd.Function):
    """torch's own product transposes, and so sorts, the sparse matrix in every backward pass."""

    @staticmethod
    def forward(ctx: Any, dense: Tensor, matrix: SparseMatrix) -> Tensor:
        ctx.matrix = matrix
        return matrix.times(dense)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        return ctx.matrix.times_transposed(gradients[0]), None


class _Factor:
    """A matrix `[N, M]` as the kernel reads it, with its numbers by the types of dense matrices it is multiplied by."""

    def __init__(self, csr: Tensor, ones: bool) -> None:
        """`ones`: all values are 1."""
        self.csr = csr
        self.rows, self.columns = csr.shape
        self.numbers: dict[torch.dtype, Any] = {}
        if csr.device.type != "cpu" or csr.dtype not in (torch.float16, *NUMBERS):
            return
        self.numbers = NUMBERS if csr.dtype != torch.float64 else {torch.float64: np.float64}
        # Loading kernels takes a third of a second and 140 MB: only a process that multiplies loads them.
        from shoal.storage.kernels.sparse_product import multiply
        from shoal.storage.kernels.spmm import converts_halves

        self._multiply = multiply
        starts, senders, values = _parts(csr)
        if csr.dtype == torch.float16:
            values = values.view(torch.uint16) if converts_halves() else values.float()
        self.arrays = starts.numpy(), senders.numpy(), None if ones else values.numpy()

    @cached_property
    def addresses(self) -> tuple[int, int, int]:
        starts, senders, values = (0 if part is None else part.ctypes.data for part in self.arrays)
        return starts, senders, values

    def times(self, dense: Tensor, out: Tensor | None, alpha: float, beta: float) -> Tensor:
        """Computes alpha A X + beta Y; by torch, if not by the kernel, which also refuses what does not fit."""
        number = self.numbers.get(dense.dtype) if dense.is_cpu else None
        if number is None or dense.dim() != 2 or len(dense) != self.columns:
            out = dense.new_empty(self.rows, *dense.shape[1:]) if out is None else out
            return torch.addmm(out, self.csr, dense, beta=beta, alpha=alpha, out=out)
        width = dense.shape[1]
        if out is None:
            out = torch.empty(self.rows, width, dtype=dense.dtype, device="cpu")
        assert out.shape == (self.rows, width), (out.shape, self.rows, width)
        assert out.dtype == dense.dtype, out.dtype
        x, y = dense.contiguous(), out.contiguous()
        (starts, senders, values), weights = self.arrays, (number(alpha), number(beta))
        self._multiply(starts, senders, values, x.data_ptr(), y.data_ptr(), width, *weights)
        return out if y is out else out.copy_(y)


def _csr(indptr: Any, indices: Any, values: Any, columns: int) -> Tensor:
    starts, places, numbers = (
        torch.from_numpy(part) if isinstance(part, np.ndarray) else part for part in (indptr, indices, values)
    )
    size = (len(starts) - 1, columns)
    # The matrix lies where its parts lie, whatever device a block around this has chosen.
    device = numbers.device
    return torch.sparse_csr_tensor(starts, places, numbers, size=size, device=device, check_invariants=False)


def _diagonal_blocks(csr: Tensor, first: Tensor, blocks: Tensor) -> Tensor:
    indptr, indices, values = _parts(csr)
    top, end = first[blocks], first[blocks + 1]
    rows = ranges(top, end - top)
    entry = indptr[top].long()
    entries = indptr[end].long() - entry
    places = ranges(entry, entries)
    # Each block moves up and to the left by this.
    moved = top - (end - top).cumsum(0) + (end - top)
    columns = indices[places] - moved.repeat_interleave(entries).int()
    return _csr(_starts(indptr[rows + 1] - indptr[rows]), columns, values[places], len(rows))


def _starts(counts: Tensor) -> Tensor:
    """Computes row starts, int32 `[n + 1]`, of rows with so many entries, `[n]`."""
    ends = counts.cumsum(0)
    return torch.cat([ends.new_zeros(1), ends]).int()


def _parts(csr: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    return csr.crow_indices(), csr.col_indices(), csr.values()
