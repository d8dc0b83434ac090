"""Constant matrices of the bare loops and their products, in plain torch or by Shoal's compiled kernel.

MKL's product takes half the time of `torch.sparse.mm` with a reduction at these sizes. Torch's own gradient of it
transposes, and so sorts, the matrix in every step: here a matrix comes with its transpose.
"""

from typing import Any

import numpy as np
import scipy.sparse as sp
import torch
from torch import Tensor

from shoal.storage.graph.rows import MOST_FULL
from shoal.storage.graph.sparse_matrix import Features, SparseMatrix
from shoal.storage.kernels.sparse_product import multiply

# Share of entries that are not zero, from which on the dense product is faster than MKL's sparse one.
DENSE_FROM = 0.3
ONE, ZERO = np.float32(1), np.float32(0)


class Matrix:
    """A constant `[N, M]` that weights or activations are multiplied by, kept sparse or dense as is faster.

    Attributes:
        shape: N and M.
        entries: Numbers that a product reads.
        dense: The matrix, where it is kept dense.
    """

    def __init__(self, matrix: sp.csr_array, kernel: bool = False) -> None:
        """Takes a matrix; `kernel`: sparse products are Shoal's, not MKL's."""
        self.shape = rows, columns = matrix.shape
        share = matrix.nnz / max(1, rows * columns)
        dense = share > (MOST_FULL if kernel else DENSE_FROM)
        self.dense = torch.from_numpy(matrix.toarray()) if dense else None
        self.entries = rows * columns if dense else matrix.nnz
        self._kernel = kernel
        if not dense:
            forward, back = _parts(matrix), _parts(matrix.T.tocsr())
            if all(map(np.array_equal, forward, back)):
                back = forward  # of a symmetric matrix, which then lies in caches once
            self._parts = forward, back
            self._csr = _csr(forward, matrix.shape), _csr(back, matrix.shape[::-1])

    def times(self, x: Tensor, out: Tensor, add: bool = False) -> Tensor:
        """The product with `[M, H]`, in or added to `out`, `[N, H]`; both are C-contiguous float32."""
        return self._product(0, x, out, add)

    def transposed_times(self, x: Tensor, out: Tensor, add: bool = False) -> Tensor:
        """The transpose's product with `[N, H]`, in or added to `out`, `[M, H]`."""
        return self._product(1, x, out, add)

    def plus(self, bias: Tensor, x: Tensor, out: Tensor) -> Tensor:
        """The product and a bias `[H]`."""
        return self.times(x, out).add_(bias) if self.dense is None else torch.addmm(bias, self.dense, x, out=out)

    def _product(self, side: int, x: Tensor, out: Tensor, add: bool) -> Tensor:
        if self.dense is not None:
            return torch.addmm(out, self.dense.t() if side else self.dense, x, beta=add, out=out)
        if self._kernel:
            multiply(*self._parts[side], x.data_ptr(), out.data_ptr(), x.shape[1], ONE, ONE if add else ZERO)
            return out
        return torch.addmm(out, self._csr[side], x, beta=add, out=out)

    def __matmul__(self, x: Tensor) -> Tensor:
        """The product with `[M, H]`, which may be differentiated."""
        return _Product.apply(x, self) if self.dense is None else self.dense @ x  # type: ignore[no-untyped-call]


class _Product(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, matrix: Matrix) -> Tensor:
        ctx.matrix = matrix
        return matrix.times(x, torch.empty(matrix.shape[0], x.shape[1]))

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        of_out = gradients[0].contiguous()
        return ctx.matrix.transposed_times(of_out, torch.empty(ctx.matrix.shape[1], of_out.shape[1])), None


def features(x_NF: Features) -> sp.csr_array:
    """Features as a store gives them, as a SciPy matrix of float32."""
    if isinstance(x_NF, SparseMatrix):
        indptr, indices, values = (part.numpy() for part in x_NF.float().parts())
        return sp.csr_array((values, indices, indptr), shape=tuple(x_NF.shape))
    return sp.csr_array(x_NF.float().numpy())


def _parts(matrix: sp.csr_array) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    matrix.sort_indices()
    kinds = (np.int32, np.int32, np.float32)
    found = (matrix.indptr, matrix.indices, matrix.data)
    starts, columns, values = (np.ascontiguousarray(part, kind) for part, kind in zip(found, kinds))
    return starts, columns, values


def _csr(parts: tuple[np.ndarray, ...], shape: tuple[int, int]) -> Tensor:
    starts, columns, values = map(torch.from_numpy, parts)
    return torch.sparse_csr_tensor(starts, columns, values, size=shape, check_invariants=False)
