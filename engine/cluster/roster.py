"""Which hosts are at work on a job, whose data each of them sees, and how those that went away come back."""

import os
import time
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import ray
from ray.exceptions import RayError, RayTaskError

from shoal.engine.messages.environment import differences, environment
from shoal.engine.messages.job import Job
from shoal.storage.errors import ShoalError
from shoal.storage.store.manifest import NAME
from shoal.storage.store.store import DOMAINS, hops_path, shard_path, split_path, training_path


@dataclass(frozen=True)
class DataLocality:
    """What a host says of itself when a job is opened on it.

    Attributes:
        machine: Address of its machine.
        clients: Those whose files it sees; whole graphs that are evaluated are among them.
        environment: What its last bits depend on.
    """

    machine: str
    clients: frozenset[int]
    environment: dict[str, Any]


def local_clients(job: Job, machine: str) -> DataLocality:
    """Looks here for shard, split and hops of every client; their content is checked when they are opened."""
    clients = _complete(job.store_path, job)
    if job.training:
        clients &= _complete(job.store_path / training_path(job.split), job)
    graphs = _complete(job.store_path / DOMAINS, job) if clients and job.domains else frozenset()
    behind = {len(job.model_of) + number for number in graphs}
    return DataLocality(machine, clients | behind, environment(job.device))


def _complete(store: Path, job: Job) -> frozenset[int]:
    """The clients of a store all of whose files are here."""
    wanted = [shard_path(0), split_path(job.split, 0), *([hops_path(job.propagation, 0)] if job.propagation else [])]
    found = [_clients(store / path.parent) for path in wanted] if (store / NAME).exists() else []
    return frozenset.intersection(*found) if found else frozenset()


def _clients(folder: Path) -> frozenset[int]:
    # One listing instead of a look at every file: a shared file system answers each in a millisecond.
    names = os.listdir(folder) if folder.is_dir() else []
    return frozenset(int(name.removesuffix(".arrow")) for name in names if name.removesuffix(".arrow").isdigit())


SECONDS_BETWEEN_CALLS = 0.2


class Roster:
    """The host actors of a pool: at work on a job, or invited to open it.

    Attributes:
        hosts: Actor handles.
        ready: What the hosts at work see.
        entering: Calls to invited hosts.
        events: What happened to hosts, a line each.
        heard: When a host was last heard of, by the monotonic clock.
    """

    def __init__(self, hosts: list[Any], job: Job) -> None:
        """All hosts are away at first."""
        self.hosts = hosts
        self.ready: dict[int, DataLocality] = {}
        self.entering: dict[Any, int] = {}
        self.events: list[str] = []
        self.heard = time.monotonic()
        self._store = job.store
        self._named: Callable[[int], str] = lambda i: job.who(i) if job.is_graph(i) else str(i)
        self._job_ref = ray.put(job)
        self._known: dict[int, DataLocality] = {}
        self._next_call = dict.fromkeys(range(len(hosts)), 0.0)

    def hosts_with(self, clients: Iterable[int]) -> list[int]:
        """Hosts that see the data of all of some clients; while no host is at work, those that saw it before."""
        wanted = frozenset(clients)
        return [host for host, locality in (self.ready or self._known).items() if wanted <= locality.clients]

    def unseen(self, clients: Iterable[int]) -> set[int]:
        """Clients whose data no host at work sees."""
        return set(clients).difference(*(locality.clients for locality in self.ready.values()))

    def call_back(self) -> None:
        """Asks every host that is away to open the job; a call to an actor that is starting again may fail."""
        now = time.monotonic()
        for host in set(range(len(self.hosts))) - self.ready.keys() - set(self.entering.values()):
            if now >= self._next_call[host]:
                self._next_call[host] = now + SECONDS_BETWEEN_CALLS
                self.entering[self.hosts[host].enter.remote(self._job_ref)] = host

    def wait(self, refs: Collection[Any], seconds: float) -> list[Any]:
        """Waits for one of some calls or for a host that enters; gives the calls that are done."""
        refs = [*refs, *self.entering]
        if not refs:
            time.sleep(SECONDS_BETWEEN_CALLS)
            return []
        done, _ = ray.wait(refs, num_returns=1, timeout=seconds)
        entered = [ref for ref in done if ref in self.entering]
        for ref in entered:
            self._enters(ref)
        return [ref for ref in done if ref not in entered]

    def leaves(self, host: int) -> None:
        """A host is away until it enters again."""
        self.ready.pop(host, None)
        self._next_call[host] = 0.0

    def refusal(self, clients: Collection[int]) -> ShoalError:
        """Why some clients cannot run."""
        if not self.ready:
            return ShoalError(
                "engine.hosts: no host is left and none came back; the newest checkpoint is kept, use --resume",
                "\n".join(self.events),
            )
        some = ", ".join(self._named(i) for i in sorted(clients)[:10]) + (", …" if len(clients) > 10 else "")
        machines = ", ".join(sorted({locality.machine for locality in self.ready.values()}))
        return ShoalError(
            f"{self._store}: no host sees the files (shard, split, hops) of clients {some}; hosts run on {machines}; "
            "put the store on a file system they share, or manifest.json and those files on a disk of one of them",
            "\n".join(self.events),
        )

    def _enters(self, ref: Any) -> None:
        host = self.entering.pop(ref)
        try:
            locality = ray.get(ref)
        except RayTaskError as error:
            if host not in self._known:
                raise plain_error(error) from error
            # It worked before: what is wrong with it now is no reason to end a run that others can finish.
            self.events.append(f"host {host} is back and stays idle: {plain_error(error)}")
            self.ready[host] = replace(self._known[host], clients=frozenset())
            return
        except RayError:
            return
        if host in self._known:
            self.events.append(f"host {host} is back, on {locality.machine}")
        if not locality.clients:
            self.events.append(f"host {host} on {locality.machine} sees no client of {self._store} and stays idle")
        if host not in self._known and (others := differences(locality.environment, locality.environment["device"])):
            # Named from the host's value to the server's.
            self.events.append(f"host {host} on {locality.machine}: last bits may differ, as {', '.join(others)} do")
        self.ready[host] = self._known[host] = locality
        self.heard = time.monotonic()


def plain_error(error: RayTaskError) -> ShoalError:
    """What went wrong on a host, without Ray's wrapping."""
    cause = error.cause
    if isinstance(cause, ShoalError):
        return ShoalError(cause.line, cause.detail)
    return ShoalError(f"a host failed: {type(cause).__name__}: {cause}", str(error))
