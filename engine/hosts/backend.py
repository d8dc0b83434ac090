"""The interface that a driver steps through rounds: a server, and hosts that stay warm between runs."""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Protocol, Self

import torch

from shoal.algorithms.protocol import Tree
from shoal.algorithms.rng import CPU
from shoal.engine.config.config import Config
from shoal.engine.hosts.device import give_back_memory, take_device
from shoal.engine.hosts.devices.gpu import fetch
from shoal.engine.hosts.host import Host
from shoal.engine.messages.cell import Cell, Outcome
from shoal.engine.messages.job import Job
from shoal.engine.rounds.costs import Kernel, Live, Watch, kernels_compiled, note_kernels
from shoal.engine.rounds.sampling import Plan
from shoal.engine.rounds.server import Server
from shoal.engine.rounds.state import FederationState
from shoal.storage.errors import ShoalError


class ServerLost(Exception):
    """The process of the server died; the run continues from its newest checkpoint."""


class Backend(Protocol):
    """A server and its hosts, which run jobs one after another: `open`, then `round` as often as wanted, at last
    `close`.

    Methods that need the server raise ServerLost where it died, and ShoalError for what a user can cause.
    """

    def open(self, job: Job, plan: Plan, state: FederationState | None) -> None:
        """Starts a server for a job, from a state or from the start; ends the one before."""
        ...

    def describe_hosts(self) -> str:
        """Says how many hosts the job that was opened has, and on how many cores; empty: all is one process."""
        ...

    def rounds(self, watch: Watch, until: int) -> Iterator[dict[str, Any]]:
        """Runs the next round, and maybe short ones up to round `until`; yields their lines of metrics.

        It calls `watch` meanwhile. The server may be ahead of the lines until all are there.
        """
        ...

    def publish(self, line: Mapping[str, Any]) -> None:
        """Shows the whole line of a round where others look at it."""
        ...

    def state(self, on_disk: Collection[str] = ()) -> FederationState:
        """Returns the state after the last committed round; models of digests that a checkpoint has may lack."""
        ...

    def write_states(self, folder: Path, state: FederationState) -> dict[str, str]:
        """Writes what a state has in a cluster's memory into files of a folder; gives their names and digests.

        Raises:
            OSError: A file cannot be written.
        """
        ...

    def end(self) -> None:
        """Ends the server, if there is one; hosts stay."""
        ...

    def close(self) -> None:
        """Ends server and hosts."""
        ...


def server_device(config: Config) -> torch.device:
    """Takes the device of the server, ready for use; raises a ShoalError if it is to be a GPU and there is none."""
    share = config.resources.server_gpus
    try:
        return take_device("cuda" if share else "cpu", min(share, 1.0), config.engine.precision)
    except ShoalError as error:
        raise ShoalError("resources.server_gpus", f"{error.line}; or set it to 0", detail=error.detail) from error


class HostHere(Host):
    """A host in the server's process, which notes each visit, so that a crash names the client; see `note_places`."""

    keeps_from = 0.0
    round = 0
    note: Callable[[str], None] = staticmethod(lambda place: None)

    def begins(self, client: int) -> None:
        assert self._opened is not None
        job = self._opened.job
        who = f"client {client}" if client < len(job.model_of) else job.who(client)
        self.note(f"round {self.round}, {who}")


class LocalBackend:
    """A server and its one host in this process; the host is the server's pool.

    A crash of compiled code ends this process, and with it the run: see `note_places`.
    """

    retried = 0
    transfer = 0.0
    hosts = (1, 1)

    def __init__(self, device: torch.device = CPU) -> None:
        """Starts without a job; the method's server part computes on `device`."""
        self._host, self._device = HostHere(), device
        self._job_id = ""
        self._server: Server | None = None
        # Those that preparing the store took.
        self._kernels_before = kernels_compiled()

    def enter(self, job: Job) -> Self:
        """Opens a job on the host, for `run_cells`."""
        self._host.open(job)
        self._job_id = job.id
        return self

    def note_places(self, note: Callable[[str], None]) -> None:
        """Gives `note` the round and the client of every visit, as it begins, and when the server goes on."""
        self._host.note = note

    def run_cells(self, cells: Sequence[Cell], shared: Tree) -> Iterator[tuple[int, Outcome]]:
        """Runs cells in their order; yields the position of each with its outcome."""
        self._host.round = cells[0].round if cells else 0
        for position, outcome in enumerate(self._host.run_cells(self._job_id, cells, shared)):
            assert outcome is not None
            yield position, outcome
        self._host.note(f"round {self._host.round}, server")

    def open(self, job: Job, plan: Plan, state: FederationState | None) -> None:
        self._server = Server(job, plan, self.enter(job), state, self._device)

    def describe_hosts(self) -> str:
        return ""

    def rounds(self, watch: Watch, until: int) -> Iterator[dict[str, Any]]:
        line = self.round(watch)
        assert self._server is not None, "open() comes first"
        yield self._server.add_scores(line)

    def round(self, watch: Watch) -> dict[str, Any]:
        """Runs one round and returns its line of metrics; calls `watch` meanwhile."""
        assert self._server is not None, "open() comes first"
        shown: list[Live] = []

        def show(live: Live) -> None:
            shown[:] = [live]
            watch(live)

        def compiles(kernel: Kernel) -> None:
            number, name = kernel
            if shown:
                watch(replace(shown[0], kernel=(number - self._kernels_before, name)))

        note_kernels(compiles)
        try:
            return self._server.round(show)
        finally:
            note_kernels()

    def publish(self, line: Mapping[str, Any]) -> None:
        pass

    def state(self, on_disk: Collection[str] = ()) -> FederationState:
        assert self._server is not None, "open() comes first"
        state = self._server.state
        away = [t for tree in state.clients.values() for t in tree.values() if t.device != CPU]
        if not away:
            return state
        # What stayed on a GPU is fetched, with one wait.
        here = dict(zip(map(id, away), fetch(away)))
        clients = {i: {name: here.get(id(t), t) for name, t in tree.items()} for i, tree in state.clients.items()}
        return replace(state, clients=clients)

    def write_states(self, folder: Path, state: FederationState) -> dict[str, str]:
        return {}

    def end(self) -> None:
        self._server = None

    def close(self) -> None:
        """Lets go of the job and its data; memory that is free then goes to the system, since a sweep has more runs."""
        self.end()
        self._host = HostHere()
        give_back_memory()
