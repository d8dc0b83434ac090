"""Hosts on Ray, and the server in this process."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import psutil
import ray

from shoal.algorithms.protocol import Tree
from shoal.engine.cluster.ray_pool import RayPool
from shoal.engine.cluster.states import write_in_parallel
from shoal.engine.hosts.backend import LocalBackend
from shoal.engine.messages.cell import Cell, Outcome
from shoal.engine.messages.job import Job
from shoal.engine.rounds.sampling import Plan
from shoal.engine.rounds.server import Server
from shoal.engine.rounds.state import FederationState


class Killing(RayPool):
    """A pool that kills the first host that it calls in a phase, with the cells of this call; phases count from 1."""

    phase: int | None = None
    phases = 0

    def run_cells(self, cells: Sequence[Cell], shared: Tree) -> Iterator[tuple[int, Outcome]]:
        self.phases += 1
        return super().run_cells(cells, shared)

    def call(self, host: int, cells: Sequence[Cell], shared: Any) -> list[Any]:
        if self.phases != self.phase:
            return super().call(host, cells, shared)
        self.phase = None
        process = psutil.Process(ray.get(self.roster.hosts[host].ping.remote(), timeout=60))
        # A small cell would be back before its host is killed.
        process.suspend()
        refs = super().call(host, cells, shared)
        process.kill()
        process.wait()
        return refs


class OnHosts(LocalBackend):
    """Hosts are actors that are at work already; a server that is one as well takes seconds to start, for every run."""

    def __init__(self, hosts: Sequence[Any]) -> None:
        super().__init__()
        self.hosts = hosts
        self.kill_in: int | None = None

    def open(self, job: Job, plan: Plan, state: FederationState | None) -> None:
        pool = Killing(self.hosts, job, cell_timeout=60.0, retries=3)
        pool.phase = self.kill_in
        pool.require_data(range(len(job.model_of)))
        self._server = Server(job, plan, pool, state)

    def write_states(self, folder: Path, state: FederationState) -> dict[str, str]:
        return write_in_parallel(folder, state, dict(enumerate(self.hosts)), 60.0)
