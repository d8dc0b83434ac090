"""Runs cells on host actors: largest first, where their data is, and again elsewhere if a host dies."""

import math
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import ray
from ray.exceptions import RayError, RayTaskError

from shoal.algorithms.protocol import Reduce, Tree
from shoal.engine.cluster.mixing import BLOCKS, mixes, take_blocks
from shoal.engine.cluster.queues import Queues, Task, place
from shoal.engine.cluster.reports import Work
from shoal.engine.cluster.roster import Roster, plain_error
from shoal.engine.cluster.states import LOST_STATES, SENT_WITH_A_CALL, hand_over_states, loses_states, place_refs
from shoal.engine.hosts.backend import ServerLost
from shoal.engine.hosts.device import give_back_memory
from shoal.engine.messages.cell import Cell, Kept, OnDevice, Outcome, one_by_one
from shoal.engine.messages.job import Job
from shoal.engine.rounds.reduction import merge, tree_bytes
from shoal.storage.errors import ShoalError


class Assembly:
    """Splits cells of a phase into single-client tasks and merges their outcomes."""

    def __init__(self) -> None:
        """Starts with no cell split."""
        self._ids: dict[int, Sequence[int]] = {}
        self._outcomes: dict[int, dict[int, Outcome]] = {}

    def split(self, task: Task) -> list[Task]:
        """Splits a cell into a task for each client."""
        if len(task.cell.ids) == 1:
            return [task]
        self._ids[task.position] = task.cell.ids
        return [Task(task.position, single, task.losses) for single in one_by_one(task.cell)]

    def join(self, task: Task, outcome: Outcome) -> Outcome | None:
        """Joins the outcomes of a split cell, with the bits of an unsplit run; None while clients of it are missing."""
        ids = self._ids.get(task.position)
        if ids is None:
            return outcome
        outcome_of = self._outcomes.setdefault(task.position, {})
        outcome_of[task.cell.ids[0]] = outcome
        return merge([outcome_of[i] for i in ids]) if len(outcome_of) == len(ids) else None


def few_cells(cells: Sequence[Cell], hosts: int) -> list[str]:
    """Returns a line if cells are fewer than hosts."""
    if len(cells) >= hosts:
        return []
    key = "cell_size" if any(len(cell.ids) > 1 for cell in cells) else "hosts"
    return [f"{hosts - len(cells)} of {hosts} hosts have no work: a round has {len(cells)} cells; lower engine.{key}"]


def most_common(home: Mapping[int, int], clients: Sequence[int]) -> int | None:
    """Returns the host that visited most of these clients last; None: they are new."""
    hosts = [home[i] for i in clients if i in home]
    return max(dict.fromkeys(hosts), key=hosts.count) if hosts else None


CALLS_IN_FLIGHT = 2
# A task counts as no shorter than its states at this speed: a call's results stay in its host's memory until it ends,
# so that calls with large states must have few tasks.
BYTES_A_SECOND = 2**27
SECONDS_OF_A_WAIT = 1.0
# A host gives a sign of life after this share of the seconds after which it counts as silent.
BETWEEN_SIGNS = 0.05
LOSSES_OF_A_WHOLE_CELL = 2


class RayPool:
    """Host actors behind one queue each.

    Attributes:
        retried: Number of tasks lost with their host so far.
        transfer: Seconds spent on sending cells and reading outcomes so far.
        memory: Resident bytes of every host after its newest cell, mapped files included.
        work: The work of hosts since the server last took it.
        signed: The time of each host's last sign of life, by the monotonic clock.
    """

    def __init__(
        self,
        hosts: list[Any],
        job: Job,
        cell_timeout: float,
        retries: int,
        server: Any = None,
        come_back: float = 120.0,
    ) -> None:
        """Takes host actors, which open the job when they are first called.

        A host that is silent for `cell_timeout` seconds is replaced; one task may be lost `retries` times. Hosts give
        the actor `server` signs of life. Work that no host can do waits `come_back` seconds for one.
        """
        self.roster = Roster(hosts, job)
        if server is not None:
            self.roster.signs = (server, cell_timeout * BETWEEN_SIGNS)
        self.job, self.timeout, self.retries, self.come_back = job, cell_timeout, retries, come_back
        # `home` has the host that visited a client last, `pace` seconds per unit of cost, by phase.
        self.home: dict[int, int] = {}
        self.pace: dict[str, float] = {}
        self.retried = 0
        self.transfer = 0.0
        self.memory: dict[int, int] = {}
        # True once downloads, states or uploads were so large that states, and uploads to be mixed, stay with hosts.
        self.keeps = False
        self.work = Work()
        self.signed: dict[int, float] = {}
        self._counted = False

    @property
    def hosts(self) -> tuple[int, int]:
        """Ready hosts, of how many."""
        return len(self.roster.ready), len(self.roster.hosts)

    def events(self) -> list[str]:
        """Returns losses and returns of hosts since the last call, a line each."""
        events, self.roster.events = self.roster.events, []
        return events

    def require_data(self, clients: Sequence[int]) -> None:
        """Waits until every client has a host that can read its files; raises a ShoalError if none of all hosts can."""
        deadline = time.monotonic() + self.come_back
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
        if not self._counted and any(cell.train for cell in cells):
            self._counted = True
            self.roster.events += few_cells(cells, len(self.roster.hosts))
        with self.transferring():
            large = tree_bytes(shared) >= SENT_WITH_A_CALL
            self.keeps |= large
            sent = ray.put(shared) if large else shared
        yield from _Phase(self, sent).run(cells)
        if self.keeps:
            give_back_memory()

    def call(self, host: int, cells: Sequence[Cell], shared: Any) -> list[Any]:
        """Calls a host; returns references to the outcomes, and to new states if these stay with hosts."""
        cells, kept = place_refs([self._fetch_for(host, cell) for cell in cells])
        keeps = self.keeps and cells[0].phase
        states = sum(len(cell.ids) for cell in cells) if keeps else 0
        results = states + (len(cells) * len(mixes(cells[0].up)) * BLOCKS if keeps else 0)
        run, given = self.roster.hosts[host].run_call, (self.job.id, cells, shared, *kept)
        if not results:
            return [run.remote(*given)]
        return run.options(num_returns=1 + results).remote(*given, states=states, results=results)

    def _fetch_for(self, host: int, cell: Cell) -> Cell:
        """Lets other hosts put states of a cell that are on their devices into the cluster's memory."""
        away = {i: kept for i, kept in cell.kept.items() if isinstance(kept.ref, OnDevice) and kept.host != host}
        return replace(cell, kept={**cell.kept, **self._ask_for(away)[0]}) if away else cell

    def fetch_states(self, kept: Mapping[int, Kept]) -> dict[int, Kept]:
        """Puts all states that are on devices into the cluster's memory; raises ServerLost if one is lost."""
        fetched, asked = self._ask_for({i: state for i, state in kept.items() if isinstance(state.ref, OnDevice)})
        try:
            ray.get(asked)
        except RayError as error:
            raise ServerLost(LOST_STATES) from error
        return {**kept, **fetched}

    def _ask_for(self, kept: Mapping[int, Kept]) -> tuple[dict[int, Kept], list[Any]]:
        """Asks hosts for states on their devices; returns these as references, and one a call that is done with it."""
        fetched, asked = dict[int, Kept](), []
        for host in sorted({state.host for state in kept.values()}):
            mine = {i: state for i, state in kept.items() if state.host == host}
            give = self.roster.hosts[host].give_states.options(num_returns=1 + len(mine))
            done, *refs = give.remote([state.ref for state in mine.values()])
            asked.append(done)
            fetched |= {i: replace(state, ref=ref) for (i, state), ref in zip(mine.items(), refs)}
        return fetched, asked

    @contextmanager
    def transferring(self) -> Iterator[None]:
        """Adds the time inside of the block to `transfer`."""
        began = time.perf_counter()
        yield
        self.transfer += time.perf_counter() - began


@dataclass
class _Call:
    """A call with tasks of a host, which runs them one after another; `states` are results for new states."""

    tasks: Sequence[Task]
    host: int
    deadline: float
    states: Sequence[Any] = ()


class _Phase:
    """The cells of one phase, until the outcomes of all are back."""

    def __init__(self, pool: RayPool, shared: Any) -> None:
        self._pool, self._roster, self._shared = pool, pool.roster, shared
        self._queues = Queues([], [], len(pool.roster.hosts))
        self._assembly = Assembly()
        self._calls: dict[Any, _Call] = {}
        # `_of_host` has the calls of every host, `_asking` the hosts that may take another one. To look at all hosts
        # after each answer would take longer than the work of many small cells.
        self._of_host: dict[int, dict[Any, _Call]] = {host: {} for host in range(len(pool.roster.hosts))}
        self._asking: set[int] = set(pool.roster.ready)
        self._next_check = 0.0
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
            [most_common(home, task.cell.ids) for task in tasks],
        )
        self._queues = Queues(tasks, places, len(self._roster.hosts))

    def _as_readable(self, task: Task) -> list[Task]:
        """Returns the task if a host can read all of its clients, else a task for each client."""
        return [task] if self._roster.hosts_with(task.cell.ids) else self._assembly.split(task)

    def _pace(self, task: Task) -> float:
        """Estimates the seconds of a task, more for large states; infinite before the first outcome of its phase."""
        seconds = self._pool.pace.get(task.cell.phase, math.inf) * task.cell.cost
        return max(seconds, sum(state.nbytes for state in task.cell.kept.values()) / BYTES_A_SECOND)

    def _send(self) -> None:
        ready = self._roster.ready
        asking = (self._asking | self._roster.entered) & ready.keys()
        self._asking, self._roster.entered = set(), set()
        for host in sorted(asking):
            calls = self._of_host[host]
            while len(calls) < CALLS_IN_FLIGHT and not any(
                task.losses for call in calls.values() for task in call.tasks
            ):
                tasks = self._queues.take(
                    host, ready[host].clients, self._pace, alone=len(ready) == 1, never_lost=bool(calls)
                )
                if not tasks:
                    break
                ref, *states = self._pool.call(host, [task.cell for task in tasks], self._shared)
                self._calls[ref] = calls[ref] = _Call(tasks, host, time.monotonic() + self._pool.timeout, states)

    def _end(self, ref: Any) -> _Call:
        """Takes a call that is over from its host, which may take another one."""
        call = self._calls.pop(ref)
        del self._of_host[call.host][ref]
        self._asking.add(call.host)
        return call

    def _collect(self, ref: Any) -> None:
        call = self._end(ref)
        try:
            outcomes = ray.get(ref)
        except RayTaskError as error:
            if loses_states(error):
                raise ServerLost(LOST_STATES) from error
            raise plain_error(error) from error
        except RayError as error:
            self._lose(call, type(error).__name__)
            return
        self._roster.answered = time.monotonic()
        if outcomes[0] is None:
            # The host was restarted since the last cell and does not know the job.
            self._leaves(call.host)
            self._put(call.host, call.tasks[::-1])
            return
        for waiting in self._of_host[call.host].values():
            waiting.deadline = time.monotonic() + self._pool.timeout
        for task, outcome in zip(call.tasks, outcomes):
            self._pool.pace[task.cell.phase] = sum(outcome.seconds.values()) / max(task.cell.cost, 1.0)
            self._keep(outcome, call, task.cell.up)
            self._pool.home.update(dict.fromkeys(task.cell.ids, call.host))
            outcome.scores = {i: counts.copy() for i, counts in outcome.scores.items()}
            self._pool.memory[call.host] = outcome.memory
            self._pool.work.note(call.host, task.cell, outcome)
            self._finish(task, outcome)

    def _keep(self, outcome: Outcome, call: _Call, up: Mapping[str, Reduce]) -> None:
        """Takes what clients keep, and what is mixed: references to what is large, copies of other states."""
        # Blocks of the first calls come back with them, before `keeps` is set; they are put into the cluster's memory.
        here = [ray.put(t) for t in take_blocks(outcome, up)]
        for entry, (part,) in outcome.blocks.items():
            refs = [(here or call.states)[place] for place in part.refs]
            outcome.blocks[entry] = [replace(part, refs=refs, pool=self._pool)]
        outcome.kept = {
            i: replace(kept, ref=ref if isinstance(ref := kept.ref, OnDevice) else call.states[ref], host=call.host)
            for i, kept in outcome.kept.items()
        }
        if any(outcome.states.values()):
            outcome.kept |= hand_over_states(outcome.states, call.host)
            # States outlive the round, and must not hold memory of the object store.
            outcome.states = {i: {name: t.clone() for name, t in tree.items()} for i, tree in outcome.states.items()}
        self._pool.keeps |= bool(outcome.kept or outcome.blocks)

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
        whole = self._pool.retries if task.cell.train and task.cell.train.batched else LOSSES_OF_A_WHOLE_CELL
        again = self._as_readable(task) if task.losses < whole else self._assembly.split(task)
        for new in again:
            able = self._roster.hosts_with(new.cell.ids) or [host]
            self._put(self._queues.shortest(able), [new])

    def _leaves(self, host: int) -> None:
        """Marks a host as absent; splits the cells of its queue that no other host can read whole."""
        self._roster.leaves(host)
        self._put(host, [new for task in self._queues.empty(host) for new in self._as_readable(task)])

    def _put(self, host: int, tasks: Sequence[Task]) -> None:
        """Queues tasks, which any host may take."""
        self._queues.put(host, tasks)
        self._asking |= self._roster.ready.keys()

    def _deadline(self, call: _Call) -> float:
        """Returns the time from which the host of a call counts as silent; every sign of life gives it more time."""
        signed = self._pool.signed.get(call.host, -math.inf)
        return max(call.deadline, signed + self._pool.timeout * (1 + BETWEEN_SIGNS))

    def _check_silence(self) -> None:
        now = time.monotonic()
        if now < self._next_check:
            return
        self._next_check = now + SECONDS_OF_A_WAIT
        for host in {call.host for call in self._calls.values() if now > self._deadline(call)}:
            # A synchronous actor method cannot be cancelled, so that the host is ended.
            ray.kill(self._roster.hosts[host], no_restart=False)
            for ref in list(self._of_host[host]):
                self._lose(self._end(ref), f"silent for {self._pool.timeout:.0f} s")
        waits = not self._roster.helpless and now - self._roster.answered <= self._pool.come_back
        if not self._calls and not self._finished and not waits:
            raise self._roster.refusal({i for task in self._queues.tasks for i in task.cell.ids})
