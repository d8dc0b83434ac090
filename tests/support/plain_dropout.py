"""Dropout as a processor draws it from torch's default stream, written out: the references of tests drop the same."""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor


def dropped(x: Tensor, p: float, training: bool = True, rows: Sequence[int] | None = None) -> Tensor:
    """Every 64 bits drawn decide over four entries, in their order: an entry stays if its 16 bits are not below p.

    With `rows`, only these are kept and drawn for, in this order.
    """
    if not training or not p:
        return x
    if rows is not None:
        return torch.zeros_like(x).index_copy(0, torch.tensor(rows), dropped(x[rows], p))
    drawn = torch.empty(-(-x.numel() // 4), dtype=torch.int64).random_(-(2**63), None).numpy()
    share = (drawn.view(np.int16)[: x.numel()].astype(np.float64) + 2**15) / 2**16
    kept = torch.from_numpy(share >= round(p * 2**16) / 2**16).view(x.shape)
    return x * (kept.to(x.dtype) / (1 - p))


def reached(adjacency_NN: Tensor, train: Tensor, layers: int) -> list[list[int]]:
    """Nodes that training rows depend on, before the first of some layers, after it, and so on to the training rows."""
    levels = [train.tolist()]
    for _ in range(layers):
        nodes = list(levels[0])
        for receiver in levels[0]:
            nodes += [sender for sender in adjacency_NN[receiver].nonzero()[:, 0].tolist() if sender not in nodes]
        levels.insert(0, nodes)
    return levels
