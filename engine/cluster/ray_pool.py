"""Cells on host actors: largest first, where their data is, and again elsewhere if a host dies."""

import math
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
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
    """A cell, or one client of a cell, on its way through the hosts.

    Attributes:
        position: Of the whole cell among the cells of a phase.
        cell: What a host runs.
        losses: How often it was lost with its host.
    """

    position: int
    cell: Cell
    losses: int = 0


class Assembly:
    """The cells of one phase that run client by client."""

    def __init__(self) -> None:
        """Starts without any."""
        self._ids: dict[int, Sequence[int]] = {}
        self._found: dict[int, dict[int, Outcome]] = {}

    def split(self, task: Task) -> list[Task]:
        """The clients of a cell as pieces of their own."""
        if len(task.cell.ids) == 1:
            return [task]
        self._ids[task.position] = task.cell.ids
        return [Task(task.position, single, task.losses) for single in one_by_one(task.cell)]

    def join(self, task: Task, outcome: Outcome) -> Outcome | None:
        """The outcome of the whole cell, to the bit that of one go; None while other clients of it are missing."""
        ids = self._ids.get(task.position)
        if ids is None:
            return outcome
        found = self._found.setdefault(task.position, {})
        found[task.cell.ids[0]] = outcome
        return merge([found[i] for i in ids]) if len(found) == len(ids) else None


SLACK = 0.01


def place(costs: Sequence[float], able: Sequence[Sequence[int]], homes: Sequence[int | None]) -> list[int]:
    """Gives every cell a host, the most costly cells first.

    A host keeps what it ran before, whose data it has open, up to its share of all costs or while it has least to
    do; the rest goes where there is least to do. So a host that came later than others gets its share, too.

    Args:
        costs: Of the cells.
        able: Hosts that see a cell's data, at least one.
        homes: Host that ran a cell last.

    Returns:
        The host of every cell.
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


# Cells that take less are sent together: a call costs milliseconds.
SECONDS_OF_A_CALL = 0.5
# Of a queue; small enough that hosts end together, large enough for few calls.
SHARE_OF_A_CALL = 0.5


class Queues:
    """The pieces of a phase that wait for a host."""

    def __init__(self, hosts: int, pace: Callable[[Task], float]) -> None:
        """Starts empty.

        Args:
            hosts: Number of hosts.
            pace: Seconds that a piece may take; infinite where nobody knows yet.
        """
        self._queues: list[list[Task]] = [[] for _ in range(hosts)]
        self._pace = pace

    def fill(self, tasks: Sequence[Task], places: Sequence[int]) -> None:
        """Puts pieces into the queues of their hosts, the largest last: it is taken first."""
        for task, host in sorted(zip(tasks, places), key=lambda pair: (pair[0].cell.cost, -pair[0].position)):
            self._queues[host].append(task)

    def add(self, host: int, tasks: Iterable[Task]) -> None:
        """Puts pieces behind all others, where they are taken first."""
        self._queues[host].extend(tasks)

    def add_to_shortest(self, hosts: Sequence[int], task: Task) -> None:
        """Puts a piece where the least waits, among some hosts."""
        self._queues[min(hosts, key=lambda host: len(self._queues[host]))].append(task)

    def replace(self, host: int, by: Callable[[Task], Iterable[Task]]) -> None:
        """Replaces every piece of a host's queue."""
        self._queues[host] = [new for task in self._queues[host] for new in by(task)]

    def clients(self) -> set[int]:
        """All clients that wait."""
        return {i for queue in self._queues for task in queue for i in task.cell.ids}

    def take(self, host: int, sees: frozenset[int], alone: bool, never_lost: bool) -> list[Task]:
        """Pieces for one call: so many that it takes a while, and few enough that the hosts end together.

        Args:
            host: The host.
            sees: Clients whose data it has.
            alone: No other host is at work.
            never_lost: Only pieces that were not lost before: these run alone, so that the next loss can only be
                their own doing.
        """
        most = len(self._queues[host]) or max(map(len, self._queues))
        share = most if alone else math.ceil(SHARE_OF_A_CALL * most)
        tasks: list[Task] = []
        seconds = 0.0
        while len(tasks) < share and seconds < SECONDS_OF_A_CALL:
            task = self._next(host, sees, never_lost or bool(tasks))
            if task is None:
                break
            tasks.append(task)
            seconds += math.inf if task.losses else self._pace(task)
        return tasks

    def _next(self, host: int, sees: frozenset[int], never_lost: bool) -> Task | None:
        """The host's largest piece, or one of the fullest queue if its own has none for it."""
        others = sorted((queue for queue in self._queues if queue), key=len, reverse=True)
        for queue in [self._queues[host], *others]:
            for task in reversed(queue):
                if not (never_lost and task.losses) and sees.issuperset(task.cell.ids):
                    queue.remove(task)
                    return task
        return None


CALLS_IN_FLIGHT = 2
# Bytes that Ray sends along; what is larger would be put into the object store for every call.
SENT_WITH_A_CALL = 96_000
SECONDS_OF_A_WAIT = 1.0
COME_BACK_SECONDS = 120.0
LOSSES_OF_A_WHOLE_CELL = 2


class RayPool:
    """Host actors behind one queue each.

    Attributes:
        retried: How often a cell, or a client of one, was lost with its host, since the pool was made.
        transfer: Seconds spent on sending cells and taking in outcomes, since the pool was made.
        memory: Resident bytes of every host after its newest cell, mapped files included.
    """

    def __init__(self, hosts: list[Any], job: Job, cell_timeout: float, retries: int) -> None:
        """Takes hosts and has them open the job.

        Args:
            hosts: Actor handles.
            job: The job to open on them.
            cell_timeout: Seconds of silence after which a host is replaced.
            retries: How often one cell may be lost.
        """
        self.roster = Roster(hosts, job)
        self.skip_failed_clients = job.skip_failed_clients
        self.job_id, self.who = job.id, job.who
        self.timeout = cell_timeout
        self.retries = retries
        # Host that ran a cell last, by the cell's first client; seconds per unit of cost, by phase.
        self.home: dict[int, int] = {}
        self.pace: dict[str, float] = {}
        self.retried = 0
        self.transfer = 0.0
        self.memory: dict[int, int] = {}

    @property
    def hosts(self) -> tuple[int, int]:
        """Hosts at work, of how many."""
        return len(self.roster.ready), len(self.roster.hosts)

    def events(self) -> list[str]:
        """What happened to hosts since this was last asked, a line each."""
        events, self.roster.events = self.roster.events, []
        return events

    def require_data(self, clients: Sequence[int]) -> None:
        """Waits until every client has a host that sees its files.

        Raises:
            ShoalError: All hosts have answered, or had the time to, and a client is seen by none.
        """
        deadline = time.monotonic() + COME_BACK_SECONDS
        while missing := self.roster.unseen(clients):
            if len(self.roster.ready) == len(self.roster.hosts) or time.monotonic() > deadline:
                raise self.roster.refusal(missing)
            self.roster.call_back()
            self.roster.wait((), SECONDS_OF_A_WAIT)

    def run_cells(self, cells: Sequence[Cell], shared: Tree) -> Iterator[tuple[int, Outcome]]:
        """Runs all cells; a cell whose host dies or stays silent runs again from the same values.

        A cell that was lost twice runs client by client, and so does one whose data does not lie in one place; the
        sums are the same to the bit.

        Raises:
            ShoalError: A client's code failed, a cell was lost too often, or no host is left for it.
        """
        with self.transferring():
            sent = shared if tree_bytes(shared) < SENT_WITH_A_CALL else ray.put(shared)
        yield from _Phase(self, sent).run(cells)

    @contextmanager
    def transferring(self) -> Iterator[None]:
        """The time inside of the block counts as `transfer`."""
        began = time.perf_counter()
        yield
        self.transfer += time.perf_counter() - began


@dataclass
class _Call:
    """Pieces under way on a host, which runs them one after another."""

    tasks: Sequence[Task]
    host: int
    deadline: float


class _Phase:
    """The cells of one phase on the hosts of a pool, until all have come back."""

    def __init__(self, pool: RayPool, shared: Any) -> None:
        self._pool, self._roster, self._shared = pool, pool.roster, shared
        self._queues = Queues(len(self._roster.hosts), self._seconds_of)
        self._assembly = Assembly()
        self._calls: dict[Any, _Call] = {}
        self._finished: list[tuple[int, Outcome]] = []

    def run(self, cells: Sequence[Cell]) -> Iterator[tuple[int, Outcome]]:
        self._place(cells)
        self._roster.heard = time.monotonic()
        left = len(cells)
        while left:
            self._roster.call_back()
            with self._pool.transferring():
                self._send()
            for ref in self._roster.wait(self._calls, SECONDS_OF_A_WAIT):
                with self._pool.transferring():
                    self._collect(ref)
            self._check_silence()
            left -= len(self._finished)
            yield from self._finished
            self._finished.clear()

    def _seconds_of(self, task: Task) -> float:
        """Before the first outcome of a phase nobody knows."""
        return self._pool.pace.get(task.cell.phase, math.inf) * task.cell.cost

    def _place(self, cells: Sequence[Cell]) -> None:
        """Queues every cell, in pieces where no host sees all of its clients; clients return to their host."""
        tasks = [new for number, cell in enumerate(cells) for new in self._as_seen(Task(number, cell))]
        everyone = range(len(self._roster.hosts))
        home = self._pool.home
        places = place(
            [task.cell.cost for task in tasks],
            [self._roster.hosts_with(task.cell.ids) or everyone for task in tasks],
            [home.get(task.cell.ids[0]) for task in tasks],
        )
        home.update({task.cell.ids[0]: host for task, host in zip(tasks, places)})
        self._queues.fill(tasks, places)

    def _as_seen(self, task: Task) -> list[Task]:
        """The piece, if one host sees all of its clients, else the clients by themselves."""
        return [task] if self._roster.hosts_with(task.cell.ids) else self._assembly.split(task)

    def _send(self) -> None:
        ready = self._roster.ready
        for host, locality in ready.items():
            calls = [call for call in self._calls.values() if call.host == host]
            while len(calls) < CALLS_IN_FLIGHT and not any(task.losses for call in calls for task in call.tasks):
                tasks = self._queues.take(host, locality.clients, len(ready) == 1, never_lost=bool(calls))
                if not tasks:
                    break
                calls.append(self._call(host, tasks))

    def _call(self, host: int, tasks: Sequence[Task]) -> _Call:
        cells = [task.cell for task in tasks]
        ref = self._roster.hosts[host].run_call.remote(self._pool.job_id, cells, self._shared)
        self._calls[ref] = _Call(tasks, host, time.monotonic() + self._pool.timeout)
        return self._calls[ref]

    def _collect(self, ref: Any) -> None:
        call = self._calls.pop(ref)
        try:
            outcomes = ray.get(ref)
        except RayTaskError as error:
            raise plain_error(error) from error
        except RayError as error:
            self._lose(call, type(error).__name__)
            return
        self._roster.heard = time.monotonic()
        if outcomes[0] is None:
            # The host was started again since the last cell, and does not know the job.
            self._leaves(call.host)
            self._queues.add(call.host, reversed(call.tasks))
            return
        for waiting in self._calls.values():
            if waiting.host == call.host:
                waiting.deadline = time.monotonic() + self._pool.timeout
        for task, outcome in zip(call.tasks, outcomes):
            self._pool.pace[task.cell.phase] = sum(outcome.seconds.values()) / max(task.cell.cost, 1.0)
            # The object store gives its memory back; what stays after the round lives on in the server's own.
            outcome.states = {i: {name: t.clone() for name, t in tree.items()} for i, tree in outcome.states.items()}
            outcome.scores = {i: counts.copy() for i, counts in outcome.scores.items()}
            self._pool.memory[call.host] = outcome.memory
            self._finish(task, outcome)

    def _finish(self, task: Task, outcome: Outcome) -> None:
        """Hands over a cell, once all its pieces are there."""
        whole = self._assembly.join(task, outcome)
        if whole is not None:
            self._finished.append((task.position, whole))

    def _lose(self, call: _Call, why: str) -> None:
        """A host died or was killed with what it had."""
        self._leaves(call.host)
        for task in call.tasks:
            self._lose_task(task, call.host, why)

    def _lose_task(self, task: Task, host: int, why: str) -> None:
        """Queues a lost piece again; a client that was lost too often is left out, if the run allows it."""
        self._pool.retried += 1
        task.losses += 1
        ids = list(task.cell.ids)
        who = self._pool.who(ids[0]) if len(ids) == 1 else f"clients {ids}"
        line = f"round {task.cell.round}, {who}: lost with host {host}, loss {task.losses} ({why})"
        self._roster.events.append(line)
        if task.losses > self._pool.retries:
            advice = "look for lack of memory, or raise engine.retries"
            if len(ids) > 1 or not self._pool.skip_failed_clients:
                raise ShoalError(f"{line}; {advice}", "\n".join(self._roster.events))
            self._finish(task, Outcome(failures={ids[0]: (line, advice)}))
            return
        again = self._as_seen(task) if task.losses < LOSSES_OF_A_WHOLE_CELL else self._assembly.split(task)
        for new in again:
            self._queues.add_to_shortest(self._roster.hosts_with(new.cell.ids) or [host], new)

    def _leaves(self, host: int) -> None:
        """A host is away until it enters again; cells of its queue that no other host sees whole run in pieces."""
        self._roster.leaves(host)
        self._queues.replace(host, self._as_seen)

    def _check_silence(self) -> None:
        now = time.monotonic()
        for host in {call.host for call in self._calls.values() if now > call.deadline}:
            # A synchronous actor method cannot be cancelled.
            ray.kill(self._roster.hosts[host], no_restart=False)
            for ref, call in list(self._calls.items()):
                if call.host == host:
                    del self._calls[ref]
                    self._lose(call, f"silent for {self._pool.timeout:.0f} s")
        if not self._calls and not self._finished and now - self._roster.heard > COME_BACK_SECONDS:
            raise self._roster.refusal(self._queues.clients())
