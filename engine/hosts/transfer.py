"""Tensors between the processor and a device in one copy: a bundle, the bytes of all of them behind one another."""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import accumulate

import torch
from torch import Tensor

from shoal.algorithms.client_model import ClientModel
from shoal.algorithms.models.inputs.neighbourhood import Inputs
from shoal.algorithms.protocol import MODEL, Tree
from shoal.engine.hosts.job_context import OpenedJob
from shoal.engine.messages.cell import Cell
from shoal.storage.store.cache import PASSING_SHARE, Cache

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


class NextCell:
    """Begins a host's cells one after another, each with what was brought for it in the meantime.

    A device works off what it was told in its order. So what the next cell's clients train on is chosen from their
    files, and its copies are on their way, before the processor waits for the present cell, and no number can change.
    """

    def __init__(self, opened: OpenedJob, cache: Cache) -> None:
        """Of a host's job and cache."""
        self._opened, self._cache = opened, cache
        self._on_device = opened.device.type != "cpu"
        self._begun = False
        self._values: Cell | None = None

    def receive(self, cell: Cell) -> Cell:
        """A cell as its clients are given it: on a device with its values there."""
        values, begun = self._values, self._begun
        self._values, self._begun = None, False
        self._opened.begin_round(cell.round)
        if not begun:
            self._cache.begin_turn()
        if not self._on_device:
            return cell
        return brought(cell, self._opened.device) if values is None else values

    def bring(self, cell: Cell | None) -> None:
        """Brings values and training data of the next cell, where its clients are trained in batches.

        Of the data no more than the cache keeps of what only passes. What fails here is met again, and told, once it
        is the cell's turn.
        """
        opened = self._opened
        if cell is None or not self._on_device or not cell.train or opened.batched_trainer(cell.ids) is None:
            return
        # Nothing of the present cell is asked for any more.
        self._cache.begin_turn()
        self._begun = True
        room = PASSING_SHARE * self._cache.limit
        with suppress(Exception):
            self._values = brought(cell, opened.device)
            for client in cell.ids:
                if room <= 0:
                    break
                room -= self._cache.size_of(self._gathered(client))

    def _gathered(self, client: int) -> Inputs:
        """What the client's model reads to train; the cache keeps it."""
        flat = self._opened.models(self._opened.infos[client])[MODEL]
        # Nothing is drawn: models that draw neighbours are not trained in batches.
        return ClientModel(flat, self._opened.views.get(client), lambda purpose: 0).gathered("train")
