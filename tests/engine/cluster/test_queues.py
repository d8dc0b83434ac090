"""What a host takes next: the largest first, enough for a call, from the fullest queue once its own is empty."""

import math
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.engine.cluster.ray_pool import Queues, Task
from shoal.engine.rounds.sampling import evaluation_cell

EVERYONE = frozenset(range(100))


def task(position: int, cost: float = 1.0, ids: Sequence[int] | None = None, losses: int = 0) -> Task:
    return Task(position, evaluation_cell(1, [position] if ids is None else ids, {}, {}, cost), losses)


def filled(places: Sequence[int], costs: Sequence[float] | None = None, seconds: float = math.inf) -> Queues:
    """Queues of two hosts; every piece takes so many seconds."""
    queues = Queues(2, lambda task: seconds)
    queues.fill([task(p, 1.0 if costs is None else costs[p]) for p in range(len(places))], places)
    return queues


def take(queues: Queues, host: int, sees: frozenset[int] = EVERYONE, alone: bool = False, **kind: bool) -> list[int]:
    return [task.position for task in queues.take(host, sees, alone, **{"never_lost": False, **kind})]


def test_the_largest_first_and_of_equals_the_first() -> None:
    queues = filled([0, 0, 0, 0], [1.0, 5.0, 3.0, 5.0])
    assert [take(queues, 0) for _ in range(5)] == [[1], [3], [2], [0], []]


def test_one_piece_a_call_while_nobody_knows_how_long_it_takes() -> None:
    assert take(filled([0] * 8), 0) == [0]


def test_short_ones_go_together_but_half_of_the_queue_stays() -> None:
    assert take(filled([0] * 8, seconds=0.001), 0) == [0, 1, 2, 3]
    # Of an odd number the larger half; nobody else is at work: all of them.
    assert take(filled([0] * 5, seconds=0.001), 0) == [0, 1, 2]
    assert take(filled([0] * 5, seconds=0.001), 0, alone=True) == [0, 1, 2, 3, 4]


def test_a_call_ends_after_half_a_second() -> None:
    assert take(filled([0] * 8, seconds=0.2), 0) == [0, 1, 2]


def test_its_own_before_those_of_others() -> None:
    queues = filled([0, 1, 1, 1], [1.0, 9.0, 9.0, 9.0])
    assert take(queues, 0) == [0]
    assert take(queues, 0) == [1]
    assert queues.clients() == {2, 3}


def test_from_the_fullest_of_other_queues() -> None:
    queues = Queues(3, lambda task: math.inf)
    queues.fill([task(p) for p in range(5)], [1, 2, 2, 2, 1])
    assert take(queues, 0) == [1]


def test_nothing_whose_data_it_does_not_see() -> None:
    queues = Queues(2, lambda task: math.inf)
    queues.fill([task(0, 9.0, [0, 1]), task(1, 1.0, [2])], [0, 0])
    assert take(queues, 1, frozenset({1, 2})) == [1]
    assert take(queues, 1, frozenset({1, 2})) == []
    assert take(queues, 1, frozenset({0, 1})) == [0]


def test_what_was_lost_runs_alone() -> None:
    queues = Queues(1, lambda task: 0.0)
    queues.fill([task(p) for p in range(4)], [0] * 4)
    queues.add(0, [task(7, losses=1), task(8, losses=1)])
    # Behind a call that is under way only what was never lost may follow.
    assert take(queues, 0, never_lost=True) == [0, 1, 2]
    assert take(queues, 0) == [8]
    assert take(queues, 0) == [7]
    assert take(queues, 0) == [3]


def test_what_was_lost_does_not_follow_others_in_a_call() -> None:
    queues = Queues(1, lambda task: 0.0)
    queues.add(0, [task(7, losses=1), task(1), task(2)])
    assert take(queues, 0, alone=True) == [2, 1]
    assert take(queues, 0, alone=True) == [7]


def test_added_pieces_are_taken_first() -> None:
    queues = filled([0, 1])
    queues.add(0, [task(5), task(6)])
    assert take(queues, 0) == [6]
    assert take(queues, 0) == [5]


def test_to_the_shortest_of_some() -> None:
    queues = Queues(3, lambda task: math.inf)
    queues.fill([task(p) for p in range(3)], [0, 0, 1])
    queues.add_to_shortest([0, 1], task(9))
    assert take(queues, 1) == [9]
    queues.add_to_shortest([0, 1, 2], task(8))
    assert take(queues, 2) == [8]


def test_pieces_are_replaced_in_their_places() -> None:
    queues = filled([0, 0, 1])
    queues.replace(0, lambda old: [task(old.position + 10), task(old.position + 20)])
    assert queues.clients() == {10, 11, 20, 21, 2}
    assert [take(queues, 0) for _ in range(4)] == [[20], [10], [21], [11]]


@given(st.data())
def test_every_piece_is_taken_once_by_a_host_that_sees_it(data: st.DataObject) -> None:
    hosts = data.draw(st.integers(1, 3))
    costs = data.draw(st.lists(st.floats(0, 10), max_size=12))
    sees = [frozenset(data.draw(st.sets(st.integers(0, 11)))) for _ in range(hosts)]
    queues = Queues(hosts, lambda task: data.draw(st.sampled_from([0.01, 0.3, math.inf])))
    queues.fill([task(p, cost) for p, cost in enumerate(costs)], [data.draw(st.integers(0, hosts - 1)) for _ in costs])
    taken: list[int] = []
    idle = 0
    while idle <= hosts:
        host = data.draw(st.integers(0, hosts - 1)) if not idle else idle - 1
        found = take(queues, host, sees[host])
        assert sees[host].issuperset(found)
        taken += found
        idle = 0 if found else idle + 1
    assert len(taken) == len(set(taken))
    # What is left, no host sees.
    assert queues.clients() == set(range(len(costs))) - set(taken)


@pytest.mark.parametrize("alone", [True, False])
def test_an_empty_phase(alone: bool) -> None:
    assert take(filled([]), 0, alone=alone) == []
