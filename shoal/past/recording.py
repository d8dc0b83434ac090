"""A round of a run that is made again in this process, on a host that shows a recorder its cells and outcomes."""

from collections.abc import Iterator, Sequence

import torch

from shoal.algorithms.client import Client
from shoal.algorithms.protocol import Tree
from shoal.algorithms.rng import CPU
from shoal.engine.hosts.backend import LocalBackend
from shoal.engine.messages.cell import Cell, Outcome
from shoal.engine.messages.job import Job
from shoal.engine.records.checkpoint import Checkpoint
from shoal.engine.rounds.sampling import Plan, evaluation_cell
from shoal.engine.rounds.server import Server


class Recorder:
    """A reader of what one host runs. It changes nothing of the round."""

    def before(self, host: "Recording", cell: Cell, shared: Tree) -> None:
        """Reads a cell of a phase before any of them runs; may run it, or one of its clients, by `host.run_alone`."""

    def after(self, cell: Cell, outcome: Outcome) -> None:
        """Reads the outcome of a cell."""


class Recording(LocalBackend):
    """The one host of a round that is made again; its recorder reads all that it runs."""

    def __init__(self, job: Job, recorder: Recorder) -> None:
        """Opens the job, which may differ from that of the run in what does not change uploads."""
        super().__init__()
        self.enter(job)
        self._job, self._recorder = job, recorder

    def start(self, plan: Plan, before: Checkpoint | None, device: torch.device = CPU) -> Server:
        """Returns a server that makes the round after a checkpoint of the run; None: the first round."""
        return Server(self._job, plan, self, None if before is None else before.state, device)

    def client(self, number: int) -> Client:
        """Returns a client with what it trained on; the next client takes its model."""
        return self._host.visit(number, evaluation_cell(1, [number], {}, {}), {}).client

    def run_alone(self, cell: Cell, shared: Tree) -> Outcome:
        """Runs a cell that is not shown to the recorder."""
        ((_, outcome),) = super().run_cells([cell], shared)
        return outcome

    def run_cells(self, cells: Sequence[Cell], shared: Tree) -> Iterator[tuple[int, Outcome]]:
        for cell in cells:
            if cell.phase:
                self._recorder.before(self, cell, shared)
        for position, outcome in super().run_cells(cells, shared):
            self._recorder.after(cells[position], outcome)
            yield position, outcome
