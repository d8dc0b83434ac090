"""What a driver steps through the rounds of a run: a server behind one handle, and hosts kept warm between runs."""

from collections.abc import Iterator, Sequence
from typing import Any, Protocol

import torch

from shoal.algorithms.protocol import Tree
from shoal.engine.config.config import Config
from shoal.engine.hosts.device import take_device
from shoal.engine.hosts.host import Host
from shoal.engine.messages.cell import Cell, Outcome
from shoal.engine.messages.job import Job
from shoal.engine.rounds.costs import Watch
from shoal.engine.rounds.evaluation import Columns
from shoal.engine.rounds.sampling import Plan
from shoal.engine.rounds.server import Server
from shoal.engine.rounds.state import FederationState
from shoal.storage.errors import ShoalError


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


class ServerLost(Exception):
    """The server actor died; the newest checkpoint is the way on."""


class Federation(Protocol):
    """A server that a driver steps through its rounds."""

    def round(self, watch: Watch) -> dict[str, Any]:
        """Runs one round and returns its line of metrics; `watch` is called while it is at work."""
        ...

    def client_scores(self) -> Columns:
        """The scores of every client after the last evaluation."""
        ...

    def state(self) -> FederationState:
        """The state after the last committed round."""
        ...

    def close(self) -> None:
        """Lets the server go; hosts stay."""
        ...


class Session(Protocol):
    """Hosts for one run after another."""

    def federation(self, job: Job, plan: Plan, state: FederationState | None) -> Federation:
        """A server for a job, fresh or from a state."""
        ...

    def close(self) -> None:
        """Ends the hosts."""
        ...


def server_device(config: Config) -> torch.device:
    """The device of the server, ready for use in this process.

    Raises:
        ShoalError: The server is to have a share of a GPU, and torch finds none.
    """
    share = config.resources.server_gpus
    try:
        return take_device("cuda" if share else "cpu", min(share, 1.0), config.engine.precision)
    except ShoalError as error:
        raise ShoalError(f"resources.server_gpus: {error.line}; or set it to 0", error.detail) from error


class LocalSession:
    """Everything in this process."""

    def __init__(self, config: Config) -> None:
        self._host = Host()
        self._device = server_device(config)

    def federation(self, job: Job, plan: Plan, state: FederationState | None) -> Federation:
        return LocalFederation(Server(job, plan, LocalPool(self._host, job), state, self._device))

    def close(self) -> None:
        pass


class LocalFederation:
    """A server in this process."""

    def __init__(self, server: Server) -> None:
        self._server = server

    def round(self, watch: Watch) -> dict[str, Any]:
        return self._server.round(watch)

    def client_scores(self) -> Columns:
        return self._server.client_scores()

    def state(self) -> FederationState:
        return self._server.state

    def close(self) -> None:
        pass
