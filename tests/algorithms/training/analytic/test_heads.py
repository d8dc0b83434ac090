"""Gradients in closed form beside autograd's, step for step and run for run."""

import copy
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from support.sparse_rows import sparse
from torch import Tensor

from shoal.algorithms.base import Algorithm
from shoal.algorithms.client import Client, ClientInfo, ClientModel, FlatModel
from shoal.algorithms.models.build import build
from shoal.algorithms.models.layers.output import Output
from shoal.algorithms.protocol import MODEL, Tree
from shoal.algorithms.rng import key
from shoal.algorithms.train_options import TrainOptions
from shoal.algorithms.training.analytic.heads import HeadGradients
from shoal.algorithms.training.local_training import LocalTrainer
from shoal.engine.rounds.server import Server
from shoal.storage.errors import ShoalError
from shoal.storage.store.view import View

FEATURES, HIDDEN = 9, 6
OPTIMIZERS: dict[str, dict[str, Any]] = {
    "adam": {"optimizer": "adam", "lr": 0.02, "weight_decay": 0.01},
    "sgd": {"optimizer": "sgd", "lr": 0.1, "weight_decay": 0.01},
    "momentum": {"optimizer": "sgd", "lr": 0.1, "weight_decay": 0.01, "momentum": 0.9},
}


def model_of(layers: int, dropout: float, classes: int = 4, name: str = "mlp") -> FlatModel:
    torch.manual_seed(layers)
    return FlatModel(build(name, FEATURES, classes, 0, dropout, {"hidden": HIDDEN, "layers": layers}))


def batch_of(rows: int, classes: int) -> tuple[Tensor, Tensor]:
    """Rows of which two thirds are zero, and labels."""
    rng = np.random.default_rng(rows)
    x = rng.standard_normal((rows, FEATURES)) * (rng.random((rows, FEATURES)) < 1 / 3)
    return torch.from_numpy(x.astype(np.float32)), torch.from_numpy(rng.integers(classes, size=rows))


def by_autograd(model: FlatModel, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """Loss and gradient `[P]`, of a copy of the model."""
    twin = FlatModel(copy.deepcopy(model.module).train())
    torch.manual_seed(5)
    loss = F.cross_entropy(twin([x]).logits_NC, y)
    loss.backward()
    assert twin.w.grad is not None
    return loss.detach(), twin.w.grad


def gradient(model: FlatModel) -> Tensor:
    """The parameters' gradients one behind the other, wherever they lie."""
    parts = [p.grad for p in model.module.parameters()]
    return torch.cat([part.reshape(-1) for part in parts if part is not None])


@pytest.mark.exhaustive
@pytest.mark.parametrize("as_sparse", [False, True])
@pytest.mark.parametrize("dropout", [0.0, 0.5])
@pytest.mark.parametrize("layers", [1, 2, 3])
@pytest.mark.parametrize("classes", [1, 4, 172])
def test_gradients_are_those_of_autograd(layers: int, dropout: float, classes: int, as_sparse: bool) -> None:
    model = model_of(layers, dropout, classes)
    closed = HeadGradients(model)
    # Smaller batches use a part of the memory of larger ones, and nothing of what these left in it.
    for rows in (40, 1, 7, 60):
        x, y = batch_of(rows, classes)
        assert model.w.grad is not None
        model.w.grad.fill_(float("nan"))
        torch.manual_seed(5)
        loss = closed.gradient([sparse(x) if as_sparse else x], y)
        expected_loss, expected = by_autograd(model, x, y)
        torch.testing.assert_close(loss, expected_loss, rtol=1e-5, atol=1e-6)
        torch.testing.assert_close(model.w.grad, expected, rtol=1e-4, atol=1e-6)
        # The masks took as many random numbers as dropout does.
        after = torch.rand(1)
        by_autograd(model, x, y)
        assert torch.equal(after, torch.rand(1))


@pytest.mark.parametrize("as_sparse", [False, True])
def test_a_first_layer_whose_weight_lies_column_by_column(as_sparse: bool) -> None:
    model = model_of(2, 0.5)
    x, y = batch_of(30, 4)
    _, expected = by_autograd(model, x, y)
    weight = model.module.head.linears[0].weight
    weight.data = weight.detach().t().contiguous().t()
    weight.grad = torch.empty(FEATURES, HIDDEN).t()
    torch.manual_seed(5)
    HeadGradients(model).gradient([sparse(x) if as_sparse else x], y)
    torch.testing.assert_close(gradient(model), expected, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("scale", [1e-30, 1.0, 300.0, 1e30])
def test_losses_of_logits_far_apart_are_those_of_cross_entropy(scale: float) -> None:
    """The probability of a label may be too small for a float, its logarithm is not."""
    model = model_of(1, 0.0)
    x, y = batch_of(20, 4)
    model.load(model.w.detach() * scale)
    expected_loss, expected = by_autograd(model, x, y)
    torch.testing.assert_close(HeadGradients(model).gradient([x], y), expected_loss, rtol=1e-5, atol=1e-6)
    assert model.w.grad is not None
    torch.testing.assert_close(model.w.grad, expected, rtol=1e-4, atol=1e-5)


def test_gradient_of_nan_parameters_gives_nan_loss() -> None:
    model = model_of(2, 0.0)
    x, y = batch_of(20, 4)
    model.load(torch.full_like(model.w, float("nan")))
    assert torch.isnan(HeadGradients(model).gradient([x], y))


@pytest.fixture
def views(make_view: Callable[..., View]) -> list[View]:
    rng = np.random.default_rng(0)
    sizes = {12: 7, 20: 1, 40: 29}
    return [
        make_view(n, [], rng.integers(3, size=n), range(train), 3, rng.standard_normal((n, FEATURES), np.float32))
        for n, train in sizes.items()
    ]


def trained(
    views: Sequence[View], model: FlatModel, options: TrainOptions, analytic: bool
) -> tuple[list[float], list[Tree]]:
    """Losses and states of clients that visit a host in turn, twice each."""
    start = model.w.detach().clone()
    trainer = LocalTrainer({MODEL: model}, options, Algorithm(), HeadGradients(model) if analytic else None)
    states: list[Tree] = [{"w": start} for _ in views]
    losses = []
    for number in (1, 2):
        for view, state in zip(views, states):
            random = partial(key, 0, number, len(view.train))
            info = ClientInfo(0, view.nodes, len(view.train), view.classes)
            client = Client(info, view, {MODEL: ClientModel(model, view, random)}, state, {}, random)
            client.model.load(state["w"])
            losses.append(trainer.fit(client, {}))
            state["w"] = client.model.w.clone()
    return losses, states


@pytest.mark.parametrize("batch_size", [None, 10])
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("layers", [1, 2])
def test_visits_are_those_of_the_loop(layers: int, optimizer: str, batch_size: int | None, views: list[View]) -> None:
    options = TrainOptions(epochs=3, batch_size=batch_size, **OPTIMIZERS[optimizer])
    losses, states = trained(views, model_of(layers, 0.5, 3), options, analytic=False)
    found, found_states = trained(views, model_of(layers, 0.5, 3), options, analytic=True)
    assert found == pytest.approx(losses, rel=1e-4)
    assert len(set(losses)) == len(losses)
    for state, expected in zip(found_states, states):
        assert state.keys() == expected.keys()
        for name, tensor in expected.items():
            torch.testing.assert_close(state[name], tensor, rtol=1e-4, atol=1e-5)


def test_fit_with_loss_uses_autograd(views: list[View], make_client: Callable[..., Client]) -> None:
    def squares(out: Output, y: Tensor, w: Tensor, received: Any) -> Tensor:
        return out.logits_NC.square().mean()

    ends = []
    for analytic in (False, True):
        client = make_client(views[0], model_of(2, 0.5, 3).module)
        model = client.model.flat
        form = HeadGradients(model) if analytic else None
        LocalTrainer({MODEL: model}, TrainOptions(), Algorithm(), form).fit(client, {}, loss=squares)
        ends.append(client.model.w)
    assert torch.equal(*ends)


def test_a_client_whose_loss_is_not_finite_is_named(start: Callable[..., Server]) -> None:
    keys = {"model": {"name": "sgc"}, "engine.trainer": "analytic", "train.optimizer": "sgd", "train.lr": 1e38}
    with pytest.raises(
        ShoalError, match=r"^round 1, client 0: the training loss is (NaN|infinite); a smaller train.lr"
    ):
        start(keys).round()


RUNS: dict[str, dict[str, Any]] = {
    "sgc": {"model": {"name": "sgc"}},
    "mlp": {"model": {"name": "mlp", "hidden": 8}, "train.dropout": 0.3},
    "sgd, batches": {"model": {"name": "mlp", "hidden": 8}, "train.optimizer": "sgd", "train.batch_size": 4},
    "local": {"model": {"name": "sgc", "layers": 2, "hidden": 8}, "algorithm.name": "local"},
    "fedgta": {"model": {"name": "mlp", "hidden": 8}, "algorithm.name": "fedgta"},
    "two models": {"model": [{"name": "sgc"}, {"name": "gcn", "hidden": 5}], "algorithm.name": "local"},
}


@pytest.mark.exhaustive(3)
@pytest.mark.parametrize("name", RUNS)
def test_whole_runs(run: Callable[..., Server], name: str) -> None:
    """Clients that come and go, one without training rows among them; `auto` is closed form on a processor."""
    keys = {"participation.ratio": 0.7, **RUNS[name]}
    loop, closed = run({**keys, "engine.trainer": "autograd"}), run({**keys, "engine.trainer": "auto"})
    assert loop.state.clients.keys() == closed.state.clients.keys()
    pairs = [(loop.state.server, closed.state.server)]
    pairs += [(state, closed.state.clients[i]) for i, state in loop.state.clients.items()]
    differences = []
    for expected, found in pairs:
        assert expected.keys() == found.keys()
        for entry, tensor in expected.items():
            torch.testing.assert_close(found[entry], tensor, rtol=1e-4, atol=1e-5)
            differences.append(not torch.equal(found[entry], tensor))
    # Rounding tells which path was taken.
    assert any(differences)
