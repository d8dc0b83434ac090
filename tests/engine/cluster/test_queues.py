"""Tasks of a phase: their places, the queues of hosts, the tasks of one call, and cells that are split and joined."""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from support.small_cells import cell_of, require_same_outcome
from torch import Tensor

from shoal.algorithms.protocol import Reduce, Upload
from shoal.engine.cluster.queues import Queues, Task, place
from shoal.engine.cluster.ray_pool import Assembly
from shoal.engine.messages.cell import Cell, Outcome
from shoal.engine.rounds.reduction import reduce_cell

EVERYONE = frozenset(range(100))


@given(st.data())
def test_place_assigns_every_cell_to_an_able_host(data: st.DataObject) -> None:
    hosts, cells = data.draw(st.integers(1, 4)), data.draw(st.integers(0, 20))
    some_hosts = st.lists(st.integers(0, hosts - 1), min_size=1, max_size=hosts, unique=True)
    able = [data.draw(some_hosts) for _ in range(cells)]
    costs = [data.draw(st.floats(0, 100)) for _ in range(cells)]
    homes = [data.draw(st.one_of(st.none(), st.integers(0, hosts + 1))) for _ in range(cells)]
    places = place(costs, able, homes)
    assert len(places) == cells
    assert all(host in hosts for host, hosts in zip(places, able))


@pytest.mark.parametrize(
    ("costs", "homes", "places"),
    [
        pytest.param([1.0] * 6, [0, 1, 1, 0, 1, 0], [0, 1, 1, 0, 1, 0], id="even load stays at home"),
        pytest.param([1.0, 5.0, 1.0, 3.0], [None] * 4, [1, 0, 1, 1], id="new cells balance load"),
        pytest.param([10.0, 1.0], [1, 0], [1, 0], id="above a share"),
        pytest.param([1.0] * 50, [0] * 50, [0, 1] * 25, id="a new host has a share"),
    ],
)
def test_place_by_hand(costs: list[float], homes: list[int | None], places: list[int]) -> None:
    able = [[0, 1]] * len(costs)
    found = place(costs, able, homes)
    assert found == places or (len(costs) == 50 and sorted(found) == sorted(places))
    assert place(costs, able, found) == found


def task(position: int, cost: float = 1.0, ids: Sequence[int] | None = None, losses: int = 0) -> Task:
    return Task(position, cell_of([position] if ids is None else ids, cost=cost), losses)


def filled(places: Sequence[int], costs: Sequence[float] | None = None, hosts: int = 2) -> Queues:
    return Queues([task(p, 1.0 if costs is None else costs[p]) for p in range(len(places))], places, hosts)


def take(queues: Queues, host: int, reads: Any = EVERYONE, seconds: float = math.inf, **kind: bool) -> list[int]:
    """Positions of the tasks of one call; every task takes so many seconds."""
    return [task.position for task in queues.take(host, reads, lambda _: seconds, **kind)]


def clients(queues: Queues) -> set[int]:
    return {i for waiting in queues.tasks for i in waiting.cell.ids}


def test_take_largest_first_then_lowest_position() -> None:
    # Of unknown pace one task makes a call.
    queues = filled([0, 0, 0, 0], [1.0, 5.0, 3.0, 5.0])
    assert [take(queues, 0) for _ in range(5)] == [[1], [3], [2], [0], []]


@pytest.mark.parametrize(
    ("waiting", "seconds", "alone", "taken"),
    [(8, 0.001, False, 4), (5, 0.001, False, 3), (5, 0.001, True, 5), (8, 0.2, False, 3)],
)
def test_take_of_short_tasks(waiting: int, seconds: float, alone: bool, taken: int) -> None:
    """The larger half of the queue, all of it where no other host is ready, and at most for half a second."""
    assert take(filled([0] * waiting), 0, seconds=seconds, alone=alone) == list(range(taken))


def test_take_prefers_the_own_queue_then_the_fullest() -> None:
    queues = filled([0, 1, 1, 1], [1.0, 9.0, 9.0, 9.0])
    assert take(queues, 0) == [0]
    assert take(queues, 0) == [1]
    assert clients(queues) == {2, 3}
    assert take(filled([1, 2, 2, 2, 1], hosts=3), 0) == [1]


def test_take_of_a_lost_task_is_that_task_alone() -> None:
    queues = filled([0] * 4, hosts=1)
    queues.put(0, [task(7, losses=1), task(8, losses=1)])
    # Behind a call that is under way only tasks that were never lost may follow.
    assert take(queues, 0, seconds=0.0, never_lost=True) == [0, 1, 2]
    assert [take(queues, 0, seconds=0.0) for _ in range(3)] == [[8], [7], [3]]
    queues = Queues([], [], 1)
    queues.put(0, [task(7, losses=1), task(1), task(2)])
    assert [take(queues, 0, seconds=0.0, alone=True) for _ in range(2)] == [[2, 1], [7]]


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


UP = {"sum": Reduce.MEAN, "rows": Reduce.MEAN, "kept": Reduce.STACK, "mixed": Reduce.MIX, "list": Reduce.GATHER}


def cell(ids: Sequence[int]) -> Cell:
    return cell_of(ids, UP, score=frozenset(ids[::2]))


def outcome_of(cell: Cell, uploads: dict[int, Upload], failing: set[int]) -> Outcome:
    """The outcome of a cell on a host."""
    ids = cell.ids
    answered = [i for i in ids if i not in failing]
    outcome = Outcome(ids=answered, failures={i: (f"client {i}", "traceback") for i in ids if i in failing})
    outcome.losses, outcome.bytes_up = [i / 3 for i in answered], [10 * i for i in answered]
    outcome.states = {i: {"model.w": torch.full((2,), float(i))} for i in answered}
    outcome.scores = {i: np.full((2, 3, 4), i) for i in answered if i in cell.score}
    outcome.seconds = {"train": 0.25 * len(ids), "upload": 0.5, "evaluate": 0.0}
    if answered:
        reduce_cell([uploads[i] for i in answered], cell, outcome)
    return outcome


def uploads_of(ids: Sequence[int], seed: int) -> dict[int, Upload]:
    rng = torch.Generator().manual_seed(seed)

    def draw(*shape: int) -> Tensor:
        # Of sizes so apart that the order of additions shows.
        return torch.randn(*shape, generator=rng) * 10.0 ** torch.randint(-8, 8, shape, generator=rng)

    uploads = {}
    for i in ids:
        entries = {"sum": draw(4), "rows": draw(3, 2), "kept": draw(2), "mixed": draw(2, 2), "list": draw(i % 3 + 1)}
        counts = torch.randint(0, 3, (3, 1), generator=rng).float()
        uploads[i] = Upload(entries, {"sum": float(draw(1).abs()), "rows": counts})
    return uploads


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_join_of_split_tasks_equals_the_unsplit_cells(data: st.DataObject) -> None:
    """To the bit, in any order; of two cells at work each has its own."""
    ids = sorted(data.draw(st.sets(st.integers(0, 30), min_size=2, max_size=7)))
    groups = [ids[:1], ids[1:]] if data.draw(st.booleans()) else [ids]
    failing = data.draw(st.sets(st.sampled_from(ids)))
    uploads = uploads_of(ids, data.draw(st.integers(0, 10**6)))
    assembly = Assembly()
    whole = [Task(5 + place, cell(group), losses=1) for place, group in enumerate(groups)]
    tasks = [single for task in whole for single in assembly.split(task)]
    assert [list(task.cell.ids) for task in tasks] == [[i] for i in ids]
    assert all(task.losses == 1 for task in tasks)
    joined: dict[int, Outcome] = {}
    for task in data.draw(st.permutations(tasks)):
        assert task.position not in joined
        outcome = assembly.join(task, outcome_of(task.cell, uploads, failing))
        if outcome is not None:
            joined[task.position] = outcome
    for task in whole:
        found, expected = joined[task.position], outcome_of(task.cell, uploads, failing)
        require_same_outcome(found, expected)
        assert (found.failures, found.seconds["train"]) == (expected.failures, 0.25 * len(task.cell.ids))
        torch.testing.assert_close(found.lists, expected.lists, rtol=0, atol=0)


@pytest.mark.parametrize("gpus", [2, 8])
def test_the_cells_of_a_round_on_gpus_are_shared_evenly(gpus: int) -> None:
    """Eight equal cells, in whatever round: as many on each, also when one of the hosts is lost."""
    homes: list[int | None] = [None] * 8
    for hosts in (range(gpus), range(gpus), range(1, gpus)):
        able = [list(hosts)] * 8
        places = place([1.0] * 8, able, homes)
        counts = [places.count(host) for host in hosts]
        assert sum(counts) == 8
        assert max(counts) - min(counts) <= 1
        # A cell stays where its data is.
        assert places == homes or None in homes or len(hosts) < gpus
        homes = [*places]
