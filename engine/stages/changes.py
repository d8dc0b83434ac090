"""Changes: the difference of what a client sends from what it received under the same name in its visit."""

from collections.abc import Mapping

import torch
from torch import Tensor

from shoal.algorithms.protocol import Reduce, Tree, Upload
from shoal.engine.messages.cell import Cell
from shoal.engine.rounds.reduction import zero_unweighted


def like(value: Tensor, other: Tensor | None) -> Tensor | None:
    """Returns another tensor, if it is a float tensor of the same shape."""
    return other if other is not None and other.shape == value.shape and other.is_floating_point() else None


def changes_of(upload: Upload, received: Tree, cell: Cell) -> dict[str, tuple[Tensor, Tensor]]:
    """Returns of every mean entry with weight what it is a change from, and the change.

    It is a change from the tensor of the same name that the client received in this visit, in a download or its inbox,
    or from zeros. Rows without weight do not change.
    """
    changes = {}
    for name, how in cell.up.items():
        value, weight = upload.entries[name], upload.weight.get(name, 1.0)
        if how is Reduce.MEAN and (isinstance(weight, Tensor) or weight):
            base = like(value, received.get(name))
            base = torch.zeros_like(value) if base is None else base.to(value.dtype)
            changes[name] = base, zero_unweighted(value - base, weight)
    return changes


def bound_norm(upload: Upload, changes: Mapping[str, tuple[Tensor, Tensor]], bound: float) -> tuple[Upload, bool]:
    """Scales the changes of an upload down to an l2 norm of at most the bound; returns whether they were above it.

    The norm is that of all mean entries of a message together (Sun et al., Can you really backdoor federated learning?,
    2019, section 4: w_k <- w_k / max(1, |w_k| / M)).
    """
    norm = sum((change.double().square().sum() for _, change in changes.values()), torch.zeros(())).sqrt()
    entries, above = dict(upload.entries), bool(norm > bound)
    if above:
        share = bound / float(norm)
        entries |= {name: (base + share * change).to(change.dtype) for name, (base, change) in changes.items()}
    return Upload(entries, upload.weight, upload.upload_bytes), above
