"""Masks of a client's own on the weight matrices of its model (Fed-PUB).

Axes: P parameters, W entries of weight matrices among them.
"""

import torch
from torch import Tensor, nn

from shoal.algorithms.client import Client, FlatModel

# Where a client's state holds its mask, `[W]`; absent before its first training, when all are one.
MASK = "mask"


def in_matrices(flat: FlatModel) -> Tensor:
    """Which parameters are entries of a weight matrix, bool `[P]`; the others, as biases, have no mask."""
    parts = [torch.full((p.numel(),), p.dim() == 2, device=p.device) for p in flat.module.parameters()]
    return torch.cat(parts)


def masked(w: Tensor, mask_W: Tensor, places_P: Tensor, threshold: float = 0.0) -> Tensor:
    """The parameters that a model computes with, `[P]`: entries of matrices times their masks.

    Args:
        w: Parameters, `[P]`.
        mask_W: Masks, in the order of the entries.
        places_P: What `in_matrices` gives.
        threshold: A mask that is smaller in size counts as 0.
    """
    return w * factors(torch.where(mask_W.abs() < threshold, 0, mask_W), places_P)


def factors(mask_W: Tensor, places_P: Tensor) -> Tensor:
    """What every parameter is multiplied by, `[P]`: 1 outside of matrices."""
    return torch.ones_like(places_P, dtype=mask_W.dtype).masked_scatter(places_P, mask_W)


def own_mask(client: Client, entries: int) -> nn.Parameter:
    """A client's mask, `[W]`: all ones before its first training, of so many entries."""
    kept = client.state.get(MASK)
    return nn.Parameter(torch.ones(entries, device=client.data.device) if kept is None else kept)
