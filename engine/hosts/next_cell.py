"""What the next cell needs of a device, brought while the device is still at work on the present one."""

from contextlib import suppress

from algorithms.backbones.neighbourhood import Inputs
from algorithms.client_model import ClientModel
from algorithms.protocol import MODEL
from engine.hosts.opened_job import OpenedJob
from engine.wire.bundle import brought
from engine.wire.cell import Cell
from storage.memo import PASSING_SHARE, Memo


class NextCell:
    """Begins a host's cells one after another, each with what was brought for it in the meantime.

    A device works off what it was told in its order. So what the next cell's clients train on is chosen from their
    files, and its copies are on their way, before the processor waits for the present cell, and no number can change.
    """

    def __init__(self, opened: OpenedJob, memo: Memo) -> None:
        """Of a host's job and cache."""
        self._opened, self._memo = opened, memo
        self._on_device = opened.device.type != "cpu"
        self._begun = False
        self._values: Cell | None = None

    def begin(self, cell: Cell) -> Cell:
        """A cell as its clients are given it: on a device with its values there."""
        values, begun = self._values, self._begun
        self._values, self._begun = None, False
        self._opened.begin_round(cell.round)
        if not begun:
            self._memo.begin_turn()
        if not self._on_device:
            return cell
        return brought(cell, self._opened.device) if values is None else values

    def bring(self, cell: Cell | None) -> None:
        """Brings values and training data of the next cell, where its clients are trained in batches.

        Of the data no more than the cache keeps of what only passes. What fails here is met again, and told, once it
        is the cell's turn.
        """
        opened = self._opened
        if cell is None or not self._on_device or not cell.train or opened.stacked_trainer(cell.ids) is None:
            return
        # Nothing of the present cell is asked for any more.
        self._memo.begin_turn()
        self._begun = True
        room = PASSING_SHARE * self._memo.limit
        with suppress(Exception):
            self._values = brought(cell, opened.device)
            for client in cell.ids:
                if room <= 0:
                    break
                room -= self._memo.size_of(self._gathered(client))

    def _gathered(self, client: int) -> Inputs:
        """What the client's model reads to train; the cache keeps it."""
        flat = self._opened.models(self._opened.infos[client])[MODEL]
        # Nothing is drawn: models that draw neighbours are not trained in batches.
        return ClientModel(flat, self._opened.views.get(client), lambda purpose: 0).gathered("train")
