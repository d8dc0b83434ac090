"""Clients trained in one batch have their turns as if each had been trained alone."""

from collections.abc import Callable
from typing import Any

import pytest
import torch

from shoal.algorithms.protocol import Reduce
from shoal.engine.hosts.batch import in_one_line
from shoal.engine.hosts.host import Host
from shoal.engine.messages.cell import Cell, Outcome
from shoal.engine.rounds.server import Server
from shoal.storage.errors import ShoalError

SGD = {"algorithm.name": "local", "train.optimizer": "sgd", "train.lr": 0.1, "train.momentum": 0.9}


def run(server: Server, ids: list[int], states: dict[int, Any] | None = None, score: bool = True) -> Outcome:
    host = Host()
    host.open(server.job)
    scored = frozenset(ids if score else [])
    cell = Cell(1, ids, "train", {}, True, {}, states or {}, {}, scored, 1.0)
    (outcome,) = host.run_cells(server.job.id, [cell], {})
    assert outcome is not None
    return outcome


def test_the_same_as_one_after_another(start: Callable[..., Server]) -> None:
    """Momentum is carried on; client 5, who has no training node, stays as it is."""
    ids = [0, 2, 3, 5]
    loop, stacked = (start({**SGD, "engine.trainer": path}) for path in ("autograd", "batched"))
    first = run(loop, ids)
    for states in (None, first.states):
        alone, together = run(loop, ids, states), run(stacked, ids, states)
        assert together.ids == alone.ids == ids
        torch.testing.assert_close(together.losses, alone.losses, equal_nan=True, rtol=1e-5, atol=1e-6)
        for i in ids:
            assert together.states[i].keys() == alone.states[i].keys()
            for name, t in alone.states[i].items():
                torch.testing.assert_close(together.states[i][name], t, rtol=1e-4, atol=1e-6)
            assert (together.scores[i] == alone.scores[i]).all()
    assert "model.opt.momentum_buffer" in first.states[0]
    assert "model.opt.momentum_buffer" not in first.states[5]
    assert together.seconds["train"] > 0


def test_if_the_batch_fails_each_of_it_has_failed(start: Callable[..., Server]) -> None:
    server = start({**SGD, "engine.trainer": "batched", "engine.on_client_error": "skip"})
    broken = {2: {"model.opt.momentum_buffer": torch.ones(3)}}
    outcome = run(server, [0, 2, 5], broken, score=False)
    # Client 5 has nothing to train and was not in the batch.
    assert outcome.ids == [5]
    assert outcome.failures.keys() == {0, 2}
    for client, (line, detail) in outcome.failures.items():
        assert line.startswith(f"round 1, client {client}: in one batch with clients [0, 2]: RuntimeError: ")
        assert line.endswith("; engine.trainer=autograd trains them one by one")
        assert "The above exception was the direct cause" in detail
    # As it says.
    alone = run(
        start({**SGD, "engine.trainer": "autograd", "engine.on_client_error": "skip"}), [0, 2, 5], broken, score=False
    )
    assert (alone.ids, alone.failures.keys()) == ([0, 5], {2})


def test_uploads_are_of_every_client(start: Callable[..., Server]) -> None:
    server = start({"engine.trainer": "batched"})
    host = Host()
    host.open(server.job)
    cell = Cell(1, [0, 1, 2], "train", {"w": Reduce.STACK}, True, {}, {}, {}, frozenset(), 1.0)
    (outcome,) = host.run_cells(server.job.id, [cell], {"w": server._initial})
    assert outcome is not None
    w = outcome.tensors["w"]
    assert len(w) == 3
    assert not any(torch.equal(w[i], w[j]) for i in range(3) for j in range(i))
    assert not any(torch.equal(row, server._initial) for row in w)


@pytest.mark.parametrize(
    ("error", "line"),
    [
        (ShoalError("x.arrow", "missing", detail="detail"), "x.arrow: missing"),
        (RuntimeError("two\n  lines"), "RuntimeError: two lines"),
        (ValueError(), "ValueError:"),
        (
            torch.OutOfMemoryError("expected"),
            "OutOfMemoryError: expected; a larger resources.gpus_per_host or a smaller engine.cell_size may help",
        ),
    ],
)
def test_an_error_as_one_line(error: Exception, line: str) -> None:
    assert in_one_line(error).strip() == line
