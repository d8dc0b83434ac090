"""The trainer against a plain torch loop over `module.parameters()` with the same random numbers."""

import copy
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from algorithms.backbones import Output, build
from algorithms.client import Client
from algorithms.protocol import Tree
from algorithms.training.local_training import Trainer
from algorithms.training.options import TrainOptions
from engine.wire.randomness import key
from storage.view import View

MakeClient = Callable[..., Client]
ADAM = {"lr": 0.02, "weight_decay": 0.01}
OPTIMIZERS: dict[str, tuple[dict[str, Any], Callable[..., torch.optim.Optimizer]]] = {
    "adam": (ADAM, lambda p: torch.optim.Adam(p, **ADAM)),
    "sgd": (ADAM, lambda p: torch.optim.SGD(p, **ADAM)),
    "momentum": ({**ADAM, "momentum": 0.9}, lambda p: torch.optim.SGD(p, **ADAM, momentum=0.9)),
}


def cross_entropy(out: Output, y: Tensor, w: Tensor, down: Tree) -> Tensor:
    return F.cross_entropy(out.logits_NC, y)


@pytest.fixture
def view(make_view: Callable[..., View]) -> View:
    rng = np.random.default_rng(0)
    x = rng.standard_normal((20, 4)).astype(np.float32)
    return make_view(20, [(0, 1)], rng.integers(3, size=20), range(0, 20, 2), 3, x)


@pytest.fixture
def module() -> nn.Module:
    torch.manual_seed(1)
    return build("mlp", 4, 3, 0, 0.5, {"hidden": 16, "layers": 3})


def options(name: str, **more: Any) -> TrainOptions:
    return TrainOptions(**{"optimizer": "sgd" if name == "momentum" else name, **OPTIMIZERS[name][0], **more})


def plain_epochs(
    module: nn.Module, optimizer: torch.optim.Optimizer, view: View, epochs: int, round_number: int, batch: int = 10
) -> list[float]:
    """Losses of the steps of one visit; the stream is seeded as a host seeds it."""
    torch.manual_seed(key(0, round_number, 0, "train"))
    module.train()
    losses = []
    for _ in range(epochs):
        order = torch.randperm(10) if batch < 10 else torch.arange(10)
        for rows in view.train[order].split(batch):
            optimizer.zero_grad()
            loss = F.cross_entropy(module([view.x[rows]]).logits_NC, view.label[rows])
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
    return losses


def flat(module: nn.Module) -> Tensor:
    return nn.utils.parameters_to_vector(module.parameters()).detach()


@pytest.mark.parametrize("batch_size", [None, 10, 4, 3])
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_equals_a_plain_loop(
    name: str, batch_size: int | None, view: View, module: nn.Module, make_client: MakeClient
) -> None:
    twin = copy.deepcopy(module)
    client = make_client(view, module)
    client.logits()
    loss = Trainer(client.model, options(name, epochs=5, batch_size=batch_size), cross_entropy).fit(client, {})
    losses = plain_epochs(twin, OPTIMIZERS[name][1](twin.parameters()), view, 5, 1, batch_size or 10)
    torch.testing.assert_close(client.w, flat(twin), rtol=1e-5, atol=1e-6)
    sizes = [len(part) for part in torch.arange(10).split(batch_size or 10)]
    assert loss == pytest.approx(np.average(losses[-len(sizes) :], weights=sizes), rel=1e-5)


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_kept_moments_make_three_visits_one_long_run(
    name: str, view: View, module: nn.Module, make_client: MakeClient
) -> None:
    twin = copy.deepcopy(module)
    optimizer = OPTIMIZERS[name][1](twin.parameters())
    state: Tree = {}
    client = make_client(view, module)
    trainer = Trainer(client.model, options(name, epochs=2), cross_entropy)
    other = make_client(view, copy.deepcopy(module))
    for number in (1, 2, 3):
        visit = Client(client.info, view, client.model, state, {}, lambda p, n=number: key(0, n, 0, p))
        trainer.fit(visit, {})
        state = {entry: t.clone() for entry, t in visit.state.items()}
        w = visit.w.clone()
        # Another client trains on the same host in between.
        guest = Client(other.info, view, client.model, {}, {}, lambda p: key(1, p))
        guest.load(torch.zeros_like(w))
        trainer.fit(guest, {})
        visit.load(w)
        plain_epochs(twin, optimizer, view, 2, number)
    torch.testing.assert_close(client.w, flat(twin), rtol=1e-5, atol=1e-6)
    names = {"adam": {"opt.step", "opt.exp_avg", "opt.exp_avg_sq"}, "sgd": set(), "momentum": {"opt.momentum_buffer"}}
    assert set(state) == names[name]


@pytest.mark.parametrize("name", ["adam", "momentum"])
def test_reset_moments_start_a_fresh_optimizer_every_visit(
    name: str, view: View, module: nn.Module, make_client: MakeClient
) -> None:
    twin = copy.deepcopy(module)
    client = make_client(view, module)
    trainer = Trainer(client.model, options(name, epochs=2, opt_state="reset"), cross_entropy)
    for number in (1, 2, 3):
        client.random = lambda p, n=number: key(0, n, 0, p)
        trainer.fit(client, {})
        plain_epochs(twin, OPTIMIZERS[name][1](twin.parameters()), view, 2, number)
    assert client.state == {}
    torch.testing.assert_close(client.w, flat(twin), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("batch_size", [None, 3])
def test_every_epoch_sees_every_training_row_once(
    batch_size: int | None, view: View, module: nn.Module, make_client: MakeClient
) -> None:
    seen: list[Tensor] = []

    class Recorder(nn.Module):
        inputs = (0,)

        def __init__(self) -> None:
            super().__init__()
            self.inner = module

        def forward(self, hops: list[Tensor]) -> Output:
            seen.append(hops[0])
            return self.inner(hops)

    client = make_client(view, Recorder())
    Trainer(client.model, TrainOptions(epochs=4, batch_size=batch_size), cross_entropy).fit(client, {})
    rows = torch.cat(seen).view(4, 10, 4)
    expected = sorted(view.x[view.train].tolist())
    assert all(sorted(epoch.tolist()) == expected for epoch in rows)
    assert (batch_size is None) == all(torch.equal(epoch, rows[0]) for epoch in rows)


def test_the_loss_may_read_parameters_and_download(view: View, module: nn.Module, make_client: MakeClient) -> None:
    # A proximal term alone, with SGD: w moves by lr * mu * (anchor - w).
    client = make_client(view, module)
    start, anchor = client.w.clone(), torch.randn(len(client.w))

    def proximal(out: Output, y: Tensor, w: Tensor, down: Tree) -> Tensor:
        return 0.5 * 3.0 * (w - down["anchor"]).square().sum() + 0.0 * out.logits_NC.sum()

    trainer = Trainer(client.model, TrainOptions(1, "sgd", 0.1, 0.0), proximal)
    trainer.fit(client, {"anchor": anchor})
    torch.testing.assert_close(client.w, start + 0.1 * 3.0 * (anchor - start))


def test_a_client_without_training_rows_stays_as_it_is(
    make_view: Callable[..., View], module: nn.Module, make_client: MakeClient
) -> None:
    client = make_client(make_view(3, [], [0, 1, 2], [], 3, np.ones((3, 4), dtype=np.float32)), module)
    before = client.w.clone()
    loss = Trainer(client.model, TrainOptions(), cross_entropy).fit(client, {})
    assert np.isnan(loss)
    assert torch.equal(client.w, before)
    assert client.state == {}


def test_a_regularizer_is_made_once_a_visit_and_added_in_every_step(
    make_client: MakeClient, view: View, module: nn.Module
) -> None:
    made: list[Client] = []

    def pull(client: Client, down: Tree) -> Callable[[], Tensor]:
        made.append(client)
        return lambda: down["strength"] * client.model.w.square().sum()

    down = {"strength": torch.tensor(0.3)}
    left, right = (make_client(view, copy.deepcopy(module)) for _ in range(2))
    settings = options("sgd", epochs=2, batch_size=3)
    Trainer(left.model, settings, cross_entropy, pull).fit(left, down)
    inside = Trainer(
        right.model, settings, lambda out, y, w, down: cross_entropy(out, y, w, down) + 0.3 * w.square().sum()
    )
    inside.fit(right, {})
    torch.testing.assert_close(left.w, right.w)
    assert made == [left]


def test_no_term_changes_no_bit(make_client: MakeClient, view: View, module: nn.Module) -> None:
    left, right = (make_client(view, copy.deepcopy(module)) for _ in range(2))
    Trainer(left.model, options("adam"), cross_entropy, lambda client, down: None).fit(left, {})
    Trainer(right.model, options("adam"), cross_entropy).fit(right, {})
    assert torch.equal(left.w, right.w)
