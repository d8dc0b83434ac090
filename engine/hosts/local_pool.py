"""Cells run in this process, one after another: the same code without Ray."""

from collections.abc import Iterator, Sequence

from algorithms.protocol import Tree
from engine.hosts.host import Host
from engine.wire.cell import Cell, Outcome
from engine.wire.job import Job


class LocalPool:
    """One host in this process."""

    retried = 0
    transfer = 0.0
    hosts = (1, 1)

    def __init__(self, host: Host, job: Job) -> None:
        """Opens the job on the host."""
        host.open(job)
        self._host, self._job = host, job

    def run_cells(self, cells: Sequence[Cell], shared: Tree) -> Iterator[tuple[int, Outcome]]:
        """Runs the cells in their order."""
        for position, outcome in enumerate(self._host.run_cells(self._job.id, cells, shared)):
            assert outcome is not None
            yield position, outcome

    def events(self) -> list[str]:
        """Nothing: this process cannot outlive itself."""
        return []
