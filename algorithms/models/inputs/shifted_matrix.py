"""Matrices of a layer that add numbers of their own to what messages sum up to."""

from torch import Tensor

from shoal.storage.graph.sparse_matrix import SparseMatrix


class ShiftedMatrix(SparseMatrix):
    """A sparse matrix A `[n, N]` whose product with X `[N, H]` is A X + E, E `[n, H]` float32, perhaps with a gradient.

    A layer that multiplies by its weights first, as of GCN and GraphSAGE, then computes its output plus E.
    """

    def __init__(self, matrix: SparseMatrix, shift_NH: Tensor) -> None:
        super().__init__(matrix.csr)
        self._matrix, self._shift_NH = matrix, shift_NH

    def __matmul__(self, dense: Tensor) -> Tensor:
        return self._matrix @ dense + self._shift_NH
