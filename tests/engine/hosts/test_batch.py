"""Clients trained in batches of similar size have their turns as if each had been trained alone."""

from typing import Any

import numpy as np
import pytest
import torch
from support.errors import refused
from support.fixtures import Start
from support.other_device.device import load, room_for
from support.small_cells import cell_of, run_cells
from torch import Tensor

from shoal.algorithms.training.batched.batched_inputs import MOST, NO_MATTER, size_groups
from shoal.algorithms.training.batched.batched_training import BatchedTrainer
from shoal.algorithms.training.batched.row_steps import RowSteps
from shoal.engine.messages.cell import Outcome
from shoal.engine.rounds.server import Server

SGD = {"algorithm.name": "local", "train.optimizer": "sgd", "train.lr": 0.1, "train.momentum": 0.9}
BATCHED = {"engine.trainer": "batched", "engine.cell_size": 6, "train.dropout": 0.3, "train.epochs": 2}


def run(server: Server, ids: list[int], states: dict[int, Any] | None = None, score: bool = True) -> Outcome:
    return run_cells(server.job, [cell_of(ids, states=states or {}, score=frozenset(ids if score else []))])[0]


def test_the_same_as_one_after_another(start: Start) -> None:
    """Momentum is carried on; client 5, who has no training node, stays as it is."""
    ids = [0, 2, 3, 5]
    loop, batched = (start({**SGD, "engine.trainer": path}) for path in ("autograd", "batched"))
    first = run(loop, ids)
    for states in (None, first.states):
        alone, together = run(loop, ids, states), run(batched, ids, states)
        assert together.ids == alone.ids == ids
        torch.testing.assert_close(together.losses, alone.losses, equal_nan=True, rtol=1e-5, atol=1e-6)
        torch.testing.assert_close(together.states, alone.states, rtol=1e-4, atol=1e-6)
        np.testing.assert_equal(together.scores, alone.scores)
    assert "model.opt.momentum_buffer" in first.states[0]
    assert "model.opt.momentum_buffer" not in first.states[5]
    assert together.seconds["train"] > 0


def test_if_the_batch_fails_each_of_it_has_failed(start: Start) -> None:
    keys = {**SGD, "engine.on_client_error": "skip"}
    broken = {2: {"model.opt.momentum_buffer": torch.ones(3)}}
    outcome = run(start({**keys, "engine.trainer": "batched"}), [0, 2, 5], broken, score=False)
    # Client 5 has nothing to train and was not in the batch.
    assert outcome.ids == [5]
    assert outcome.failures.keys() == {0, 2}
    for client, (line, detail) in outcome.failures.items():
        assert line.startswith(f"round 1, client {client}: in one batch with clients [0, 2]: RuntimeError: ")
        assert "The above exception was the direct cause" in detail
    alone = run(start({**keys, "engine.trainer": "autograd"}), [0, 2, 5], broken, score=False)
    assert (alone.ids, alone.failures.keys()) == ([0, 5], {2})


def test_groups_worked_out_by_hand() -> None:
    row = NO_MATTER // 100
    assert size_groups([10, 90, 20], row, 0) == [[1], [0, 2]]
    # Not more bytes than padding may cost: all at once.
    assert size_groups([10, 30, 20], row, 0) == [[0, 1, 2]]
    assert size_groups([60, 120, 59, 119], row, 0) == [[0, 1, 3], [2]]
    assert size_groups([100] * 300, MOST // 20_000, 0) == [list(range(200)), list(range(200, 300))]
    assert size_groups([1, 1, 1], 1, MOST // 2 - 1) == [[0, 1], [2]]
    assert size_groups([9, 9, 9], NO_MATTER, 0, most=18 * NO_MATTER) == [[0, 1], [2]]
    assert size_groups([2, 1], NO_MATTER // 4, 0, most=0) == [[0, 1]]


@pytest.mark.parametrize(
    ("room", "begun"),
    [(2**20, [5]), (24_000, [5, 2, 3]), (100, [5, 2, 1, 1, 3, 1, 2, 1, 1])],
    ids=["for all", "for three", "for nobody"],
)
def test_what_does_not_fit_is_halved_and_at_last_trained_alone(
    start: Start, there: None, monkeypatch: pytest.MonkeyPatch, room: int, begun: list[int]
) -> None:
    """`begun` has how many clients every batch had; client 5 has nothing to train."""
    whole = start(BATCHED)
    assert "halved_batches" not in whole.round()
    fit, sizes = BatchedTrainer.fit, []

    def noted(self: BatchedTrainer, clients: Any, *received: Any) -> Tensor:
        sizes.append(len(clients))
        with room_for(room):
            return fit(self, clients, *received)

    monkeypatch.setattr(BatchedTrainer, "fit", noted)
    server = start(BATCHED)
    line = server.round()
    assert sizes == begun
    assert line.get("halved_batches", 0) == len(begun) // 2 + (begun.count(1) if room == 100 else 0)
    found, expected = ([of.state.server, of.state.clients] for of in (server, whole))
    torch.testing.assert_close(found, expected, rtol=1e-3, atol=1e-5)


def test_what_has_taken_a_step_does_not_begin_anew(start: Start, there: None, monkeypatch: pytest.MonkeyPatch) -> None:
    step = RowSteps.step

    def without_room(self: RowSteps, gradient_BP: Tensor) -> None:
        with room_for(0):
            step(self, gradient_BP)
            torch.zeros(1, device=load())

    monkeypatch.setattr(RowSteps, "step", without_room)
    with refused("round 1, client 0", says="OutOfMemoryError: the device"):
        start(BATCHED).round()
