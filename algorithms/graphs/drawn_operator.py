"""The symmetric matrix of a graph whose edges were drawn: with gradients to whether an edge is there."""

from typing import Any

import numpy as np
import torch
from torch import Tensor

from shoal.algorithms.graphs.pairs import compiled, cross_dots, symmetric_rows
from shoal.algorithms.models.inputs.neighbourhood import operator_over
from shoal.storage.graph.propagation import propagate
from shoal.storage.graph.sparse_matrix import SparseMatrix


class DrawnOperator(SparseMatrix):
    """P = D^-1/2 (A + I) D^-1/2, D = diag((A + I) 1), of a graph whose edges are some of the candidate pairs.

    It stands where the matrix of a layer stands, which is multiplied by dense rows; `plain` is the matrix itself. A
    product has gradients to the dense factor and to a_e, whether pair e is an edge, for all pairs, also those that are
    none: with y = P x, g the gradient of y and s = D^-1/2 1,

        dL/da_ij = s_i s_j (<g_i, x_j> + <g_j, x_i>) + t_i + t_j,   t_i = -s_i^2 (<g_i, y_i> + <x_i, (P g)_i>) / 2,

    t being what comes through the degrees.

    Attributes:
        degree_N: Degrees with loop, float32.
    """

    def __init__(self, pairs_2S: Tensor, kept_S: Tensor, nodes: int) -> None:
        """Makes the graph once, for all layers that multiply by it.

        Args:
            pairs_2S: Candidates i < j, int32, ascending by i and then by j.
            kept_S: a, float32, zeros and ones; may have a gradient.
            nodes: Number of nodes N.
        """
        self._pairs_2S, self._kept_S, self._nodes = pairs_2S, kept_S, nodes
        found_S = kept_S.detach() > 0.5
        if compiled(kept_S):
            self._rows = _rows(pairs_2S, found_S, nodes)
            self.degree_N = torch.from_numpy(np.diff(self._rows[0]) + 1).float()
        else:
            self.degree_N, self._matrix = _by_torch(pairs_2S, found_S, nodes)

    @property
    def shape(self) -> torch.Size:
        return torch.Size((self._nodes, self._nodes))

    @property
    def dtype(self) -> torch.dtype:
        return torch.float32

    @property
    def device(self) -> torch.device:
        return self._kept_S.device

    def __len__(self) -> int:
        return self._nodes

    def __matmul__(self, dense: Tensor) -> Tensor:
        with torch.autocast(dense.device.type, enabled=False):
            return _Product.apply(dense.float(), self._kept_S, self)

    def plain(self) -> SparseMatrix:
        """The same numbers as a matrix of constants."""
        return operator_over("symmetric", *self._rows) if compiled(self._kept_S) else self._matrix

    def to_dense(self) -> Tensor:
        return self.plain().to_dense()

    def product(self, x_NH: Tensor) -> Tensor:
        """P x, without gradients."""
        if not compiled(x_NH):
            return self._matrix @ x_NH
        out_NH = torch.empty(x_NH.shape)
        propagate(*self._rows, x_NH.contiguous().numpy(), 0.5, out_NH.numpy())
        return out_NH

    def of_edges(self, x_NH: Tensor, y_NH: Tensor, g_NH: Tensor, back_NH: Tensor) -> Tensor:
        """dL/da, float32 `[S]`, from x, y = P x, the gradient g of y, and P g."""
        s_N, (i, j) = self.degree_N.rsqrt(), self._pairs_2S
        t_N = (torch.linalg.vecdot(g_NH, y_NH) + torch.linalg.vecdot(x_NH, back_NH)) / (-2 * self.degree_N)
        found_S = cross_dots(g_NH, x_NH, self._pairs_2S)
        found_S *= s_N.index_select(0, i)
        found_S *= s_N.index_select(0, j)
        found_S += t_N.index_select(0, i)
        found_S += t_N.index_select(0, j)
        return found_S


class _Product(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x_NH: Tensor, kept_S: Tensor, matrix: DrawnOperator) -> Tensor:
        y_NH = matrix.product(x_NH.detach())
        ctx.matrix = matrix
        if kept_S.requires_grad:
            ctx.save_for_backward(x_NH, y_NH)
        return y_NH

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor | None, None]:
        g_NH = gradients[0].contiguous()
        back_NH = ctx.matrix.product(g_NH)
        if not ctx.needs_input_grad[1]:
            return back_NH, None, None
        x_NH, y_NH = ctx.saved_tensors
        return back_NH, ctx.matrix.of_edges(x_NH, y_NH, g_NH, back_NH), None


def _rows(pairs_2S: Tensor, found_S: Tensor, nodes: int) -> tuple[np.ndarray, np.ndarray]:
    """Row starts and columns of A."""
    low, high = pairs_2S.numpy()
    return symmetric_rows(low, high, found_S.numpy(), nodes)


def _by_torch(pairs_2S: Tensor, found_S: Tensor, nodes: int) -> tuple[Tensor, SparseMatrix]:
    """Degrees with loop, and the matrix, on any device."""
    low, high = pairs_2S[:, found_S].long()
    loops = torch.arange(nodes, device=low.device) * (nodes + 1)
    keys = torch.cat([low * nodes + high, loops, high * nodes + low]).sort().values
    row, column = keys // max(nodes, 1), keys % max(nodes, 1)
    starts = torch.searchsorted(row, torch.arange(nodes + 1, device=row.device))
    degree_N = starts.diff().float()
    scale_N = degree_N.rsqrt()
    matrix = SparseMatrix.of(starts.int(), column.int(), scale_N[row] * scale_N[column], nodes)
    return degree_N, SparseMatrix(matrix.csr, matrix.csr)
