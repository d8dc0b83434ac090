"""Hosts on Ray, and the server in this process."""

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from shoal.algorithms.protocol import Tree
from shoal.engine.cluster.ray_pool import RayPool
from shoal.engine.cluster.states import write_in_parallel
from shoal.engine.hosts.backend import LocalBackend
from shoal.engine.messages.cell import Cell, Outcome
from shoal.engine.messages.job import Job
from shoal.engine.rounds.sampling import Plan
from shoal.engine.rounds.server import Server
from shoal.engine.rounds.state import FederationState


class WatchedPool(RayPool):
    """A pool that calls `before_phase` with the number of the phase, from 1, before it sends that phase's cells."""

    before_phase: Callable[[int], None] = staticmethod(lambda number: None)
    phases = 0

    def run_cells(self, cells: Sequence[Cell], shared: Tree) -> Iterator[tuple[int, Outcome]]:
        self.phases += 1
        self.before_phase(self.phases)
        return super().run_cells(cells, shared)


class OnHosts(LocalBackend):
    """Hosts are actors that are at work already; a server that is one as well takes seconds to start, for every run."""

    def __init__(self, hosts: Sequence[Any]) -> None:
        super().__init__()
        self.hosts = hosts
        self.before_phase: Callable[[int], None] = lambda number: None

    def open(self, job: Job, plan: Plan, state: FederationState | None) -> None:
        pool = WatchedPool(self.hosts, job, cell_timeout=60.0, retries=3)
        pool.before_phase = self.before_phase
        pool.require_data(range(len(job.model_of)))
        self._server = Server(job, plan, pool, state)

    def write_states(self, folder: Path, state: FederationState) -> dict[str, str]:
        return write_in_parallel(folder, state, dict(enumerate(self.hosts)), 60.0)
