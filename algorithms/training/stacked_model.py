"""One model with the parameters of several clients, on the rows of each.

Axes: B clients, N rows of the longest of them, F features, C classes, P parameters.
"""

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.func import functional_call, vmap

from algorithms.flat_model import FlatModel
from storage.sparse_matrix import Features, SparseMatrix


def logits_of(model: FlatModel, w_P: Tensor, hops: Sequence[Tensor]) -> Tensor:
    """Logits `[N, C]` of rows of hops by a decoupled model, in its present mode, with other parameters than its own."""
    names = (name for name, _ in model.module.named_parameters())
    logits: Tensor = functional_call(model.module, dict(zip(names, model.parts(w_P))), (hops,)).logits_NC
    return logits


def evaluated(model: FlatModel, w_BP: Tensor, hops: Sequence[Tensor]) -> Tensor:
    """Logits `[B, N, C]` of all clients in evaluation mode, without gradients; of hops `[B, N, F]`, float32."""
    model.module.eval()
    with torch.no_grad(), model.precision():
        return vmap(lambda w_P, *parts: logits_of(model, w_P, parts))(w_BP, *hops).float()


def padded(parts: Sequence[Features], filling: int) -> Tensor:
    """Rows of every client, and the filling as often as others have more, `[B, N, …]`."""
    rows = [part.to_dense() if isinstance(part, SparseMatrix) else part for part in parts]
    most = max(map(len, rows))
    filling_N = rows[0].new_full((most, *rows[0].shape[1:]), filling)
    pieces = [piece for own in rows for piece in (own, filling_N[len(own) :])]
    return torch.cat(pieces).unflatten(0, (len(rows), most))
