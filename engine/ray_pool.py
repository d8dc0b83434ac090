"""Cells on host actors: largest first, back to the host that knows the shard, again elsewhere if a host dies."""

import logging
import math
import os
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import Any

import ray
from ray.exceptions import GetTimeoutError, RayActorError, RayError, RayTaskError

from algorithms.protocol import Tree
from engine import tensor_transport
from engine.cell import Outcome, Work
from engine.host import Host
from engine.job import Job
from storage.errors import ShoalError

log = logging.getLogger(__name__)
CALLS_IN_FLIGHT = 2
# Cells that take less are sent together: a call costs milliseconds.
SECONDS_OF_A_CALL = 0.25
PATIENCE = 1.0
BETWEEN_PINGS = 0.1
RESTART_SECONDS = 120.0


class HostActor(Host):
    """A host as a Ray actor."""

    def __init__(self) -> None:
        super().__init__()
        tensor_transport.register()

    def run_cells(self, job_id: str, works: Sequence[Work], shared: Tree) -> list[Outcome | None] | Outcome | None:
        """Serves cells one after another; Ray takes a list apart only where there are several."""
        outcomes = [self.run(job_id, work, shared) for work in works]
        return outcomes if len(outcomes) > 1 else outcomes[0]

    def ping(self) -> int:
        """Says that the host is up, with its process id."""
        return os.getpid()


def start_hosts(count: int, cpus: float, gpus: float) -> list[Any]:
    """Starts host actors, which Ray starts again when they die; `await_hosts` waits for them."""
    actor = ray.remote(HostActor).options(num_cpus=cpus, num_gpus=gpus, max_restarts=-1, max_task_retries=0)
    return [actor.remote() for _ in range(count)]


def await_hosts(hosts: Sequence[Any]) -> None:
    """Waits until all hosts are up for the first time.

    Raises:
        ShoalError: They did not come up in time.
    """
    try:
        ray.get([host.ping.remote() for host in hosts], timeout=RESTART_SECONDS)
    except (GetTimeoutError, RayError) as error:
        raise ShoalError(
            f"engine.hosts: {len(hosts)} host actors did not start ({' '.join(str(error).split())[:200]})"
        ) from error


@dataclass
class _Call:
    """A cell under way on a host, in a call of one or more cells."""

    position: int
    host: int
    number: int
    deadline: float


@dataclass
class _Round:
    """What is left to do of one batch of cells."""

    works: Sequence[Work]
    shared: Any
    waiting: list[list[int]]
    calls: dict[Any, _Call] = field(default_factory=dict)
    losses: dict[int, int] = field(default_factory=dict)


class RayPool:
    """Host actors behind one queue each."""

    def __init__(self, hosts: list[Any], job: Job, cell_timeout: float, retries: int) -> None:
        """Takes hosts that are up.

        Args:
            hosts: Actor handles.
            job: The job to open on them.
            cell_timeout: Seconds of silence after which a host is replaced.
            retries: How often one cell may be lost.
        """
        self._hosts = hosts
        self._job = job
        self._job_ref = ray.put(job)
        self._timeout = cell_timeout
        self._retries = retries
        self._home: dict[int, int] = {}
        self._pings: dict[Any, tuple[int, float]] = {}
        self._ready = set(range(len(hosts)))
        self._calls = count()
        self._pace: dict[str, float] = {}
        self.retried = 0

    def run(self, works: Sequence[Work], shared: Tree) -> Iterator[tuple[int, Outcome]]:
        """Serves all cells; a cell whose host dies or stays silent runs again from the same values.

        Raises:
            ShoalError: A client's code failed, a cell was lost too often, or no host is left.
        """
        state = _Round(works, ray.put(shared), self._queues(works))
        left = len(works)
        while left:
            self._submit(state)
            done, _ = ray.wait([*state.calls, *self._pings], num_returns=1, timeout=PATIENCE)
            for ref in done:
                if ref in self._pings:
                    self._welcome(ref)
                elif ref in state.calls:
                    call = state.calls.pop(ref)
                    outcome = self._collect(ref, call, state)
                    if outcome is not None:
                        left -= 1
                        yield call.position, outcome
            self._check_silence(state)

    def _queues(self, works: Sequence[Work]) -> list[list[int]]:
        """Positions for every host, smallest first so that the largest is popped; clients return to their host."""
        queues: list[list[int]] = [[] for _ in self._hosts]
        load = [0.0] * len(self._hosts)
        for position in sorted(range(len(works)), key=lambda p: (-works[p].cost, p)):
            first = works[position].ids[0]
            host = self._home.setdefault(first, min(range(len(load)), key=load.__getitem__))
            queues[host].append(position)
            load[host] += works[position].cost
        return [queue[::-1] for queue in queues]

    def _submit(self, state: _Round) -> None:
        for host in sorted(self._ready):
            busy = {call.number for call in state.calls.values() if call.host == host}
            while len(busy) < CALLS_IN_FLIGHT:
                positions = self._next_few(state, host)
                if not positions:
                    break
                busy.add(self._call(state, host, positions))

    def _next_few(self, state: _Round, host: int) -> list[int]:
        """Cells for one call: so many that it takes a while, and few enough that the hosts end together."""
        waiting = sum(map(len, state.waiting))
        share = waiting if len(self._ready) == 1 else waiting // (2 * len(self._ready))
        positions: list[int] = []
        seconds = 0.0
        while len(positions) < max(share, 1) and seconds < SECONDS_OF_A_CALL:
            position = self._next(state, host)
            if position is None:
                break
            positions.append(position)
            work = state.works[position]
            # Before the first outcome of a phase nobody knows.
            seconds += self._pace.get(work.phase, math.inf) * work.cost
        return positions

    def _next(self, state: _Round, host: int) -> int | None:
        """The host's largest cell, or one of the fullest queue if its own is empty."""
        queue = state.waiting[host] or max(state.waiting, key=len)
        return queue.pop() if queue else None

    def _call(self, state: _Round, host: int, positions: Sequence[int]) -> int:
        number = next(self._calls)
        call = self._hosts[host].run_cells.options(num_returns=len(positions))
        refs = call.remote(self._job.id, [state.works[p] for p in positions], state.shared)
        for ref, position in zip([refs] if len(positions) == 1 else refs, positions):
            state.calls[ref] = _Call(position, host, number, time.monotonic() + self._timeout)
        return number

    def _collect(self, ref: Any, call: _Call, state: _Round) -> Outcome | None:
        try:
            outcome = ray.get(ref)
        except RayTaskError as error:
            raise _plain(error) from error
        except RayError as error:
            self._lost(call, state, type(error).__name__)
            return None
        if outcome is None:
            self._open_again(call, state)
            return None
        work = state.works[call.position]
        self._pace[work.phase] = sum(outcome.seconds.values()) / max(work.cost, 1.0)
        # The object store gives its memory back; states live on in the server's own.
        outcome.states = {i: {name: t.clone() for name, t in tree.items()} for i, tree in outcome.states.items()}
        for waiting in state.calls.values():
            if waiting.host == call.host:
                waiting.deadline = time.monotonic() + self._timeout
        return outcome

    def _open_again(self, call: _Call, state: _Round) -> None:
        """Opens the job on a host that was started again, and gives it the cell once more."""
        try:
            ray.get(self._hosts[call.host].open.remote(self._job_ref), timeout=RESTART_SECONDS)
            self._call(state, call.host, [call.position])
        except RayTaskError as error:
            raise _plain(error) from error
        except (RayError, GetTimeoutError) as error:
            self._lost(call, state, type(error).__name__)

    def _lost(self, call: _Call, state: _Round, why: str) -> None:
        work = state.works[call.position]
        losses = state.losses[call.position] = state.losses.get(call.position, 0) + 1
        log.warning("round %d: host %d lost clients %s (%s)", work.round, call.host, list(work.ids), why)
        self.retried += 1
        if losses > self._retries:
            raise ShoalError(
                f"round {work.round}: clients {list(work.ids)} were lost {losses} times with their host ({why}); "
                "look for lack of memory, or raise engine.retries"
            )
        if call.host in self._ready:
            self._ready.discard(call.host)
            self._pings[self._hosts[call.host].ping.remote()] = (call.host, time.monotonic() + RESTART_SECONDS)
        others = sorted(self._ready) or [call.host]
        state.waiting[min(others, key=lambda h: len(state.waiting[h]))].append(call.position)

    def _welcome(self, ref: Any) -> None:
        host, deadline = self._pings.pop(ref)
        try:
            ray.get(ref)
            self._ready.add(host)
        except RayActorError:
            # Calls to an actor that is starting again may fail until it is up.
            time.sleep(BETWEEN_PINGS)
            if time.monotonic() < deadline:
                self._pings[self._hosts[host].ping.remote()] = (host, deadline)
            self._require_hosts()

    def _check_silence(self, state: _Round) -> None:
        now = time.monotonic()
        for call in list(state.calls.values()):
            if now > call.deadline:
                # A synchronous actor method cannot be cancelled.
                ray.kill(self._hosts[call.host], no_restart=False)
                for other, stuck in list(state.calls.items()):
                    if stuck.host == call.host:
                        del state.calls[other]
                        self._lost(stuck, state, f"silent for {self._timeout:.0f} s")
                break
        for ref, (_, deadline) in list(self._pings.items()):
            if now > deadline:
                del self._pings[ref]
                self._require_hosts()

    def _require_hosts(self) -> None:
        if not self._ready and not self._pings:
            raise ShoalError(
                "engine.hosts: no host is left and none came back; the newest checkpoint is kept, use --resume"
            )


def _plain(error: RayTaskError) -> ShoalError:
    """What went wrong on a host, without Ray's wrapping."""
    cause = error.cause
    if isinstance(cause, ShoalError):
        return ShoalError(cause.line, cause.detail)
    return ShoalError(f"a host failed: {type(cause).__name__}: {cause}", str(error))
