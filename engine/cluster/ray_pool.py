"""Runs cells on host actors: largest first, where their data is, and again elsewhere if a host dies."""

import math
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import ray
from ray.exceptions import RayError, RayTaskError

from shoal.algorithms.protocol import Tree
from shoal.engine.cluster.roster import Roster, plain_error
from shoal.engine.messages.cell import Cell, Outcome, one_by_one
from shoal.engine.messages.job import Job
from shoal.engine.rounds.reduction import merge, tree_bytes
from shoal.storage.errors import ShoalError


@dataclass(eq=False)
class Task:
    """A cell, or one client of the cell at `position` in its phase, to run on a host; `losses` counts lost hosts."""

    position: int
    cell: Cell
    losses: int = 0


class Assembly:
    """Splits cells of a phase into single-client tasks and merges their outcomes."""

    def __init__(self) -> None:
        """Starts with no cell split."""
        self._ids: dict[int, Sequence[int]] = {}
        self._found: dict[int, dict[int, Outcome]] = {}

    def split(self, task: Task) -> list[Task]:
        """One task for each client of a cell."""
        if len(task.cell.ids) == 1:
            return [task]
        self._ids[task.position] = task.cell.ids
        return [Task(task.position, single, task.losses) for single in one_by_one(task.cell)]

    def join(self, task: Task, outcome: Outcome) -> Outcome | None:
        """The outcome of the whole cell, with the bits of an unsplit run; None while clients of it are missing."""
        ids = self._ids.get(task.position)
        if ids is None:
            return outcome
        found = self._found.setdefault(task.position, {})
        found[task.cell.ids[0]] = outcome
        return merge([found[i] for i in ids]) if len(found) == len(ids) else None


SLACK = 0.01


def place(costs: Sequence[float], able: Sequence[Sequence[int]], homes: Sequence[int | None]) -> list[int]:
    """Assigns cells to the hosts that ran them last, if load allows; the most costly cells first.

    A host keeps its earlier cells, whose data it has open, up to an even share of all costs, or while its load is the
    lowest. Other cells go to the host of the lowest load, so a host that joins later gets a share. `able` has the hosts
    that can read the data of each cell, at least one; `homes` the host that ran it last.
    """
    load = dict.fromkeys((host for hosts in able for host in hosts), 0.0)
    share = (1 + SLACK) * sum(costs) / max(len(load), 1)
    places = [-1] * len(costs)
    for cell in sorted(range(len(costs)), key=lambda cell: (-costs[cell], cell)):
        host, home = min(able[cell], key=load.__getitem__), homes[cell]
        if home is not None and home in able[cell] and (load[home] + costs[cell] <= share or load[home] == load[host]):
            host = home
        places[cell] = host
        load[host] += costs[cell]
    return places


# Shorter cells are sent together: a call costs milliseconds.
SECONDS_OF_A_CALL = 0.5
# Share of a queue: small enough that hosts finish together, large enough for few calls.
SHARE_OF_A_CALL = 0.5


def queued(tasks: Sequence[Task], places: Sequence[int], hosts: int) -> list[list[Task]]:
    """Queues of the hosts, each by cost: the last task, of the largest cost, is taken first."""
    queues: list[list[Task]] = [[] for _ in range(hosts)]
    for task, host in sorted(zip(tasks, places), key=lambda pair: (pair[0].cell.cost, -pair[0].position)):
        queues[host].append(task)
    return queues


def take(
    queues: Sequence[list[Task]],
    host: int,
    reads: frozenset[int],
    pace: Callable[[Task], float],
    alone: bool = False,
    never_lost: bool = False,
) -> list[Task]:
    """Takes tasks for one call: enough to pay for the call, and few enough that the hosts finish together.

    A task that was lost before runs in a call without others, so that only it can cause the next loss; `never_lost`
    leaves such tasks. `reads` has the clients that the host can read, `pace` gives the expected seconds of a task,
    `alone` says that no other host is ready.
    """
    most = len(queues[host]) or max(map(len, queues))
    share = most if alone else math.ceil(SHARE_OF_A_CALL * most)
    tasks: list[Task] = []
    seconds = 0.0
    while len(tasks) < share and seconds < SECONDS_OF_A_CALL:
        task = _next(queues, host, reads, never_lost or bool(tasks))
        if task is None:
            break
        tasks.append(task)
        seconds += math.inf if task.losses else pace(task)
    return tasks


def _next(queues: Sequence[list[Task]], host: int, reads: frozenset[int], never_lost: bool) -> Task | None:
    """The largest task of the host's queue, or of the fullest queue that has one for it."""
    for queue in [queues[host], *sorted(queues, key=len, reverse=True)]:
        for task in reversed(queue):
            if not (never_lost and task.losses) and reads.issuperset(task.cell.ids):
                queue.remove(task)
                return task
    return None


CALLS_IN_FLIGHT = 2
# Bytes that Ray sends with a call; larger arguments would enter the object store again for every call.
SENT_WITH_A_CALL = 96_000
SECONDS_OF_A_WAIT = 1.0
COME_BACK_SECONDS = 120.0
LOSSES_OF_A_WHOLE_CELL = 2


class RayPool:
    """Host actors behind one queue each.

    Attributes:
        retried: Number of tasks lost with their host so far.
        transfer: Seconds spent on sending cells and reading outcomes so far.
        memory: Resident bytes of every host after its newest cell, mapped files included.
    """

    def __init__(self, hosts: list[Any], job: Job, cell_timeout: float, retries: int) -> None:
        """Takes host actors, which open the job when they are first called.

        A host that is silent for `cell_timeout` seconds is replaced; one task may be lost `retries` times.
        """
        self.roster = Roster(hosts, job)
        self.job, self.timeout, self.retries = job, cell_timeout, retries
        # Host that ran a cell last, by the cell's first client; seconds per unit of cost, by phase.
        self.home: dict[int, int] = {}
        self.pace: dict[str, float] = {}
        self.retried = 0
        self.transfer = 0.0
        self.memory: dict[int, int] = {}

    @property
    def hosts(self) -> tuple[int, int]:
        """Ready hosts, of how many."""
        return len(self.roster.ready), len(self.roster.hosts)

    def events(self) -> list[str]:
        """Losses and returns of hosts since the last call, a line each."""
        events, self.roster.events = self.roster.events, []
        return events

    def require_data(self, clients: Sequence[int]) -> None:
        """Waits until every client has a host that can read its files; raises a ShoalError if none of all hosts can."""
        deadline = time.monotonic() + COME_BACK_SECONDS
        while missing := self.roster.unreadable(clients):
            if len(self.roster.ready) == len(self.roster.hosts) or time.monotonic() > deadline:
                raise self.roster.refusal(missing)
            self.roster.call_back()
            self.roster.wait((), SECONDS_OF_A_WAIT)

    def run_cells(self, cells: Sequence[Cell], shared: Tree) -> Iterator[tuple[int, Outcome]]:
        """Runs all cells; a cell whose host dies or stays silent runs again from the same values.

        A cell that was lost twice, or that no host can read whole, runs client by client; the sums have the same bits.

        Raises:
            ShoalError: A client's code failed, a cell was lost too often, or all hosts are lost.
        """
        with self.transferring():
            sent = shared if tree_bytes(shared) < SENT_WITH_A_CALL else ray.put(shared)
        yield from _Phase(self, sent).run(cells)

    @contextmanager
    def transferring(self) -> Iterator[None]:
        """Adds the time inside of the block to `transfer`."""
        began = time.perf_counter()
        yield
        self.transfer += time.perf_counter() - began


@dataclass
class _Call:
    """Tasks sent to a host, which runs them one after another."""

    tasks: Sequence[Task]
    host: int
    deadline: float


class _Phase:
    """The cells of one phase, until the outcomes of all are back."""

    def __init__(self, pool: RayPool, shared: Any) -> None:
        self._pool, self._roster, self._shared = pool, pool.roster, shared
        self._queues: list[list[Task]] = []
        self._assembly = Assembly()
        self._calls: dict[Any, _Call] = {}
        self._finished: list[tuple[int, Outcome]] = []

    def run(self, cells: Sequence[Cell]) -> Iterator[tuple[int, Outcome]]:
        self._place(cells)
        self._roster.answered = time.monotonic()
        missing = len(cells)
        while missing:
            self._roster.call_back()
            with self._pool.transferring():
                self._send()
            for ref in self._roster.wait(self._calls, SECONDS_OF_A_WAIT):
                with self._pool.transferring():
                    self._collect(ref)
            self._check_silence()
            missing -= len(self._finished)
            yield from self._finished
            self._finished.clear()

    def _place(self, cells: Sequence[Cell]) -> None:
        """Queues every cell, split where no host can read all of its clients; cells return to their last host."""
        tasks = [new for number, cell in enumerate(cells) for new in self._as_readable(Task(number, cell))]
        everyone = range(len(self._roster.hosts))
        home = self._pool.home
        places = place(
            [task.cell.cost for task in tasks],
            [self._roster.hosts_with(task.cell.ids) or everyone for task in tasks],
            [home.get(task.cell.ids[0]) for task in tasks],
        )
        home.update({task.cell.ids[0]: host for task, host in zip(tasks, places)})
        self._queues = queued(tasks, places, len(self._roster.hosts))

    def _as_readable(self, task: Task) -> list[Task]:
        """The task, if one host can read all of its clients, else one task for each client."""
        return [task] if self._roster.hosts_with(task.cell.ids) else self._assembly.split(task)

    def _pace(self, task: Task) -> float:
        """Expected seconds of a task; infinite before the first outcome of its phase."""
        return self._pool.pace.get(task.cell.phase, math.inf) * task.cell.cost

    def _send(self) -> None:
        ready = self._roster.ready
        for host, locality in ready.items():
            calls = [call for call in self._calls.values() if call.host == host]
            while len(calls) < CALLS_IN_FLIGHT and not any(task.losses for call in calls for task in call.tasks):
                tasks = take(
                    self._queues, host, locality.clients, self._pace, alone=len(ready) == 1, never_lost=bool(calls)
                )
                if not tasks:
                    break
                cells = [task.cell for task in tasks]
                ref = self._roster.hosts[host].run_call.remote(self._pool.job.id, cells, self._shared)
                self._calls[ref] = _Call(tasks, host, time.monotonic() + self._pool.timeout)
                calls.append(self._calls[ref])

    def _collect(self, ref: Any) -> None:
        call = self._calls.pop(ref)
        try:
            outcomes = ray.get(ref)
        except RayTaskError as error:
            raise plain_error(error) from error
        except RayError as error:
            self._lose(call, type(error).__name__)
            return
        self._roster.answered = time.monotonic()
        if outcomes[0] is None:
            # The host was restarted since the last cell and does not know the job.
            self._leaves(call.host)
            self._queues[call.host].extend(reversed(call.tasks))
            return
        for waiting in self._calls.values():
            if waiting.host == call.host:
                waiting.deadline = time.monotonic() + self._pool.timeout
        for task, outcome in zip(call.tasks, outcomes):
            self._pool.pace[task.cell.phase] = sum(outcome.seconds.values()) / max(task.cell.cost, 1.0)
            # Copies: what stays after the round must not hold memory of the object store.
            outcome.states = {i: {name: t.clone() for name, t in tree.items()} for i, tree in outcome.states.items()}
            outcome.scores = {i: counts.copy() for i, counts in outcome.scores.items()}
            self._pool.memory[call.host] = outcome.memory
            self._finish(task, outcome)

    def _finish(self, task: Task, outcome: Outcome) -> None:
        """Takes an outcome; passes on that of the whole cell once it is complete."""
        whole = self._assembly.join(task, outcome)
        if whole is not None:
            self._finished.append((task.position, whole))

    def _lose(self, call: _Call, why: str) -> None:
        """Handles the loss of a host with its call."""
        self._leaves(call.host)
        for task in call.tasks:
            self._lose_task(task, call.host, why)

    def _lose_task(self, task: Task, host: int, why: str) -> None:
        """Queues a lost task again; skips a client that was lost too often, if the run allows it."""
        self._pool.retried += 1
        task.losses += 1
        ids = list(task.cell.ids)
        who = self._pool.job.who(ids[0]) if len(ids) == 1 else f"clients {ids}"
        line = f"round {task.cell.round}, {who}: lost with host {host}, loss {task.losses} ({why})"
        self._roster.events.append(line)
        if task.losses > self._pool.retries:
            advice = "look for lack of memory, or raise engine.retries"
            if len(ids) > 1 or not self._pool.job.skip_failed_clients:
                raise ShoalError(f"{line}; {advice}", detail="\n".join(self._roster.events))
            self._finish(task, Outcome(failures={ids[0]: (line, advice)}))
            return
        # A batch of one client may have other last bits: it stays whole as long as the run can go on with it.
        whole = self._pool.retries if task.cell.batched else LOSSES_OF_A_WHOLE_CELL
        again = self._as_readable(task) if task.losses < whole else self._assembly.split(task)
        for new in again:
            able = self._roster.hosts_with(new.cell.ids) or [host]
            min((self._queues[i] for i in able), key=len).append(new)

    def _leaves(self, host: int) -> None:
        """Marks a host as absent; splits the cells of its queue that no other host can read whole."""
        self._roster.leaves(host)
        self._queues[host] = [new for task in self._queues[host] for new in self._as_readable(task)]

    def _check_silence(self) -> None:
        now = time.monotonic()
        for host in {call.host for call in self._calls.values() if now > call.deadline}:
            # A synchronous actor method cannot be cancelled.
            ray.kill(self._roster.hosts[host], no_restart=False)
            for ref, call in list(self._calls.items()):
                if call.host == host:
                    del self._calls[ref]
                    self._lose(call, f"silent for {self._pool.timeout:.0f} s")
        if not self._calls and not self._finished and now - self._roster.answered > COME_BACK_SECONDS:
            raise self._roster.refusal({i for queue in self._queues for task in queue for i in task.cell.ids})
