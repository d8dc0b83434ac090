"""Rows of states: a round that fails, or has several phases, finds what it began with."""

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from support.other_device.device import load, room_for
from support.other_device.device_counts import DeviceCounts

from shoal.algorithms.protocol import Tree
from shoal.algorithms.rng import CPU
from shoal.engine.hosts.devices.state_rows import KeptState, StateRows

SHAPES: dict[str, tuple[int, ...]] = {"mean": (3,), "step": ()}
# Of both rows of a client.
SIZE = 2 * 4 * (3 + 1)
CLIENTS = 5


def of(value: float, device: torch.device = CPU) -> Tree:
    return {"mean": torch.full((3,), value, device=device), "step": torch.tensor(value, device=device)}


def value_of(state: Tree) -> float:
    """What `of` made, or 0 for a client that kept nothing."""
    numbers = [number for t in state.values() for number in t.reshape(-1).tolist()]
    assert len(numbers) in (0, 4)
    assert len(set(numbers)) <= 1
    return numbers[0] if numbers else 0.0


ROUND = st.tuples(
    st.lists(st.sets(st.integers(0, CLIENTS - 1), min_size=1), min_size=1, max_size=3),
    st.sampled_from(["commit", "fail"]),
    st.sets(st.integers(0, CLIENTS - 1)),
)


@settings(max_examples=150, deadline=None)
@given(rounds=st.lists(ROUND, max_size=6), room=st.integers(0, CLIENTS))
def test_states_are_values(rounds: list[Any], room: int) -> None:
    """Beside plain numbers: rounds of several phases, some of which fail, after which a client's tree may be copied."""
    rows, held = StateRows(SHAPES, CPU), dict[int, Tree]()
    expected, number, drawn = dict[int, float](), 1, 0.0
    for phases, end, copied in rounds:
        trees, values = dict(held), dict(expected)
        for clients in phases:
            ids = sorted(clients)
            before = [trees.get(i, {}) for i in ids]
            copies = rows.copy(ids, before, number, room * SIZE)
            assert [value_of(tree) for tree in copies] == [values.get(i, 0.0) for i in ids]
            for i, tree in zip(ids, copies):
                drawn += 1.0
                for t in tree.values():
                    t.fill_(drawn)
                trees[i], values[i] = tree, drawn
            # What the round began with, and what it has of other clients.
            assert {i: value_of(tree) for i, tree in held.items()} == expected
            assert {i: value_of(tree) for i, tree in trees.items()} == values
        assert sum(isinstance(tree, KeptState) for tree in trees.values()) <= room
        if end == "commit":
            # As a checkpoint that was read again.
            read = {i: {name: t.clone() for name, t in trees[i].items()} for i in copied & trees.keys()}
            held, expected, number = trees | read, values, number + 1


def test_rows_are_given_while_there_is_room() -> None:
    rows = StateRows(SHAPES, CPU)
    first = rows.copy([4, 2, 7], [{}, {}, {}], 1, 2 * SIZE + SIZE - 1)
    assert [isinstance(tree, KeptState) for tree in first] == [True, True, False]
    second = rows.copy([7, 9, 2], [first[2], {}, first[1]], 2, 2 * SIZE)
    assert [isinstance(tree, KeptState) for tree in second] == [False, False, True]
    assert rows.copy([1], [{}], 3, 10 * SIZE)[0] is not None
    # Both rows, and no others, of any number of rounds.
    addresses = {rows.copy([4], [first[0]], number, 0)[0]["mean"].data_ptr() for number in (4, 5, 6)}
    assert len(addresses) == 1
    assert first[0]["mean"].data_ptr() not in addresses


def test_one_operator_a_name_and_one_copy_to_the_device() -> None:
    other = load()
    rows = StateRows(SHAPES, other)
    kept = rows.copy(range(64), [{}] * 64, 1, 100 * SIZE)
    sent = {i: of(float(i)) for i in range(0, 64, 2)}
    with DeviceCounts(other) as counts:
        copies = rows.copy(range(64), [sent.get(i, kept[i]) for i in range(64)], 2, 100 * SIZE)
    assert (counts.copies, counts.synchronisations) == (1, 0)
    assert counts.launches == len(SHAPES)
    assert [value_of(tree) for tree in copies] == [float(i if i % 2 == 0 else 0) for i in range(64)]


@pytest.mark.parametrize("wrong", [{"mean": torch.ones(1)}, {"mean": torch.ones(3), "other": torch.ones(3)}])
def test_states_of_another_form_are_refused(wrong: Tree) -> None:
    with pytest.raises(RuntimeError, match="expected mean, step of a client"):
        StateRows(SHAPES, CPU).copy([0, 1], [{}, wrong], 1, 0)


def test_without_memory_no_client_is_given_rows() -> None:
    rows = StateRows({"mean": (1000,)}, load())
    with room_for(1000), pytest.raises(torch.OutOfMemoryError):
        rows.copy([0], [{}], 1, 10**6)
    assert isinstance(rows.copy([0], [{}], 1, 10**6)[0], KeptState)
