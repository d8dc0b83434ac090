"""Rows of several clients as one tensor."""

from collections.abc import Sequence

import torch
from torch import Tensor

from storage.sparse_matrix import Features, SparseMatrix
from storage.view import View

NO_ROW = -1


def padded(parts: Sequence[Features], filling: int) -> Tensor:
    """Rows of every client, and the filling as often as others have more, `[B, N, …]`."""
    rows = [part.to_dense() if isinstance(part, SparseMatrix) else part for part in parts]
    most = max(map(len, rows))
    filling_N = rows[0].new_full((most, *rows[0].shape[1:]), filling)
    pieces = [piece for own in rows for piece in (own, filling_N[len(own) :])]
    return torch.cat(pieces).unflatten(0, (len(rows), most))


def training_places(views: Sequence[View], most: int) -> tuple[Tensor, Tensor]:
    """Where training rows lie among the nodes of all clients, each with room for `most`, and their labels.

    Returns:
        Places in `B * most` nodes and labels, int64 `[B T]`, T being the training rows of the client that has most.
        What is padded has the place behind all others, `B * most`.
    """
    row_BT = padded([view.train for view in views], NO_ROW)
    label_BT = padded([view.train_label for view in views], 0)
    behind = len(views) * most
    first_B1 = torch.arange(0, behind, most, device=row_BT.device)[:, None]
    return torch.where(row_BT == NO_ROW, behind, row_BT + first_B1).flatten(), label_BT.flatten()
