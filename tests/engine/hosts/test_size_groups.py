"""Clients of like size in one batch; where there is no memory for it, in smaller ones, and at last one by one."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from support.other_device.device import room_for
from torch import Tensor

from shoal.algorithms.training.batched import batched_inputs as sizes_file
from shoal.algorithms.training.batched.batched_inputs import MOST, NO_MATTER, size_groups
from shoal.algorithms.training.batched.batched_training import BatchedTrainer
from shoal.engine.rounds.server import Server
from shoal.storage.errors import ShoalError

Run = Callable[..., Server]
# Client 5 has nothing to train.
TRAINED = 5
BATCHED = {"engine.trainer": "batched", "engine.cell_size": 6, "train.dropout": 0.3, "train.epochs": 2}


@given(st.lists(st.integers(1, 10**6), max_size=30), st.integers(1, 4000), st.integers(0, 10**9))
def test_every_client_is_in_one_group_of_its_size(rows: list[int], row_bytes: int, client_bytes: int) -> None:
    groups = size_groups(rows, row_bytes, client_bytes)
    assert sorted(i for group in groups for i in group) == list(range(len(rows)))
    for group in groups:
        assert group == sorted(group)
        own = [rows[i] for i in group]
        size = len(group) * (max(own) * row_bytes + client_bytes)
        assert len(group) == 1 or size <= NO_MATTER or (size <= MOST and 2 * min(own) >= max(own))


def test_groups_worked_out_by_hand() -> None:
    row = NO_MATTER // 100
    assert size_groups([10, 90, 20], row, 0) == [[1], [0, 2]]
    # Not more bytes than padding may cost: all at once.
    assert size_groups([10, 30, 20], row, 0) == [[0, 1, 2]]
    assert size_groups([60, 120, 59, 119], row, 0) == [[0, 1, 3], [2]]
    assert size_groups([100] * 300, MOST // 20_000, 0) == [list(range(200)), list(range(200, 300))]
    assert size_groups([1, 1, 1], 1, MOST // 2 - 1) == [[0, 1], [2]]
    assert size_groups([], 1, 1) == []
    assert size_groups([9, 9, 9], NO_MATTER, 0, most=18 * NO_MATTER) == [[0, 1], [2]]
    # As many bytes as padding may cost.
    assert size_groups([2, 1], NO_MATTER // 4, 0, most=0) == [[0, 1]]


def test_groups_give_the_same_numbers(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those of one batch, to rounding."""
    whole = run(BATCHED, rounds=2)
    monkeypatch.setattr(sizes_file, "NO_MATTER", 0)
    monkeypatch.setattr(sizes_file, "MOST", 12_000)
    sizes = sizes_of(monkeypatch)
    parted = run(BATCHED, rounds=2)
    assert sizes == [2, 2, 1] * 2
    same(parted, whole)


def sizes_of(monkeypatch: pytest.MonkeyPatch, room: int | None = None) -> list[int]:
    """How many clients every batch that was begun had; with a limit of what it may take on the second device."""
    fit, sizes = BatchedTrainer.fit, []

    def noted(self: BatchedTrainer, clients: Any, *received: Any) -> Tensor:
        sizes.append(len(clients))
        if room is None:
            return fit(self, clients, *received)
        with room_for(room):
            return fit(self, clients, *received)

    monkeypatch.setattr(BatchedTrainer, "fit", noted)
    return sizes


def same(found: Server, expected: Server) -> None:
    for name, tensor in expected.state.server.items():
        torch.testing.assert_close(found.state.server[name], tensor, rtol=1e-3, atol=1e-5)
    assert found.state.clients.keys() == expected.state.clients.keys()
    for i, state in expected.state.clients.items():
        for name, tensor in state.items():
            torch.testing.assert_close(found.state.clients[i][name], tensor, rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize(
    ("room", "begun"),
    [
        pytest.param(2**20, [5], id="for all"),
        pytest.param(24_000, [5, 2, 3], id="for three"),
        pytest.param(100, [5, 2, 1, 1, 3, 1, 2, 1, 1], id="for nobody"),
    ],
)
def test_what_does_not_fit_is_halved_and_at_last_trained_alone(
    start: Callable[..., Server], there: None, monkeypatch: pytest.MonkeyPatch, room: int, begun: list[int]
) -> None:
    whole = start(BATCHED)
    assert "halved_batches" not in whole.round()
    sizes = sizes_of(monkeypatch, room)
    server = start(BATCHED)
    line = server.round()
    assert sizes == begun
    alone = begun.count(1) if room == 100 else 0
    assert line.get("halved_batches", 0) == len(begun) // 2 + alone
    same(server, whole)


def test_what_has_taken_a_step_does_not_begin_anew(
    start: Callable[..., Server], there: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    step = torch.optim.Adam.step

    def without_room(self: torch.optim.Adam, *received: Any) -> Any:
        with room_for(0):
            return step(self, *received)

    monkeypatch.setattr(torch.optim.Adam, "step", without_room)
    with pytest.raises(ShoalError, match=r"client 0: in one batch with clients \[.*\]: OutOfMemoryError: the device"):
        start(BATCHED).round()
