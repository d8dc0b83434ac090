"""Dropout as a processor draws it from torch's default stream, written out: the references of tests drop the same."""

import numpy as np
import torch
from torch import Tensor


def dropped(x: Tensor, p: float, training: bool = True) -> Tensor:
    """Every 64 bits drawn decide over four entries, in their order: an entry stays if its 16 bits are not below p."""
    if not training or not p:
        return x
    drawn = torch.empty(-(-x.numel() // 4), dtype=torch.int64).random_(-(2**63), None).numpy()
    share = (drawn.view(np.int16)[: x.numel()].astype(np.float64) + 2**15) / 2**16
    kept = torch.from_numpy(share >= round(p * 2**16) / 2**16).view(x.shape)
    return x * (kept.to(x.dtype) / (1 - p))
