"""A cell split into single clients, in any order, gives the bits of the unsplit cell."""

from collections.abc import Sequence

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from shoal.algorithms.protocol import Reduce, Tree, Upload
from shoal.engine.cluster.ray_pool import Assembly, Task
from shoal.engine.messages.cell import Cell, Outcome
from shoal.engine.rounds.reduction import reduce_cell
from shoal.storage.errors import ShoalError

UP = {"sum": Reduce.MEAN, "rows": Reduce.MEAN, "kept": Reduce.STACK, "mixed": Reduce.MIX, "list": Reduce.GATHER}


def cell(ids: Sequence[int]) -> Cell:
    return Cell(3, ids, "train", UP, True, {}, {}, {}, frozenset(ids[::2]), float(len(ids)))


def outcome_of(ids: Sequence[int], uploads: dict[int, Upload], failing: set[int], scored: frozenset[int]) -> Outcome:
    """The outcome of some clients on a host."""
    outcome = Outcome(seconds={"train": 0.25 * len(ids), "upload": 0.5, "evaluate": 0.0})
    answered = [i for i in ids if i not in failing]
    for i in ids:
        if i in failing:
            outcome.failures[i] = f"client {i}", "traceback"
            continue
        outcome.ids.append(i)
        outcome.losses.append(i / 3)
        outcome.bytes_up.append(10 * i)
        outcome.states[i] = {"model.w": torch.full((2,), float(i))}
        if i in scored:
            outcome.scores[i] = np.full((2, 3, 4), i)
    if answered:
        reduce_cell([uploads[i] for i in answered], UP, outcome)
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


def same_bits(left: Tree, right: Tree) -> bool:
    # A sum of one client alone travels in its own precision.
    return left.keys() == right.keys() and all(
        torch.equal(t.double(), right[name].double()) for name, t in left.items()
    )


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_join_of_split_tasks_equals_the_unsplit_cell(data: st.DataObject) -> None:
    ids = sorted(data.draw(st.sets(st.integers(0, 30), min_size=1, max_size=6)))
    failing = data.draw(st.sets(st.sampled_from(ids)))
    uploads = uploads_of(ids, data.draw(st.integers(0, 10**6)))
    assembly = Assembly()
    whole = Task(5, cell(ids), losses=1)
    tasks = assembly.split(whole)
    assert [list(task.cell.ids) for task in tasks] == [[i] for i in ids]
    assert all((task.position, task.losses) == (5, 1) for task in tasks)
    joined = None
    for number, task in enumerate(data.draw(st.permutations(tasks))):
        assert joined is None, number
        joined = assembly.join(task, outcome_of(task.cell.ids, uploads, failing, task.cell.score))
    expected = outcome_of(ids, uploads, failing, whole.cell.score)
    assert joined is not None
    for name in ("ids", "losses", "bytes_up", "failures"):
        assert getattr(joined, name) == getattr(expected, name)
    assert joined.states.keys() == expected.states.keys()
    assert all(same_bits(joined.states[i], tree) for i, tree in expected.states.items())
    assert joined.scores.keys() == expected.scores.keys()
    assert all(np.array_equal(joined.scores[i], counts) for i, counts in expected.scores.items())
    for name in ("sums", "weights", "tensors"):
        assert same_bits(getattr(joined, name), getattr(expected, name)), name
    assert joined.lists.keys() == expected.lists.keys()
    for entry, tensors in expected.lists.items():
        assert all(torch.equal(*pair) for pair in zip(joined.lists[entry], tensors, strict=True))
    assert joined.seconds["train"] == 0.25 * len(ids)


def test_join_of_two_cells_keeps_them_apart() -> None:
    uploads = uploads_of([0, 1, 2, 3], 0)
    assembly = Assembly()
    first, second = assembly.split(Task(0, cell([0, 1]))), assembly.split(Task(1, cell([2, 3])))
    joined = [
        assembly.join(task, outcome_of(task.cell.ids, uploads, set(), frozenset()))
        for task in (first[0], second[1], second[0], first[1])
    ]
    assert joined[:2] == [None, None]
    assert [outcome.ids for outcome in joined if outcome is not None] == [[2, 3], [0, 1]]


def test_join_of_an_unsplit_task_returns_its_outcome() -> None:
    assembly = Assembly()
    task, outcome = Task(0, cell([0, 1])), Outcome(ids=[0, 1])
    assert assembly.join(task, outcome) is outcome
    alone = Task(1, cell([4]))
    assert assembly.split(alone) == [alone]
    assert assembly.join(alone, outcome) is outcome


def test_join_of_different_shapes_raises() -> None:
    up = {"w": Reduce.MEAN}
    assembly = Assembly()
    tasks = assembly.split(Task(0, cell([0, 1])))
    outcomes = [Outcome(ids=[i]) for i in range(2)]
    for i, outcome in enumerate(outcomes):
        reduce_cell([Upload({"w": torch.ones(i + 2)})], up, outcome)
    assert assembly.join(tasks[0], outcomes[0]) is None
    with pytest.raises(ShoalError, match=r"^upload\(\) gives 'w' as \[2\] at client 0 and as \[3\] at client 1;"):
        assembly.join(tasks[1], outcomes[1])
