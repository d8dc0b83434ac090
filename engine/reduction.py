"""Reducing uploads: within a cell in client order, over cells in cell order, always in float64."""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from algorithms.protocol import How, Replies, Tree, Upload
from engine.cell import Outcome
from storage.errors import ShoalError


def tree_bytes(tree: Tree) -> int:
    """Bytes of the tensors of a message."""
    return sum(t.nbytes for t in tree.values())


def upload_bytes(upload: Upload) -> int:
    """Bytes of an upload as the protocol would send it: tensors as they are, weights as float32, or as it says."""
    told = upload.wire
    weights = {name: w for name, w in upload.weight.items() if name not in told}
    numbers = sum(w.numel() if isinstance(w, Tensor) else 1 for w in weights.values())
    return (
        tree_bytes({name: t for name, t in upload.entries.items() if name not in told})
        + 4 * numbers
        + sum(told.values())
    )


def require_sound(upload: Upload, up: Mapping[str, How]) -> None:
    """Keeps what would poison an aggregate from ever reaching it.

    Raises:
        ShoalError: The upload lacks an entry that the method asked for, or one holds NaN or infinity where it has
            weight.
    """
    for entry, how in up.items():
        if entry not in upload.entries:
            raise ShoalError(f"upload() gives no {entry!r}, which the round asks for")
        read, weight = upload.entries[entry], _weight(upload, entry)
        if how is How.SUM:
            read = _weighty(read, weight)
        if not (torch.isfinite(read).all() and torch.isfinite(weight).all()):
            raise ShoalError(f"upload() gives NaN or infinity in {entry!r}; a smaller train.lr may help")


def reduce_cell(uploads: Sequence[Upload], up: Mapping[str, How], outcome: Outcome) -> None:
    """Puts the reduced uploads of a cell into its outcome.

    Raises:
        ShoalError: Clients give an entry in different shapes.
    """
    for entry, how in up.items():
        tensors = [upload.entries[entry] for upload in uploads]
        _require_one_shape(entry, [t.shape for t in tensors])
        if how is not How.SUM:
            outcome.tensors[entry] = torch.stack(tensors)
            continue
        total = torch.zeros(tensors[0].shape, dtype=torch.float64)
        weight_total: Tensor = torch.zeros((), dtype=torch.float64)
        for upload, tensor in zip(uploads, tensors):
            weight = _weight(upload, entry)
            total += weight * _weighty(tensor, weight)
            weight_total = weight_total + weight
        outcome.sums[entry] = total
        outcome.weights[entry] = weight_total


def combine(outcomes: Sequence[Outcome], ids: Sequence[int], up: Mapping[str, How]) -> tuple[Replies, Tree]:
    """What the server sees of all cells, and what the engine holds of `How.MIX` entries, `[clients, …]`.

    Args:
        outcomes: Of the cells, in cell order.
        ids: All clients that answered, in the order of the cells.
        up: Reductions.

    Raises:
        ShoalError: Clients give an entry in different shapes.
    """
    if not outcomes:
        return Replies([], {}, {}), {}
    order = sorted(range(len(ids)), key=ids.__getitem__)
    entries: Tree = {}
    weights: Tree = {}
    held: Tree = {}
    for entry, how in up.items():
        if how is How.SUM:
            _require_one_shape(entry, [o.sums[entry].shape for o in outcomes])
            total = sum((o.sums[entry] for o in outcomes[1:]), start=outcomes[0].sums[entry].clone())
            weight = sum((o.weights[entry] for o in outcomes[1:]), start=outcomes[0].weights[entry].clone())
            mean = torch.where(weight > 0, total / weight, torch.zeros((), dtype=torch.float64))
            entries[entry], weights[entry] = mean.float(), weight
        else:
            _require_one_shape(entry, [o.tensors[entry].shape[1:] for o in outcomes])
            stacked = torch.cat([o.tensors[entry] for o in outcomes])
            if order != list(range(len(ids))):
                stacked = stacked[order]
            (held if how is How.MIX else entries)[entry] = stacked
    return Replies(sorted(ids), entries, weights), held


def _weight(upload: Upload, entry: str) -> Tensor:
    return torch.as_tensor(upload.weight.get(entry, 1.0), dtype=torch.float64)


def _weighty(tensor: Tensor, weight: Tensor) -> Tensor:
    """The tensor with zeros where it has no weight, and may hold anything."""
    return tensor if bool(weight.all()) else torch.where(weight != 0, tensor, 0.0)


def _require_one_shape(entry: str, shapes: Sequence[torch.Size]) -> None:
    for shape in shapes[1:]:
        if shape != shapes[0]:
            raise ShoalError(
                f"upload() gives {entry!r} as {list(shapes[0])} and as {list(shape)}; clients must agree on its shape"
            )
