"""Work of a prepare as tasks of Ray, a window of them on every machine that sees the same files."""

import secrets
from collections import Counter, deque
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import ray
from ray.exceptions import RayError, RayTaskError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from shoal.engine.cluster.cluster import connect, disconnect
from shoal.engine.config.config import Config
from shoal.engine.preparing.task_functions import from_extent, look_for, sign_of, to_extent, work_on
from shoal.engine.screen.progress import say
from shoal.storage.errors import ShoalError
from shoal.storage.files.atomic import UNFINISHED, cannot_write
from shoal.storage.files.disk import MARK
from shoal.storage.runner import HERE, Item, Result, Room, Runner, Work

# A group of items may be lost this many times.
RETRIES = 3
# If results have an order, this many groups for each one at work may be ahead of the first.
AHEAD = 2
SECONDS_TO_LOOK = 60.0
APART = "task-"


@dataclass(frozen=True)
class Machine:
    """A machine: its processors, the memory that all tasks may take, and the bytes that Ray gives to tasks."""

    address: str
    cpus: int
    limit: int
    for_tasks: int

    def groups(self, memory: int, most: int | None) -> int:
        """Returns the number of groups of so many bytes that are worked on at a time."""
        return max(1, min(self.cpus, self.limit // max(1, memory), most or self.cpus))


@dataclass
class _Part:
    """A group, the number of its results that are there, and the machine that works on the rest."""

    number: int
    items: Sequence[Any]
    done: int = 0
    node: str = ""
    lost_on: list[str] = field(default_factory=list)


class Machines:
    """The machines of a Ray that is joined or started here, until it is closed."""

    def __init__(self, config: Config) -> None:
        """Connects to Ray. Raises ShoalError: as `connect`."""
        self._config = config
        self._folders: set[Path] = set()
        connect(config)
        ray.util.register_serializer(np.memmap, serializer=to_extent, deserializer=from_extent)

    def runner(self, folder: Path, files: Sequence[Path]) -> Runner:
        """Returns a runner on machines that see a folder and files as this process does; without any, on this one."""
        _clear(folder)
        self._folders.add(folder)
        tasks = TaskRunner(self._config, folder, files)
        return tasks if tasks.machines else HERE

    def close(self) -> None:
        """Leaves Ray, and removes unfinished files of lost tasks."""
        disconnect(self._config)
        for folder in self._folders:
            _clear(folder)


class TaskRunner(Runner):
    """Works on groups as tasks, each on a machine that it is sent to; lost ones are sent elsewhere.

    Attributes:
        machines: The machines, by Ray's id of the node.
    """

    def __init__(self, config: Config, folder: Path, files: Sequence[Path]) -> None:
        self.config, self._folder, self._files = config, folder, files
        self._blind: set[str] = set()
        self.machines: dict[str, Machine] = {}
        self.look()
        if self._blind:
            say(
                f"prepare: {len(self._blind)} of {len(self._blind) + len(self.machines)} machines compute nothing: "
                f"they do not see {folder} and the graph's files as this one does; use a file system that all share"
            )

    def room(self, least: int, limit: int, on_a_machine: int | None = None) -> Room:
        machines = self.able(least).values()
        of_each = [machine.groups(least, on_a_machine) for machine in machines]
        return Room(sum(of_each), min(machine.limit // groups for machine, groups in zip(machines, of_each)))

    def results(
        self, work: Work[Item, Result], given: Any, groups: Sequence[Sequence[Item]], memory: int, ordered: bool = False
    ) -> Iterator[tuple[Item, Result]]:
        results = _Tasks(self, work, ray.put(given), groups, memory, ordered).results()
        if not ordered:
            yield from ((groups[number][place], result) for number, place, result in results)
            return
        early: dict[tuple[int, int], Result] = {}
        for number, group in enumerate(groups):
            for place, item in enumerate(group):
                while (number, place) not in early:
                    of_group, at, result = next(results)
                    early[of_group, at] = result
                yield item, early.pop((number, place))

    def able(self, memory: int) -> dict[str, Machine]:
        """Returns the machines that may hold so many bytes; all, if there is none."""
        able = {node: machine for node, machine in self.machines.items() if machine.limit >= memory}
        return able or self.machines

    def look(self) -> None:
        """Leaves out machines that are gone, and takes in new ones that see the folder and the files."""
        nodes = {node["NodeID"]: node for node in ray.nodes() if node["Alive"]}
        self.machines = {node: machine for node, machine in self.machines.items() if node in nodes}
        new = [node for node in nodes if node not in self.machines and node not in self._blind]
        mark = self._folder / f"{MARK}{secrets.token_hex(4)}"
        signs = {str(path): sign_of(path) for path in self._files if path.exists()}
        try:
            mark.touch()
        except OSError as error:
            raise cannot_write(mark, error) from error
        asked = {_task(look_for, node, num_cpus=0).remote(str(mark), signs): node for node in new}
        answered, _ = ray.wait(list(asked), num_returns=len(asked), timeout=SECONDS_TO_LOOK) if asked else ([], [])
        for ref in answered:
            with suppress(RayError):
                node, memory = asked[ref], ray.get(ref)
                if memory is None:
                    self._blind.add(node)
                    continue
                has = nodes[node]["Resources"]
                limit = self.config.engine.memory_limit or memory // 2
                address = nodes[node]["NodeManagerAddress"]
                self.machines[node] = Machine(address, int(has.get("CPU", 0)), limit, int(has.get("memory", 0)))
        self.machines = {node: machine for node, machine in self.machines.items() if machine.cpus}
        mark.unlink()


class _Tasks:
    """Groups of items at work on machines."""

    def __init__(
        self, runner: TaskRunner, work: Any, given: Any, groups: Sequence[Sequence[Any]], memory: int, ordered: bool
    ) -> None:
        self._runner, self._work, self._given, self._memory, self._ordered = runner, work, given, memory, ordered
        self._waiting = deque(_Part(number, items) for number, items in enumerate(groups) if items)
        self._running: dict[Any, _Part] = {}

    def results(self) -> Iterator[tuple[int, int, Any]]:
        """Yields results as they come, with the numbers of their groups, and their places there."""
        timeout = self._runner.config.engine.cell_timeout
        while self._waiting or self._running:
            self._send()
            done, _ = ray.wait(list(self._running), timeout=timeout, fetch_local=False)
            if not done:
                raise ShoalError(
                    "prepare",
                    f"no result of {len(self._running)} tasks for {timeout:.0f} s; look at the cluster or raise "
                    "engine.cell_timeout, and run it again to go on",
                )
            part = self._running[done[0]]
            try:
                result = ray.get(next(done[0]))
            except RayTaskError as error:
                if isinstance(error.cause, ShoalError):
                    raise error.cause from None
                raise
            except RayError as error:
                del self._running[done[0]]
                self._lose(part, error)
                continue
            place, part.done = part.done, part.done + 1
            if part.done == len(part.items):
                del self._running[done[0]]
                # The next group starts while the caller uses the result.
                self._send()
            yield part.number, place, result

    def _send(self) -> None:
        """Sends groups to the machines that have the most room for them."""
        at_work = Counter(part.node for part in self._running.values())
        room = {node: working.groups(self._memory, None) for node, working in self._runner.able(self._memory).items()}
        while self._waiting:
            part = self._waiting[0]
            oldest = min((working.number for working in self._running.values()), default=part.number)
            if self._ordered and part.number - oldest > AHEAD * sum(room.values()):
                return
            free = {node: groups - at_work[node] for node, groups in room.items() if groups > at_work[node]}
            if not free:
                return
            node = max(free, key=lambda node: (node not in part.lost_on, free[node]))
            machine = self._runner.machines[node]
            memory = min(self._memory, machine.for_tasks // room[node])
            task = _task(work_on, node, num_cpus=1, memory=memory, num_returns="streaming")
            results = task.remote(self._work, self._given, part.items[part.done :], APART + secrets.token_hex(4))
            self._running[results] = self._waiting.popleft()
            part.node = node
            at_work[node] += 1

    def _lose(self, part: _Part, error: RayError) -> None:
        """Lets the rest of a group wait for another machine. Raises ShoalError: it was lost too often."""
        part.lost_on.append(part.node)
        machine = self._runner.machines.get(part.node)
        self._runner.look()
        if len(part.lost_on) > RETRIES or not self._runner.machines:
            raise ShoalError("prepare", f"a task was lost time and again ({error}); run it again to go on") from error
        say(f"prepare: a task on {machine.address if machine else part.node} was lost; its work is done again")
        self._waiting.appendleft(part)


def _task(function: Any, node: str, **options: Any) -> Any:
    """Makes a function a task for one machine. Ray does not repeat it there, since lost tasks are sent elsewhere."""
    here = NodeAffinitySchedulingStrategy(node, soft=False)
    return ray.remote(function).options(scheduling_strategy=here, max_retries=0, **options)


def _clear(folder: Path) -> None:
    """Removes marks, and unfinished files of tasks that were lost."""
    for path in (*folder.glob(f"{MARK}*"), *folder.rglob(f"*.{APART}*{UNFINISHED}")):
        with suppress(OSError):
            path.unlink()
