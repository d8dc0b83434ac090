"""Tracks live hosts, the data each can read, and reconnection."""

import os
import time
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, replace
from functools import reduce
from operator import and_
from pathlib import Path
from typing import Any

import ray
from ray.exceptions import RayError, RayTaskError

from shoal.engine.cluster.client_ranges import ClientRanges
from shoal.engine.hosts.device import DeviceLost
from shoal.engine.messages.environment import differences, environment
from shoal.engine.messages.job import Job
from shoal.storage.errors import ShoalError
from shoal.storage.store.client_table import clients_of
from shoal.storage.store.manifest import NAME
from shoal.storage.store.store import DOMAINS, hops_path, shard_path, split_path, training_path


@dataclass(frozen=True)
class DataLocality:
    """The report of a host that opens a job: its machine's address, its environment, the clients it can read.

    `clients` has those whose files are there, and evaluated whole graphs.
    """

    machine: str
    clients: ClientRanges
    environment: dict[str, Any]


def local_clients(job: Job, machine: str) -> DataLocality:
    """Finds the clients whose shard, split and hops this machine can read; their content is checked at opening."""
    if job.remote is not None:
        # Every machine can fetch every file.
        everyone = range(len(job.model_of) + len(job.domains))
        return DataLocality(machine, ClientRanges([everyone]), environment(job.compute.device))
    clients = _complete(job.store_path, job)
    if job.training:
        clients &= _complete(job.store_path / training_path(job.split), job)
    graphs = _complete(job.store_path / DOMAINS, job) if clients and job.domains else NONE
    before = len(job.model_of)
    numbered = ClientRanges(range(before + numbers.start, before + numbers.stop) for numbers in graphs.ranges)
    return DataLocality(machine, clients | numbered, environment(job.compute.device))


def _complete(store: Path, job: Job) -> ClientRanges:
    """Returns the clients of a store of which all files are here."""
    wanted = [shard_path(0), split_path(job.split, 0), *([hops_path(job.hops_folder, 0)] if job.hops_folder else [])]
    by_kind = [_clients(store / path.parent) for path in wanted] if (store / NAME).exists() else []
    return reduce(and_, by_kind) if by_kind else NONE


def _clients(folder: Path) -> ClientRanges:
    # One listing for all files: a shared file system would take a millisecond for each.
    return ClientRanges(map(clients_of, os.listdir(folder) if folder.is_dir() else ()))


NONE = ClientRanges(())
SECONDS_BETWEEN_CALLS = 0.2


class Roster:
    """The host actors of a pool.

    Attributes:
        ready: Hosts that have opened the job, and the data each can read.
        entering: Hosts that are opening the job, by the call.
        events: Losses and returns of hosts, a line each.
        answered: The time of the last answer of any host, by the monotonic clock.
        entered: Hosts that became ready since the pool last looked.
        signs: The actor that takes signs of life from hosts, and the seconds between two signs.
        late: Hosts that were not up when the run began.
    """

    def __init__(self, hosts: list[Any], job: Job) -> None:
        """Calls no host yet: all are absent at first."""
        self.hosts = hosts
        self.ready: dict[int, DataLocality] = {}
        self.entering: dict[Any, int] = {}
        self.events: list[str] = []
        self.answered = time.monotonic()
        self.entered: set[int] = set()
        self.signs: tuple[Any, ...] = ()
        self.late: set[int] = set()
        self._store = job.store
        self._named: Callable[[int], str] = lambda i: job.who(i) if job.is_graph(i) else str(i)
        self._job_ref = ray.put(job)
        self._known: dict[int, DataLocality] = {}
        self._failed: set[int] = set()
        # Why hosts stay idle that came back and could not open the job.
        self._faults: dict[int, ShoalError] = {}
        self._grouped: dict[ClientRanges, list[int]] | None = None
        self._joined: dict[tuple[ClientRanges, ...], list[int]] = {}
        self._next_call = dict.fromkeys(range(len(hosts)), 0.0)

    def hosts_with(self, clients: Iterable[int]) -> list[int]:
        """Returns ready hosts that can read the data of all these clients; while none is ready, hosts that could."""
        wanted = list(clients)
        able = tuple(readable for readable in self._groups() if readable.issuperset(wanted))
        # Equal groups have the same list, since `place` takes cells of one list together.
        if able not in self._joined:
            self._joined[able] = [host for readable in able for host in self._groups()[readable]]
        return self._joined[able]

    def _groups(self) -> dict[ClientRanges, list[int]]:
        """Groups ready hosts by the clients that they can read; the lists stay the same until a host comes or goes."""
        if self._grouped is None:
            self._grouped, self._joined = {}, {}
            for host, locality in (self.ready or self._known).items():
                self._grouped.setdefault(locality.clients, []).append(host)
        return self._grouped

    def unreadable(self, clients: Iterable[int]) -> set[int]:
        """Returns the clients that no ready host can read."""
        readable = {locality.clients for locality in self.ready.values()}
        return ClientRanges(part for of_host in readable for part in of_host.ranges).missing(clients)

    def call_back(self) -> None:
        """Calls every absent host to open the job; a call to an actor that is restarting may fail."""
        if len(self.ready) + len(self.entering) == len(self.hosts):
            return
        now = time.monotonic()
        for host in set(range(len(self.hosts))) - self.ready.keys() - set(self.entering.values()):
            if now >= self._next_call[host]:
                self._next_call[host] = now + SECONDS_BETWEEN_CALLS
                self.entering[self._call(host)] = host

    def _call(self, host: int) -> Any:
        return self.hosts[host].enter.remote(self._job_ref, host, *self.signs)

    def wait(self, refs: Collection[Any], seconds: float) -> list[Any]:
        """Waits for one of these calls or for a host that enters; returns the calls that are done."""
        refs = [*refs, *self.entering]
        if not refs:
            time.sleep(SECONDS_BETWEEN_CALLS)
            return []
        done, others = ray.wait(refs, num_returns=1, timeout=seconds)
        # Other calls may be done by now, and a look at all takes as long as one at the first.
        done += ray.wait(others, num_returns=len(others), timeout=0)[0] if others else []
        entered = [ref for ref in done if ref in self.entering]
        for ref in entered:
            self._enters(ref)
        return [ref for ref in done if ref not in entered]

    def leaves(self, host: int) -> None:
        """Marks a host as absent until it enters again."""
        self.ready.pop(host, None)
        self._grouped = None
        self._next_call[host] = 0.0

    @property
    def helpless(self) -> bool:
        """Whether no host can work, not even one that is absent."""
        return len(self._faults) == len(self.hosts)

    def refusal(self, clients: Collection[int]) -> ShoalError:
        """Makes the error for clients that cannot run."""
        if not self.ready.keys() - self._faults.keys():
            why = f"none can work: {next(iter(self._faults.values()))}" if self._faults else "none came back"
            return ShoalError(
                "engine.hosts",
                f"all hosts are lost and {why}; the newest checkpoint is kept, use --resume",
                detail="\n".join(self.events),
            )
        some = ", ".join(self._named(i) for i in sorted(clients)[:10]) + (", …" if len(clients) > 10 else "")
        machines = ", ".join(sorted({locality.machine for locality in self.ready.values()}))
        absent = f" ({count} more are not there)" if (count := len(self.hosts) - len(self.ready)) else ""
        return ShoalError(
            self._store,
            f"clients {some}: no host can read their files (shard, split, hops); hosts run on "
            f"{machines}{absent}; put the store on a file system they share, or manifest.json and those files on a "
            "disk of one of them",
            detail="\n".join(self.events),
        )

    def _enters(self, ref: Any) -> None:
        host = self.entering.pop(ref)
        came = "is back" if host in self._known else "joined" if host in self.late else None
        try:
            locality = ray.get(ref)
        except RayTaskError as error:
            # What is wrong with the config or the data is so on every host.
            if came is None and not isinstance(error.cause, DeviceLost):
                raise plain_error(error) from error
            # The fault of a host does not end a run that other hosts can finish.
            self._faults[host] = plain_error(error)
            self.events.append(f"host {host} {f'{came} and ' if came else ''}stays idle: {self._faults[host]}")
            before = self._known.get(host, DataLocality("its machine", NONE, {}))
            self._is_ready(host, replace(before, clients=NONE))
            return
        except RayError as error:
            # A host is called again and again; its first failure alone is an event.
            if host in self.late - self._failed:
                self._failed.add(host)
                self.events.append(f"host {host} did not start yet: {' '.join(str(error).split())[:200]}")
            return
        if came is not None:
            self.events.append(f"host {host} {came}, on {locality.machine}")
            # The hosts of a machine share its memory, now with one more.
            for other, there in self.ready.items():
                if there.machine == locality.machine:
                    self._call(other)
        if not locality.clients:
            self.events.append(f"host {host} on {locality.machine} can read no client of {self._store} and stays idle")
        if host not in self._known and (others := differences(locality.environment, locality.environment["device"])):
            # Each difference reads from the host's value to the server's.
            self.events.append(f"host {host} on {locality.machine}: last bits may differ, as {', '.join(others)} do")
        self._known[host] = locality
        self._is_ready(host, locality)
        self.answered = time.monotonic()

    def _is_ready(self, host: int, locality: DataLocality) -> None:
        self.ready[host] = locality
        self.entered.add(host)
        self._grouped = None


def plain_error(error: RayTaskError, where: str = "a host") -> ShoalError:
    """Returns the error that an actor raised, without Ray's wrapping."""
    cause = error.cause
    if isinstance(cause, ShoalError):
        return ShoalError(*cause.args, detail=cause.detail)
    return ShoalError(f"{where} failed: {type(cause).__name__}: {cause}", detail=str(error))
