"""Tasks that wait for hosts: their places, and the queue of every host; a task costs O(log hosts)."""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from heapq import heapify, heappop, heappush

from shoal.engine.cluster.client_ranges import ClientRanges
from shoal.engine.messages.cell import Cell


@dataclass(eq=False)
class Task:
    """A cell, or one client of the cell at `position` in its phase, to run on a host; `losses` counts lost hosts."""

    position: int
    cell: Cell
    losses: int = 0


SLACK = 0.01


def place(costs: Sequence[float], able: Sequence[Sequence[int]], homes: Sequence[int | None]) -> list[int]:
    """Assigns cells to the hosts that ran them last, if load allows; the most costly cells first.

    A host keeps its earlier cells, whose data it has open, up to an even share of all costs, or while its load is the
    lowest. Other cells go to the host of the lowest load, so a host that joins later gets a share. `able` has the hosts
    that can read the data of each cell, at least one; `homes` the host that ran it last.
    """
    groups = {id(hosts): hosts for hosts in able}
    members = {group: frozenset(hosts) for group, hosts in groups.items()}
    load = dict.fromkeys((host for hosts in members.values() for host in hosts), 0.0)
    lowest = {group: [(0.0, host) for host in hosts] for group, hosts in members.items()}
    for heap in lowest.values():
        heapify(heap)
    share = (1 + SLACK) * sum(costs) / max(len(load), 1)
    places = [-1] * len(costs)
    for cell in sorted(range(len(costs)), key=lambda cell: (-costs[cell], cell)):
        group, home = id(able[cell]), homes[cell]
        heap = lowest[group]
        # An entry is stale if the load of its host has grown since; a newer one is in the heap.
        while load[heap[0][1]] != heap[0][0]:
            heappop(heap)
        host = heap[0][1]
        if home in members[group] and (load[home] + costs[cell] <= share or load[home] == load[host]):
            host = home
        places[cell] = host
        load[host] += costs[cell]
        for other, heap in lowest.items():
            if host in members[other]:
                heappush(heap, (load[host], host))
    return places


# Shorter cells are sent together: a call costs milliseconds.
SECONDS_OF_A_CALL = 0.5
# A call takes such a share of a queue: small enough that hosts finish together, large enough for few calls.
SHARE_OF_A_CALL = 0.5


class Queues:
    """The waiting tasks of a phase, by host; a host takes the last task of a queue, of the largest cost, first."""

    def __init__(self, tasks: Sequence[Task], places: Sequence[int], hosts: int) -> None:
        """Queues tasks at their places."""
        self._waiting: list[list[Task]] = [[] for _ in range(hosts)]
        # A heap of the negative length and the host of every queue; stale entries have other lengths.
        self._fullest: list[tuple[int, int]] = []
        for task, host in sorted(zip(tasks, places), key=lambda pair: (pair[0].cell.cost, -pair[0].position)):
            self._waiting[host].append(task)
        for host in range(hosts):
            self._note(host)

    @property
    def tasks(self) -> Iterable[Task]:
        """The tasks of all queues."""
        return (task for queue in self._waiting for task in queue)

    def put(self, host: int, tasks: Iterable[Task]) -> None:
        """Queues tasks to be taken next, the last one first."""
        self._waiting[host].extend(tasks)
        self._note(host)

    def shortest(self, hosts: Iterable[int]) -> int:
        """Returns the host, of some, that has the fewest tasks."""
        return min(hosts, key=lambda host: len(self._waiting[host]))

    def empty(self, host: int) -> list[Task]:
        """Takes all tasks of a host."""
        tasks, self._waiting[host] = self._waiting[host], []
        return tasks

    def take(
        self,
        host: int,
        reads: ClientRanges | frozenset[int],
        pace: Callable[[Task], float],
        alone: bool = False,
        never_lost: bool = False,
    ) -> list[Task]:
        """Takes tasks for one call: enough to pay for the call, and few enough that the hosts finish together.

        A task that was lost before runs in a call without others, so that only it can cause the next loss; `never_lost`
        leaves such tasks. `reads` has the clients that the host can read, `pace` gives the expected seconds of a task,
        `alone` says that no other host is ready.
        """
        most = len(self._waiting[host]) or self._most()
        share = most if alone else math.ceil(SHARE_OF_A_CALL * most)
        tasks: list[Task] = []
        seconds = 0.0
        while len(tasks) < share and seconds < SECONDS_OF_A_CALL:
            task = self._next(host, reads, never_lost or bool(tasks))
            if task is None:
                break
            tasks.append(task)
            seconds += math.inf if task.losses else pace(task)
        return tasks

    def _next(self, host: int, reads: ClientRanges | frozenset[int], never_lost: bool) -> Task | None:
        """Takes the largest task of the host's queue, or of the fullest queue that has one for it."""
        task, popped = self._largest(host, reads, never_lost), []
        while task is None and self._most():
            popped.append(heappop(self._fullest))
            task = self._largest(popped[-1][1], reads, never_lost)
        for entry in popped:
            heappush(self._fullest, entry)
        return task

    def _largest(self, host: int, reads: ClientRanges | frozenset[int], never_lost: bool) -> Task | None:
        queue = self._waiting[host]
        for number in reversed(range(len(queue))):
            task = queue[number]
            if not (never_lost and task.losses) and reads.issuperset(task.cell.ids):
                del queue[number]
                self._note(host)
                return task
        return None

    def _most(self) -> int:
        """Returns the length of the fullest queue."""
        while self._fullest and -self._fullest[0][0] != len(self._waiting[self._fullest[0][1]]):
            heappop(self._fullest)
        return -self._fullest[0][0] if self._fullest else 0

    def _note(self, host: int) -> None:
        if self._waiting[host]:
            heappush(self._fullest, (-len(self._waiting[host]), host))
