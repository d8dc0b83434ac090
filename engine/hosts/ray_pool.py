"""Cells on host actors: largest first, where their data is, and again elsewhere if a host dies."""

import math
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import ray
from ray.exceptions import RayError, RayTaskError

from algorithms.protocol import Tree
from engine.hosts.placement import place
from engine.hosts.roster import Roster, plain_error
from engine.rounds.reduction import merge, tree_bytes
from engine.wire.cell import Outcome, Work, one_by_one
from engine.wire.job import Job
from storage.errors import ShoalError

CALLS_IN_FLIGHT = 2
# Cells that take less are sent together: a call costs milliseconds.
SECONDS_OF_A_CALL = 0.5
# Of a queue; small enough that hosts end together, large enough for few calls.
SHARE_OF_A_CALL = 0.5
# Bytes that Ray sends along; what is larger would be put into the object store for every call.
SENT_WITH_A_CALL = 96_000
PATIENCE = 1.0
COME_BACK_SECONDS = 120.0
LOSSES_OF_A_WHOLE_CELL = 2


@dataclass(eq=False)
class _Task:
    """A cell, or one client of a cell that is served in parts, and how often it was lost with its host."""

    position: int
    work: Work
    losses: int = 0


@dataclass
class _Call:
    """Tasks under way on a host, served one after another."""

    tasks: Sequence[_Task]
    host: int
    deadline: float


@dataclass
class _Round:
    """What is left to do of one batch of cells; every host has a queue, its largest task last."""

    shared: Any
    queues: list[list[_Task]]
    calls: dict[Any, _Call] = field(default_factory=dict)
    # Cells that are served in parts: their clients, and what came back so far.
    split: dict[int, Sequence[int]] = field(default_factory=dict)
    parts: dict[int, dict[int, Outcome]] = field(default_factory=dict)
    finished: list[tuple[int, Outcome]] = field(default_factory=list)


class RayPool:
    """Host actors behind one queue each.

    Attributes:
        retried: How often a cell, or a client of one, was lost with its host, since the pool was made.
        transfer: Seconds spent on sending works and taking in outcomes, since the pool was made.
        memory: Resident bytes of every host after its newest cell, mapped files included.
    """

    def __init__(self, hosts: list[Any], job: Job, cell_timeout: float, retries: int) -> None:
        """Takes hosts and asks them in.

        Args:
            hosts: Actor handles.
            job: The job to open on them.
            cell_timeout: Seconds of silence after which a host is replaced.
            retries: How often one cell may be lost.
        """
        self._roster = Roster(hosts, job)
        self._job = job
        self._timeout = cell_timeout
        self._retries = retries
        self._home: dict[int, int] = {}
        self._pace: dict[str, float] = {}
        self.retried = 0
        self.transfer = 0.0
        self.memory: dict[int, int] = {}

    @property
    def hosts(self) -> tuple[int, int]:
        """Hosts that serve, of how many."""
        return len(self._roster.ready), len(self._roster.hosts)

    def events(self) -> list[str]:
        """What happened to hosts since this was last asked, a line each."""
        events, self._roster.events = self._roster.events, []
        return events

    def require_data(self, clients: Sequence[int]) -> None:
        """Waits until every client has a host that sees its files.

        Raises:
            ShoalError: All hosts have answered, or had the time to, and a client is seen by none.
        """
        deadline = time.monotonic() + COME_BACK_SECONDS
        while missing := self._roster.unseen(clients):
            if len(self._roster.ready) == len(self._roster.hosts) or time.monotonic() > deadline:
                raise self._roster.refusal(missing)
            self._roster.knock()
            self._roster.wait((), PATIENCE)

    def run(self, works: Sequence[Work], shared: Tree) -> Iterator[tuple[int, Outcome]]:
        """Serves all cells; a cell whose host dies or stays silent runs again from the same values.

        A cell that was lost twice is served client by client, and so is one whose data does not lie in one place; the
        sums are the same to the bit.

        Raises:
            ShoalError: A client's code failed, a cell was lost too often, or no host is left for it.
        """
        with self._transferring():
            sent = shared if tree_bytes(shared) < SENT_WITH_A_CALL else ray.put(shared)
            state = _Round(sent, [[] for _ in self._roster.hosts])
        self._fill(state, works)
        self._roster.heard = time.monotonic()
        left = len(works)
        while left:
            self._roster.knock()
            with self._transferring():
                self._submit(state)
            for ref in self._roster.wait(state.calls, PATIENCE):
                with self._transferring():
                    self._collect(ref, state)
            self._check_silence(state)
            left -= len(state.finished)
            yield from state.finished
            state.finished.clear()

    @contextmanager
    def _transferring(self) -> Iterator[None]:
        began = time.perf_counter()
        yield
        self.transfer += time.perf_counter() - began

    def _fill(self, state: _Round, works: Sequence[Work]) -> None:
        """Queues every cell, smallest first so that the largest is popped; clients return to their host."""
        whole = [_Task(position, work) for position, work in enumerate(works)]
        seen = [bool(self._roster.who_sees(task.work.ids)) for task in whole]
        tasks = [part for task, one in zip(whole, seen) for part in ([task] if one else self._in_parts(state, task))]
        everyone = range(len(self._roster.hosts))
        places = place(
            [task.work.cost for task in tasks],
            [self._roster.who_sees(task.work.ids) or everyone for task in tasks],
            [self._home.get(task.work.ids[0]) for task in tasks],
        )
        for task, host in sorted(zip(tasks, places), key=lambda pair: (pair[0].work.cost, -pair[0].position)):
            self._home[task.work.ids[0]] = host
            state.queues[host].append(task)

    def _in_parts(self, state: _Round, task: _Task) -> list[_Task]:
        """The clients of a cell as tasks of their own."""
        if len(task.work.ids) == 1:
            return [task]
        state.split[task.position] = task.work.ids
        return [_Task(task.position, work, task.losses) for work in one_by_one(task.work)]

    def _finish(self, state: _Round, task: _Task, outcome: Outcome) -> None:
        """Hands over a cell, once all its parts are there."""
        if task.position in state.split:
            ids = state.split[task.position]
            parts = state.parts.setdefault(task.position, {})
            parts[task.work.ids[0]] = outcome
            if len(parts) < len(ids):
                return
            outcome = merge([parts[i] for i in ids])
        state.finished.append((task.position, outcome))

    def _submit(self, state: _Round) -> None:
        for host in self._roster.ready:
            calls = [call for call in state.calls.values() if call.host == host]
            # What was lost before runs alone, so that the next loss can only be its own doing.
            while len(calls) < CALLS_IN_FLIGHT and not any(task.losses for call in calls for task in call.tasks):
                tasks = self._next_few(state, host, fresh=bool(calls))
                if not tasks:
                    break
                calls.append(self._call(state, host, tasks))

    def _next_few(self, state: _Round, host: int, fresh: bool) -> list[_Task]:
        """Tasks for one call: so many that it takes a while, and few enough that the hosts end together."""
        most = len(state.queues[host]) or max(map(len, state.queues))
        share = most if len(self._roster.ready) == 1 else math.ceil(SHARE_OF_A_CALL * most)
        tasks: list[_Task] = []
        seconds = 0.0
        while len(tasks) < share and seconds < SECONDS_OF_A_CALL:
            task = self._next(state, host, fresh or bool(tasks))
            if task is None:
                break
            tasks.append(task)
            # Before the first outcome of a phase nobody knows; what was lost before runs alone.
            seconds += math.inf if task.losses else self._pace.get(task.work.phase, math.inf) * task.work.cost
        return tasks

    def _next(self, state: _Round, host: int, fresh: bool) -> _Task | None:
        """The host's largest task, or one of the fullest queue if its own has none for it."""
        seen = self._roster.ready[host].clients
        others = sorted((queue for queue in state.queues if queue), key=len, reverse=True)
        for queue in [state.queues[host], *others]:
            for task in reversed(queue):
                if not (fresh and task.losses) and seen.issuperset(task.work.ids):
                    queue.remove(task)
                    return task
        return None

    def _call(self, state: _Round, host: int, tasks: Sequence[_Task]) -> _Call:
        works = [task.work for task in tasks]
        ref = self._roster.hosts[host].run_several.remote(self._job.id, works, state.shared)
        state.calls[ref] = _Call(tasks, host, time.monotonic() + self._timeout)
        return state.calls[ref]

    def _collect(self, ref: Any, state: _Round) -> None:
        call = state.calls.pop(ref)
        try:
            outcomes = ray.get(ref)
        except RayTaskError as error:
            raise plain_error(error) from error
        except RayError as error:
            self._lost(call, state, type(error).__name__)
            return
        self._roster.heard = time.monotonic()
        if outcomes[0] is None:
            # The host was started again since the last cell, and does not know the job.
            self._away(call.host, state)
            state.queues[call.host].extend(reversed(call.tasks))
            return
        for waiting in state.calls.values():
            if waiting.host == call.host:
                waiting.deadline = time.monotonic() + self._timeout
        for task, outcome in zip(call.tasks, outcomes):
            self._pace[task.work.phase] = sum(outcome.seconds.values()) / max(task.work.cost, 1.0)
            # The object store gives its memory back; what stays after the round lives on in the server's own.
            outcome.states = {i: {name: t.clone() for name, t in tree.items()} for i, tree in outcome.states.items()}
            outcome.scores = {i: counts.copy() for i, counts in outcome.scores.items()}
            self.memory[call.host] = outcome.memory
            self._finish(state, task, outcome)

    def _lost(self, call: _Call, state: _Round, why: str) -> None:
        self._away(call.host, state)
        for task in call.tasks:
            self._lost_task(task, call.host, state, why)

    def _lost_task(self, task: _Task, host: int, state: _Round, why: str) -> None:
        """Queues a lost task again; a client that was lost too often is left out, if the run allows it."""
        self.retried += 1
        task.losses += 1
        ids = list(task.work.ids)
        who = f"client {ids[0]}" if len(ids) == 1 else f"clients {ids}"
        line = f"round {task.work.round}, {who}: lost with host {host}, loss {task.losses} ({why})"
        self._roster.events.append(line)
        if task.losses > self._retries:
            advice = "look for lack of memory, or raise engine.retries"
            if len(ids) > 1 or not self._job.skip_failed_clients:
                raise ShoalError(f"{line}; {advice}", "\n".join(self._roster.events))
            self._finish(state, task, Outcome(failures={ids[0]: (line, advice)}))
            return
        whole = task.losses < LOSSES_OF_A_WHOLE_CELL and self._roster.who_sees(task.work.ids)
        for part in [task] if whole else self._in_parts(state, task):
            able = self._roster.who_sees(part.work.ids) or [host]
            state.queues[min(able, key=lambda host: len(state.queues[host]))].append(part)

    def _away(self, host: int, state: _Round) -> None:
        """A host is gone until it enters again; what no other host sees whole goes where its parts are."""
        self._roster.gone(host)
        state.queues[host] = [
            part
            for task in state.queues[host]
            for part in ([task] if self._roster.who_sees(task.work.ids) else self._in_parts(state, task))
        ]

    def _check_silence(self, state: _Round) -> None:
        now = time.monotonic()
        silent = {call.host for call in state.calls.values() if now > call.deadline}
        for host in silent:
            # A synchronous actor method cannot be cancelled.
            ray.kill(self._roster.hosts[host], no_restart=False)
            for ref, call in list(state.calls.items()):
                if call.host == host:
                    del state.calls[ref]
                    self._lost(call, state, f"silent for {self._timeout:.0f} s")
        if not state.calls and not state.finished and now - self._roster.heard > COME_BACK_SECONDS:
            raise self._roster.refusal({i for queue in state.queues for task in queue for i in task.work.ids})
