"""Tensors between the processor and a device in one copy: a bundle, the bytes of all of them behind one another."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import accumulate

import torch
from torch import Tensor

from algorithms.protocol import Tree
from engine.wire.cell import Cell

# Bytes; where a tensor starts on a device.
APART = 64


def sent(tensors: Sequence[Tensor], device: torch.device) -> list[Tensor]:
    """Copies on a device, which nobody waits for; each may be written to as if it were alone."""
    if not tensors:
        return []
    *starts, size = accumulate((-(-t.nbytes // APART) * APART for t in tensors), initial=0)
    bytes_here = torch.empty(size, dtype=torch.uint8, device="cpu", pin_memory=device.type == "cuda")
    for tensor, place in zip(tensors, _places(bytes_here, tensors, starts)):
        place.copy_(tensor)
    bytes_there = bytes_here.to(device, non_blocking=True)
    # Views count their writes together; `data` begins a count of its own.
    return [place.data for place in _places(bytes_there, tensors, starts)]


def brought(cell: Cell, device: torch.device) -> Cell:
    """The cell with all that its clients are given and have kept on a device, copied at once."""
    trees = [*cell.private.values(), *cell.states.values(), *cell.inboxes.values(), cell.score_with]
    copies = iter(sent([t for tree in trees for t in tree.values()], device))

    def of_clients(by_client: Mapping[int, Tree]) -> dict[int, Tree]:
        return {client: {name: next(copies) for name in tree} for client, tree in by_client.items()}

    return replace(
        cell,
        private=of_clients(cell.private),
        states=of_clients(cell.states),
        inboxes=of_clients(cell.inboxes),
        score_with={name: next(copies) for name in cell.score_with},
    )


def fetched(tensors: Sequence[Tensor]) -> list[Tensor]:
    """Copies of a device's tensors on the processor, which waits for them once."""
    if not tensors:
        return []
    # Wide numbers first: so each tensor starts at a multiple of its numbers' width.
    order = sorted(range(len(tensors)), key=lambda i: -tensors[i].element_size())
    ordered = [tensors[i] for i in order]
    *starts, size = accumulate((t.nbytes for t in ordered), initial=0)
    bytes_there = torch.cat([t.detach().contiguous().view(-1).view(torch.uint8) for t in ordered])
    bytes_here = torch.empty(size, dtype=torch.uint8, device="cpu", pin_memory=bytes_there.device.type == "cuda")
    bytes_here.copy_(bytes_there)
    # Each for itself: a client's state must not hold the memory of its cell.
    places = [place.clone() for place in _places(bytes_here, ordered, starts)]
    return [place for _, place in sorted(zip(order, places), key=lambda pair: pair[0])]


def _places(bundle: Tensor, tensors: Sequence[Tensor], starts: Sequence[int]) -> list[Tensor]:
    """Where tensors lie in a bundle, as views of it in their types and shapes."""
    return [bundle[start : start + t.nbytes].view(t.dtype).view(t.shape) for t, start in zip(tensors, starts)]
