"""A pool of cells that is watched."""

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from shoal.algorithms.protocol import Tree
from shoal.engine.messages.cell import Cell, Outcome
from shoal.engine.rounds.costs import Pool


class Recorded:
    """A pool that keeps what clients were sent and what they sent in the last phase with uploads.

    Attributes:
        downloads: By client, shared and private together.
        uploads: Entries that the server sees or the engine holds, by client.
        weighted: Entries of `Reduce.MEAN`: the tensor times the client's weight, and that weight, by client.
        sent: Entries and lists of every phase, by client; of all rounds, unless a test clears it.
    """

    downloads: dict[int, Tree]
    uploads: dict[int, Tree]
    weighted: dict[int, dict[str, tuple[Tensor, Tensor]]]

    def __init__(self) -> None:
        self.sent: dict[str, dict[int, Tree]] = {}

    def on(self, pool: Pool) -> Pool:
        """Watches over a pool."""
        self._pool = pool
        return self

    def __getattr__(self, name: str) -> Any:
        return getattr(self._pool, name)

    def run_cells(self, cells: Sequence[Cell], shared: Tree) -> Iterator[tuple[int, Outcome]]:
        if any(cell.phase for cell in cells):
            self.downloads = {i: {**shared, **cell.private.get(i, {})} for cell in cells for i in cell.ids}
            self.uploads, self.weighted = {}, {}
        for position, outcome in self._pool.run_cells(cells, shared):
            if phase := cells[position].phase:
                for row, i in enumerate(outcome.ids):
                    self.uploads[i] = {name: stacked[row] for name, stacked in outcome.tensors.items()}
                    lists = {name: rows[row].clone() for name, rows in outcome.lists.items()}
                    self.sent.setdefault(phase, {})[i] = {**self.uploads[i], **lists}
                    self.weighted[i] = {
                        name: (total, torch.as_tensor(part.weight[name]))
                        for part in outcome.sums.values()
                        for name, total in part.total.items()
                    }
            yield position, outcome
