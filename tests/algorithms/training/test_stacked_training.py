"""Stacked training beside the loop: the same numbers to rounding, for clients of different sizes."""

import copy
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from algorithms.backbones import build
from algorithms.backbones.adapted import Adapted
from algorithms.backbones.output import Output
from algorithms.client import Client
from algorithms.flat_model import FlatModel
from algorithms.protocol import Tree
from algorithms.training.local_training import Trainer
from algorithms.training.options import TrainOptions
from algorithms.training.stacked_training import StackedTrainer
from engine.rounds.server import Server
from engine.wire.randomness import key
from storage.errors import ShoalError
from storage.view import View

OPTIMIZERS: dict[str, dict[str, Any]] = {
    "adam": {"optimizer": "adam", "lr": 0.02, "weight_decay": 0.01},
    "sgd": {"optimizer": "sgd", "lr": 0.1},
    "momentum": {"optimizer": "sgd", "lr": 0.1, "momentum": 0.9},
}


def cross_entropy(out: Output, y: Tensor, w: Tensor, down: Tree) -> Tensor:
    return F.cross_entropy(out.logits_NC, y)


def module(name: str, **options: Any) -> nn.Module:
    torch.manual_seed(1)
    return build(name, 4, 3, 0, 0.5, options)


MODULES: dict[str, Callable[[], nn.Module]] = {
    "sgc": lambda: module("sgc"),
    "mlp": lambda: module("mlp", hidden=8, layers=3),
    "adapted": lambda: Adapted(module("mlp", hidden=6), 3, 3, 0.4),
    **{
        f"gamlp {kind}": lambda kind=kind: module("gamlp", hidden=8, attention=kind)  # type: ignore[misc]
        for kind in ("simple", "gate", "ori_ref", "jk", "recursive")
    },
}


@pytest.fixture
def views(make_view: Callable[..., View]) -> list[View]:
    rng = np.random.default_rng(0)
    sizes = {12: 7, 20: 1, 9: 9}
    return [
        make_view(n, [], rng.integers(3, size=n), range(train), 3, rng.standard_normal((n, 4)).astype(np.float32))
        for n, train in sizes.items()
    ]


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("name", MODULES)
def test_equals_the_loop_over_two_visits(
    name: str, optimizer: str, views: list[View], make_client: Callable[..., Client]
) -> None:
    options = TrainOptions(epochs=3, **{"weight_decay": 0.0, **OPTIMIZERS[optimizer]})
    made = MODULES[name]()
    alone = [make_client(view, copy.deepcopy(made)) for view in views]
    model = FlatModel(copy.deepcopy(made))
    stacked = [
        Client(client.info, view, model, {}, {}, lambda p, b=b: key(b, 0, p))
        for b, (client, view) in enumerate(zip(alone, views))
    ]
    for b, client in enumerate(alone):
        client.random = lambda p, b=b: key(b, 0, p)
    w_BP = torch.stack([client.w.clone() for client in alone])
    for _ in range(2):
        losses = [Trainer(client.model, options, cross_entropy).fit(client, {}) for client in alone]
        assert StackedTrainer(model, options).fit(stacked, w_BP) == pytest.approx(losses, rel=1e-4)
        for client, twin, w in zip(alone, stacked, w_BP):
            torch.testing.assert_close(w, client.w, rtol=1e-4, atol=1e-5)
            assert client.state.keys() == twin.state.keys()
            for entry, tensor in client.state.items():
                torch.testing.assert_close(twin.state[entry], tensor, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("method", ["fedavg", "fedgta", "local"])
def test_whole_runs(run: Callable[..., Server], method: str) -> None:
    """Clients that come and go, one without training rows among them, in cells of four."""
    keys = {"algorithm.name": method, "train.dropout": 0.3, "participation.ratio": 0.7, "engine.cell_size": 4}
    loop, stacked = run(keys), run({**keys, "engine.path": "stacked"})
    assert loop.state.server.keys() == stacked.state.server.keys()
    for name, tensor in loop.state.server.items():
        torch.testing.assert_close(stacked.state.server[name], tensor, rtol=1e-3, atol=1e-4)
    for i, state in loop.state.clients.items():
        for name, tensor in state.items():
            torch.testing.assert_close(stacked.state.clients[i][name], tensor, rtol=1e-3, atol=1e-4)


def test_a_client_that_fails_is_named(start: Callable[..., Server], monkeypatch: pytest.MonkeyPatch) -> None:
    begin = Client.load

    def load(client: Client, w: Tensor) -> None:
        if client.info.client == 2:
            raise RuntimeError("no luck")
        begin(client, w)

    monkeypatch.setattr(Client, "load", load)
    with pytest.raises(ShoalError, match="round 1, client 2: RuntimeError: no luck"):
        start({"engine.path": "stacked"}).round()
    line = start({"engine.path": "stacked", "engine.on_client_error": "skip"}).round()
    assert line["cohort"] == [0, 1, 3, 4, 5]


def test_a_batch_that_fails_is_the_failure_of_all_in_it(
    start: Callable[..., Server], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fit(self: StackedTrainer, clients: Any, w_BP: Tensor) -> list[float]:
        raise torch.OutOfMemoryError("no memory")

    monkeypatch.setattr(StackedTrainer, "fit", fit)
    line = (
        r"^round 1, client 0: in one batch with clients \[.*\]: OutOfMemoryError: no memory; .*smaller "
        r"engine.cell_size.*; engine.path=loop trains them one by one$"
    )
    with pytest.raises(ShoalError, match=line):
        start({"engine.path": "stacked", "engine.cell_size": 3}).round()
