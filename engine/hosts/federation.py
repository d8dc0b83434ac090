"""A run's server behind one handle: in this process, and what one on Ray shares with it."""

from typing import Any, Protocol

import torch

from engine.hosts.device import take_device
from engine.hosts.host import Host
from engine.hosts.local_pool import LocalPool
from engine.rounds.schedule import Plan
from engine.rounds.server import Server
from engine.rounds.state import FederationState
from engine.settings.config import Config
from engine.wire.job import Job
from engine.wire.live import Watch
from storage.errors import ShoalError


class ServerLost(Exception):
    """The server actor died; the newest checkpoint is the way on."""


class Federation(Protocol):
    """A server that a driver steps through its rounds."""

    def round(self, watch: Watch) -> dict[str, Any]:
        """Runs one round and returns its line of metrics; `watch` is called while it is at work."""
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

    def state(self) -> FederationState:
        return self._server.state

    def close(self) -> None:
        pass
