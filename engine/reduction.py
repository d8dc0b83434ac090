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
    """Bytes of an upload as the protocol would send it: tensors as they are, weights as float32."""
    weights = sum(4 * (w.numel() if isinstance(w, Tensor) else 1) for w in upload.weight.values())
    return tree_bytes(upload.entries) + weights


def reduce_cell(uploads: Sequence[Upload], ids: Sequence[int], up: Mapping[str, How], outcome: Outcome) -> None:
    """Puts the reduced uploads of a cell into its outcome.

    Raises:
        ShoalError: The method's upload lacks an entry that it asked for.
    """
    for entry, how in up.items():
        for client, upload in zip(ids, uploads):
            if entry not in upload.entries:
                raise ShoalError(f"client {client}: upload() gives no {entry!r}, which the round asks for")
        tensors = [upload.entries[entry] for upload in uploads]
        if how is not How.SUM:
            outcome.tensors[entry] = torch.stack(tensors)
            continue
        total = torch.zeros(tensors[0].shape, dtype=torch.float64)
        weight_total: Tensor = torch.zeros((), dtype=torch.float64)
        for upload, tensor in zip(uploads, tensors):
            weight = torch.as_tensor(upload.weight.get(entry, 1.0), dtype=torch.float64)
            total += weight * tensor
            weight_total = weight_total + weight
        outcome.sums[entry] = total
        outcome.weights[entry] = weight_total


def combine(outcomes: Sequence[Outcome], ids: Sequence[int], up: Mapping[str, How]) -> tuple[Replies, Tree]:
    """What the server sees of all cells, and what the engine holds of `How.MIX` entries, `[clients, …]`.

    Args:
        outcomes: Of the cells, in cell order.
        ids: All clients that answered, in the order of the cells.
        up: Reductions.
    """
    order = sorted(range(len(ids)), key=ids.__getitem__)
    entries: Tree = {}
    weights: Tree = {}
    held: Tree = {}
    for entry, how in up.items():
        if how is How.SUM:
            total = sum((o.sums[entry] for o in outcomes[1:]), start=outcomes[0].sums[entry].clone())
            weight = sum((o.weights[entry] for o in outcomes[1:]), start=outcomes[0].weights[entry].clone())
            mean = torch.where(weight > 0, total / weight, torch.zeros((), dtype=torch.float64))
            entries[entry], weights[entry] = mean.float(), weight
        else:
            stacked = torch.cat([o.tensors[entry] for o in outcomes])
            if order != list(range(len(ids))):
                stacked = stacked[order]
            (held if how is How.MIX else entries)[entry] = stacked
    return Replies(sorted(ids), entries, weights), held
