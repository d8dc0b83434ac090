"""Tasks of one call: the largest first, enough for a call, from the fullest queue once the host's own is empty."""

import math
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.engine.cluster import ray_pool
from shoal.engine.cluster.ray_pool import Task, queued
from shoal.engine.rounds.sampling import evaluation_cell

EVERYONE = frozenset(range(100))
Queues = list[list[Task]]


def task(position: int, cost: float = 1.0, ids: Sequence[int] | None = None, losses: int = 0) -> Task:
    return Task(position, evaluation_cell(1, [position] if ids is None else ids, {}, {}, cost), losses)


def filled(places: Sequence[int], costs: Sequence[float] | None = None, hosts: int = 2) -> Queues:
    return queued([task(p, 1.0 if costs is None else costs[p]) for p in range(len(places))], places, hosts)


def take(
    queues: Queues, host: int, reads: frozenset[int] = EVERYONE, seconds: float = math.inf, **kind: bool
) -> list[int]:
    """Positions of the tasks of one call; every task takes so many seconds."""
    return [task.position for task in ray_pool.take(queues, host, reads, lambda _: seconds, **kind)]


def clients(queues: Queues) -> set[int]:
    return {i for queue in queues for waiting in queue for i in waiting.cell.ids}


def test_take_largest_first_then_lowest_position() -> None:
    queues = filled([0, 0, 0, 0], [1.0, 5.0, 3.0, 5.0])
    assert [take(queues, 0) for _ in range(5)] == [[1], [3], [2], [0], []]


def test_take_of_unknown_pace_is_one_task() -> None:
    assert take(filled([0] * 8), 0) == [0]


def test_take_of_short_tasks_is_half_of_the_queue() -> None:
    assert take(filled([0] * 8), 0, seconds=0.001) == [0, 1, 2, 3]
    # The larger half of an odd number; all of them where no other host is ready.
    assert take(filled([0] * 5), 0, seconds=0.001) == [0, 1, 2]
    assert take(filled([0] * 5), 0, seconds=0.001, alone=True) == [0, 1, 2, 3, 4]


def test_take_ends_after_half_a_second() -> None:
    assert take(filled([0] * 8), 0, seconds=0.2) == [0, 1, 2]


def test_take_prefers_the_own_queue() -> None:
    queues = filled([0, 1, 1, 1], [1.0, 9.0, 9.0, 9.0])
    assert take(queues, 0) == [0]
    assert take(queues, 0) == [1]
    assert clients(queues) == {2, 3}


def test_take_with_an_empty_queue_uses_the_fullest() -> None:
    assert take(filled([1, 2, 2, 2, 1], hosts=3), 0) == [1]


def test_take_skips_unreadable_clients() -> None:
    queues = queued([task(0, 9.0, [0, 1]), task(1, 1.0, [2])], [0, 0], 2)
    assert take(queues, 1, frozenset({1, 2})) == [1]
    assert take(queues, 1, frozenset({1, 2})) == []
    assert take(queues, 1, frozenset({0, 1})) == [0]


def test_take_of_a_lost_task_is_that_task_alone() -> None:
    queues = filled([0] * 4, hosts=1)
    queues[0] += [task(7, losses=1), task(8, losses=1)]
    # Behind a call that is under way only tasks that were never lost may follow.
    assert take(queues, 0, seconds=0.0, never_lost=True) == [0, 1, 2]
    assert take(queues, 0, seconds=0.0) == [8]
    assert take(queues, 0, seconds=0.0) == [7]
    assert take(queues, 0, seconds=0.0) == [3]


def test_take_of_others_excludes_lost_tasks() -> None:
    queues: Queues = [[task(7, losses=1), task(1), task(2)]]
    assert take(queues, 0, seconds=0.0, alone=True) == [2, 1]
    assert take(queues, 0, seconds=0.0, alone=True) == [7]


@given(st.data())
def test_take_gives_every_readable_task_once(data: st.DataObject) -> None:
    hosts = data.draw(st.integers(1, 3))
    costs = data.draw(st.lists(st.floats(0, 10), max_size=12))
    reads = [frozenset(data.draw(st.sets(st.integers(0, 11)))) for _ in range(hosts)]
    queues = filled([data.draw(st.integers(0, hosts - 1)) for _ in costs], costs, hosts)
    taken: list[int] = []
    idle = 0
    while idle <= hosts:
        host = data.draw(st.integers(0, hosts - 1)) if not idle else idle - 1
        found = take(queues, host, reads[host], data.draw(st.sampled_from([0.01, 0.3, math.inf])))
        assert reads[host].issuperset(found)
        taken += found
        idle = 0 if found else idle + 1
    assert len(taken) == len(set(taken))
    # No host can read the rest.
    assert clients(queues) == set(range(len(costs))) - set(taken)


@pytest.mark.parametrize("alone", [True, False])
def test_take_of_an_empty_phase_is_nothing(alone: bool) -> None:
    assert take(filled([]), 0, alone=alone) == []
