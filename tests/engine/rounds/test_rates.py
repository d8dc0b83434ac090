"""A run with a schedule trains each round as a run of that rate would."""

from collections.abc import Callable
from typing import Any

import pytest
import torch

from shoal.engine.rounds.server import Server


@pytest.mark.parametrize("path", ["autograd", "analytic", "batched"])
def test_each_round_has_its_rate(start: Callable[..., Server], path: str) -> None:
    keys: dict[str, Any] = {"model.name": "sgc", "engine.trainer": path, "train.optimizer": "sgd", "rounds": 3}
    server = start({**keys, "train.lr": 0.4, "train.schedule": {"name": "ExponentialLR", "gamma": 0.25}})
    state = None
    for rate in (0.4, 0.1, 0.025):
        line = server.round()
        assert line["lr"] == pytest.approx(rate)
        alone = start({**keys, "train.lr": rate}, state=state)
        assert "lr" not in alone.round()
        state = alone.state
        _require_same(server.state.server, state.server)


def test_a_method_knows_the_rate_of_the_round(start: Callable[..., Server]) -> None:
    """SCAFFOLD divides by it."""
    keys: dict[str, Any] = {"algorithm.name": "scaffold", "train.optimizer": "sgd", "rounds": 3, "model.name": "sgc"}
    server = start({**keys, "train.lr": 0.4, "train.schedule": {"name": "ExponentialLR", "gamma": 0.5}})
    state = None
    for rate in (0.4, 0.2, 0.1):
        server.round()
        alone = start({**keys, "train.lr": rate}, state=state)
        alone.round()
        state = alone.state
        _require_same(server.state.server, state.server)
        for client, kept in state.clients.items():
            _require_same(server.state.clients[client], kept)


def test_a_resume_has_the_same_bits(start: Callable[..., Server]) -> None:
    schedule = {"name": "CosineAnnealingWarmRestarts", "T_0": 2}
    keys: dict[str, Any] = {"model.name": "sgc", "train.schedule": schedule, "rounds": 4}
    whole = start(keys)
    for _ in range(4):
        whole.round()
    resumed = start(keys)
    for _ in range(4):
        resumed.round()
        resumed = start(keys, state=resumed.state)
    _require_same(resumed.state.server, whole.state.server)


def _require_same(found: dict[str, torch.Tensor], expected: dict[str, torch.Tensor]) -> None:
    assert found.keys() == expected.keys()
    assert all(torch.equal(t, expected[name]) for name, t in found.items())
