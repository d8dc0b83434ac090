"""Graphs of several clients side by side: one sparse product for all of them.

Axes: B clients, N nodes of the largest of them, H numbers a node.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from storage.sparse_matrix import SparseMatrix


def joined(matrices: Sequence[Tensor], most: int) -> Tensor:
    """Square matrices in CSR as blocks on the diagonal of one `[B N, B N]`, each with room for `most` = N nodes."""
    clients = len(matrices)
    starts, columns, values = zip(*((m.crow_indices(), m.col_indices(), m.values()) for m in matrices))
    # Of every node its row's end within its own client; nodes beyond have that of the last one.
    pieces = [piece for own in starts for piece in (own[1:], own[-1:].expand(most - len(own) + 1))]
    entries_B = torch.cat([own[-1:] for own in starts])
    before_B = (entries_B.cumsum(0) - entries_B).to(entries_B.dtype)
    ends_N = (torch.cat(pieces).view(clients, most) + before_B[:, None]).flatten()
    device = ends_N.device
    shift_B = torch.arange(0, clients * most, most, dtype=entries_B.dtype, device=device)
    total = sum(len(own) for own in columns)
    shifted = torch.cat(columns) + torch.repeat_interleave(shift_B, entries_B.long(), output_size=total)
    row_starts, size = torch.cat([ends_N.new_zeros(1), ends_N]), (clients * most, clients * most)
    return torch.sparse_csr_tensor(
        row_starts, shifted, torch.cat(values), size=size, device=device, check_invariants=False
    )


class JoinedMatrices:
    """Matrices of several clients that one client's code multiplies by inside `torch.vmap`, all of them at once.

    To that code it is the `SparseMatrix` of one client with N nodes.
    """

    def __init__(self, matrices: Sequence[SparseMatrix], most: int) -> None:
        """Of square matrices, `most` being N."""
        self._most = most
        csr = joined([matrix.csr for matrix in matrices], most)
        symmetric = all(matrix.transposed is matrix.csr for matrix in matrices)
        self.matrix = SparseMatrix(csr, csr if symmetric else joined([m.transposed for m in matrices], most))

    def __len__(self) -> int:
        return self._most

    def __matmul__(self, dense: Tensor) -> Tensor:
        """The product with one client's float32 `[N, H]`; only inside `torch.vmap`."""
        product: Tensor = _Product.apply(dense, self.matrix)
        return product


class _Product(torch.autograd.Function):
    """A product that all clients of a `vmap` take part in."""

    @staticmethod
    def forward(dense: Tensor, matrix: SparseMatrix) -> Tensor:
        raise RuntimeError("graphs side by side are for several clients at once")

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        """Nothing is kept: the product inside of `vmap` knows its own gradient."""

    @staticmethod
    def vmap(info: Any, in_dims: tuple[int, None], dense: Tensor, matrix: SparseMatrix) -> tuple[Tensor, int]:
        dense_BNH = dense.movedim(in_dims[0], 0)
        return (matrix @ dense_BNH.flatten(0, 1)).view(len(dense_BNH), -1, dense_BNH.shape[2]), 0
