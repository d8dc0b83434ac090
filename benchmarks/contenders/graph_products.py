"""The products of the bare loop over graphs, in plain torch; of several ways of each the fastest was kept.

MKL's product takes half the time of `torch.sparse.mm` with a reduction at these sizes. Torch's own gradient of it
transposes, and so sorts, the matrix in every step: here a matrix comes with its transpose.
"""

from typing import Any

import numpy as np
import scipy.sparse as sp
import torch
import torch.nn.functional as F
from torch import Tensor

from shoal.storage.graph.sparse_matrix import Features, SparseMatrix

# Share of entries that are not zero, from which on the dense product is the faster one.
DENSE_FROM = 0.3
SLOPE = 0.2


class Matrix:
    """A constant `[N, M]` that weights or activations are multiplied by, kept sparse or dense as is faster.

    Attributes:
        density: Share of entries that are not zero.
    """

    def __init__(self, matrix: sp.csr_array, symmetric: bool = False) -> None:
        """Takes a matrix; the transpose of a symmetric one is itself."""
        rows, columns = matrix.shape
        self.density = matrix.nnz / (rows * columns)
        self._dense = torch.from_numpy(matrix.toarray()) if self.density > DENSE_FROM else None
        if self._dense is None:
            self._csr = _csr(matrix)
            self._transposed = self._csr if symmetric else _csr(matrix.T.tocsr())

    def __matmul__(self, right: Tensor) -> Tensor:
        """The product with a float32 `[M, H]`."""
        if self._dense is not None:
            return self._dense @ right
        return _Product.apply(right, self._csr, self._transposed)  # type: ignore[no-any-return, no-untyped-call]


class _Product(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, right: Tensor, csr: Tensor, transposed: Tensor) -> Tensor:
        ctx.transposed = transposed
        return product(csr, right)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None]:
        return product(ctx.transposed, gradients[0]), None, None


def product(csr: Tensor, right: Tensor) -> Tensor:
    """`csr @ right` without a gradient; the operator itself fills its result with zeros and copies it."""
    out = torch.empty(csr.shape[0], right.shape[1])
    return torch.addmm(out, csr, right, beta=0, out=out)


class Attention:
    """Softmax over the neighbours of every node and the sum that it weighs, one product for all heads.

    A head of a node is a node of its own, its neighbours the same head of that node's neighbours. As the pattern is
    symmetric, the transpose has other values and no other indices.
    """

    def __init__(self, pattern: sp.csr_array, heads: int, width: int) -> None:
        """Takes the symmetric pattern `[N, N]` of who hears whom, loops included, and the width of a head."""
        whole = sp.kron(pattern, sp.eye_array(heads), format="csr")
        whole.sort_indices()
        size = whole.shape[0]
        self.sources, self.starts = (torch.from_numpy(a.astype(np.int32)) for a in (whole.indices, whole.indptr))
        targets = np.repeat(np.arange(size), np.diff(whole.indptr))
        self.targets = torch.from_numpy(targets.astype(np.int32))
        self.turned = torch.from_numpy(np.lexsort((targets, whole.indices)).astype(np.int32))
        self.ones = torch.ones(size)
        # Which columns of a layer are a head's.
        self.own = torch.eye(heads).repeat_interleave(width, 0)

    def csr(self, values_E: Tensor) -> Tensor:
        """The pattern with these values."""
        size = (len(self.ones), len(self.ones))
        return torch.sparse_csr_tensor(self.starts, self.sources, values_E, size=size, check_invariants=False)

    def __call__(self, h_MD: Tensor, source_M: Tensor, target_M: Tensor) -> Tensor:
        """Sums over neighbours j of i, weighed by softmax(LeakyReLU(source_j + target_i)), `[M, D]`; M = N * heads."""
        return _Attend.apply(h_MD, source_M, target_M, self)  # type: ignore[no-any-return, no-untyped-call]


class _Attend(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, h_MD: Tensor, source_M: Tensor, target_M: Tensor, over: Attention) -> Tensor:
        raw_E = source_M.index_select(0, over.sources).add_(target_M.index_select(0, over.targets))
        score_E = F.leaky_relu(raw_E, SLOPE)
        # One maximum for all nodes: enough while scores span less than 87, where float32 ends.
        csr = over.csr(score_E.sub_(score_E.max()).exp_())
        total_M1 = torch.mv(csr, over.ones).unsqueeze(1)
        out_MD = product(csr, h_MD).div_(total_M1)
        ctx.over, ctx.kept = over, (h_MD, raw_E, csr, total_M1, out_MD)
        return out_MD

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor, Tensor, None]:
        over, (h_MD, raw_E, csr, total_M1, out_MD) = ctx.over, ctx.kept
        weight_E, gradient_MD = csr.values(), gradients[0] / total_M1
        to_h_MD = product(over.csr(weight_E.index_select(0, over.turned)), gradient_MD)
        mean_M = (gradient_MD * out_MD).sum(1)
        along_E = torch.sparse.sampled_addmm(csr, gradient_MD, h_MD.t(), beta=0.0).values()
        to_score_E = along_E.sub_(mean_M.index_select(0, over.targets)).mul_(weight_E)
        to_raw_E = torch.where(raw_E > 0, to_score_E, to_score_E * SLOPE)
        to_target_M = torch.mv(over.csr(to_raw_E), over.ones)
        to_source_M = torch.mv(over.csr(to_raw_E.index_select(0, over.turned)), over.ones)
        return to_h_MD, to_source_M, to_target_M, None


def features(x_NF: Features) -> sp.csr_array:
    """Features as a store gives them, as a SciPy matrix of float32."""
    if isinstance(x_NF, SparseMatrix):
        indptr, indices, values = (part.numpy() for part in x_NF.float().parts())
        return sp.csr_array((values, indices, indptr), shape=tuple(x_NF.shape))
    return sp.csr_array(x_NF.float().numpy())


def _csr(matrix: sp.csr_array) -> Tensor:
    matrix.sort_indices()
    starts, columns = (torch.from_numpy(a.astype(np.int32)) for a in (matrix.indptr, matrix.indices))
    values = torch.from_numpy(matrix.data.astype(np.float32))
    return torch.sparse_csr_tensor(starts, columns, values, size=matrix.shape, check_invariants=False)
