"""Rows of several clients as one tensor."""

from collections.abc import Sequence

import torch
from torch import Tensor

from storage.sparse_matrix import Features, SparseMatrix


def padded(parts: Sequence[Features], filling: int) -> Tensor:
    """Rows of every client, and the filling as often as others have more, `[B, N, …]`."""
    rows = [part.to_dense() if isinstance(part, SparseMatrix) else part for part in parts]
    most = max(map(len, rows))
    filling_N = rows[0].new_full((most, *rows[0].shape[1:]), filling)
    pieces = [piece for own in rows for piece in (own, filling_N[len(own) :])]
    return torch.cat(pieces).unflatten(0, (len(rows), most))
