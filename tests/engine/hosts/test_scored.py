"""Scores that are counted for a cell at once, on a second device, beside those of clients one by one."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from support.other_device.device import load
from torch import Tensor

from shoal.algorithms.base import Client, Received
from shoal.algorithms.methods.fedavg import FedAvg
from shoal.engine.hosts import gpu, host
from shoal.engine.rounds.server import Server
from shoal.storage.errors import ShoalError

Run = Callable[..., Server]
EVERY = {"evaluation.every": 1, "engine.cell_size": 4, "train.dropout": 0.3}
# By one pass of a model, by a coupled one, by a method's own `predict`, by rows of some clients at a time.
CASES: dict[str, tuple[dict[str, Any], int]] = {
    "batched": ({"engine.trainer": "batched"}, 2**26),
    "autograd": ({"engine.trainer": "autograd"}, 2**26),
    "two clients a pass": ({"engine.trainer": "batched", "model.name": "mlp"}, 3 * 10 * 5),
    "a client a pass": ({"engine.trainer": "batched", "model.name": "mlp"}, 1),
    "kept models": ({"algorithm.name": "local", "engine.trainer": "batched"}, 2**26),
    "coupled": ({"model.name": "gcn"}, 2**26),
    "coupled, some at a time": ({"model.name": "sage", "engine.trainer": "batched"}, 2**11),
    "coupled, one at a time": ({"model.name": "gin", "engine.trainer": "batched"}, 1),
    "coupled, with attention": ({"model.name": "gat"}, 2**26),
    "own predict": ({"algorithm.name": "fedproto"}, 2**26),
}


@dataclass(frozen=True)
class Spoils(FedAvg):
    """The scores of one client are NaN in a row of one part."""

    client: int = 2
    part: str = "test"

    def predict(self, client: Client, received: Received, part: str) -> Tensor:
        scores = super().predict(client, received, part).clone()
        if client.info.client == self.client and part == self.part:
            scores[1, 0] = float("nan")
        return scores


@pytest.mark.exhaustive(2)
@pytest.mark.parametrize("case", CASES)
def test_counts_are_those_of_the_processor(run: Run, monkeypatch: pytest.MonkeyPatch, case: str) -> None:
    """Client 4 has no test node, client 5 no training node."""
    keys, numbers = CASES[case]
    here = run({**EVERY, **keys}, rounds=2)
    other = load()
    with monkeypatch.context() as patch, torch.autograd.set_multithreading_enabled(False):
        patch.setattr(host, "take_device", lambda name, share, precision: other)
        patch.setattr(gpu, "NUMBERS_OF_A_PASS", numbers)
        patch.setattr("shoal.algorithms.training.batched.batched_inputs.NO_MATTER", 0)
        away = run({**EVERY, **keys}, rounds=2)
    assert away.state.scores.keys() == here.state.scores.keys()
    for scope, counts in here.state.scores.items():
        assert away.state.scores[scope].keys() == counts.keys()
        for client, expected in counts.items():
            assert expected.sum()
            assert expected.shape == (2, 3, 4)
            np.testing.assert_array_equal(away.state.scores[scope][client], expected, f"{scope} {client}")


@pytest.mark.usefixtures("there")
@pytest.mark.parametrize("part", ["val", "test"])
def test_scores_that_are_not_finite_name_client_and_part(run: Run, part: str) -> None:
    keys = {**EVERY, "algorithm.name": f"{__file__}:Spoils", "algorithm.part": part, "engine.trainer": "autograd"}
    with pytest.raises(ShoalError, match=f"round 1, client 2: predictions of '{part}' are NaN or infinite"):
        run(keys, rounds=1)
    server = run({**keys, "engine.on_client_error": "skip"}, rounds=1)
    assert server.state.scores["global"].keys() == {0, 1, 3, 4, 5}
