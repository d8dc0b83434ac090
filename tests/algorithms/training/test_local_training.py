"""The trainer against plain torch over `module.parameters()` with the same random numbers."""

import copy
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from support.fixtures import Make, MakeClient, MakeView, Start
from support.plain_fedavg import cross_entropy, flat
from support.plain_training import plain_steps
from support.visits import trainer_of, visited
from torch import Tensor, nn

from shoal.algorithms.base import Algorithm
from shoal.algorithms.client import Client
from shoal.algorithms.models.build import build
from shoal.algorithms.models.inputs.neighbourhood import all_nodes, sample_neighbourhood
from shoal.algorithms.models.layers.head import Output
from shoal.algorithms.protocol import MODEL, Tree
from shoal.algorithms.rng import key
from shoal.algorithms.train_options import TrainOptions
from shoal.algorithms.training.local_training import flat_step, make_optimizer, without_denormals
from shoal.storage.shards.view import View

ADAM = {"lr": 0.02, "weight_decay": 0.01}
OPTIMIZERS: dict[str, tuple[dict[str, Any], Callable[..., torch.optim.Optimizer]]] = {
    "adam": (ADAM, lambda p: torch.optim.Adam(p, **ADAM)),
    "sgd": (ADAM, lambda p: torch.optim.SGD(p, **ADAM)),
    "momentum": ({**ADAM, "momentum": 0.9}, lambda p: torch.optim.SGD(p, **ADAM, momentum=0.9)),
}


@pytest.fixture
def module() -> nn.Module:
    torch.manual_seed(1)
    return build("mlp", 4, 3, 0, 0.5, {"hidden": 16, "layers": 3})


def on_rows(module: nn.Module, view: View) -> Callable[[Tensor], Tensor]:
    """Logits of rows by a decoupled model of features, in training."""
    module.train()
    return lambda rows: module([view.x[rows]]).logits_NC


def options(name: str, **more: Any) -> TrainOptions:
    return TrainOptions(**{"optimizer": "sgd" if name == "momentum" else name, **OPTIMIZERS[name][0], **more})


@pytest.mark.parametrize("batch_size", [None, 10, 4, 3])
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_plain_loop(name: str, batch_size: int | None, view: View, module: nn.Module, make_client: MakeClient) -> None:
    twin = copy.deepcopy(module)
    client = make_client(view, module)
    client.model.logits()
    loss = trainer_of(client, options(name, epochs=5, batch_size=batch_size)).fit(client, {})
    optimizer = OPTIMIZERS[name][1](twin.parameters())
    losses = plain_steps(on_rows(twin, view), optimizer, view, key(0, 1, 0, "train"), 5, batch_size)
    torch.testing.assert_close(client.model.w, flat(twin), rtol=1e-5, atol=1e-6)
    sizes = [len(part) for part in torch.arange(10).split(batch_size or 10)]
    assert loss == pytest.approx(np.average(losses[-len(sizes) :], weights=sizes), rel=1e-5)


@pytest.mark.exhaustive(3)
@pytest.mark.parametrize("name", ["gcn", "sage", "gat", "gin", "gcnii", "transformer", "disengcn"])
@pytest.mark.parametrize("fanouts", [None, [1, 2]])
@pytest.mark.parametrize("batch_size", [None, 4])
def test_coupled_models_equal_a_plain_loop(
    name: str, fanouts: list[int] | None, batch_size: int | None, view: View, make_client: MakeClient
) -> None:
    """On all neighbours, or on some drawn anew for every step, the last layer's fanout first."""
    torch.manual_seed(1)
    made = build(name, 4, 3, 0, 0.5, {"hidden": 8, "fanouts": fanouts})
    client = make_client(view, made)
    twin: Any = copy.deepcopy(made).train()
    rng = np.random.default_rng(key(0, 1, 0, "neighbours"))

    def logits_of(rows: Tensor) -> Tensor:
        if fanouts is None:
            around = sample_neighbourhood(view, twin.operator, [-1, -1], view.train, rng)
            return twin(around._replace(rows=torch.searchsorted(view.train, rows))).logits_NC
        return twin(sample_neighbourhood(view, twin.operator, fanouts, rows, rng)).logits_NC

    trainer_of(client, options("adam", epochs=3, batch_size=batch_size)).fit(client, {})
    plain_steps(logits_of, torch.optim.Adam(twin.parameters(), **ADAM), view, key(0, 1, 0, "train"), 3, batch_size)
    torch.testing.assert_close(client.model.w, flat(twin), rtol=1e-4, atol=1e-5)
    everything = twin.eval()(all_nodes(view, twin.operator, 2)).logits_NC
    torch.testing.assert_close(client.model.logits_of("test"), everything[view.test], rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("fanouts", [[3, 3], None])
def test_any_cells_give_the_same_numbers(run: Start, fanouts: list[int] | None) -> None:
    keys = {"model.name": "gat", "model.fanouts": fanouts, "train.batch_size": 4, "algorithm.name": "local"}
    one, other = (run({**keys, "engine.cell_size": size}, rounds=2) for size in (1, 4))
    for client, state in one.state.clients.items():
        assert all(torch.equal(t, other.state.clients[client][name]) for name, t in state.items())


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_kept_moments_make_visits_one_run(name: str, view: View, module: nn.Module, make_client: MakeClient) -> None:
    twin = copy.deepcopy(module)
    optimizer = OPTIMIZERS[name][1](twin.parameters())
    client = make_client(view, module)
    fresh, trainer = visited(client, 1, seed=1), trainer_of(client, options(name, epochs=2))
    for number in (1, 2, 3):
        client = visited(client, number)
        trainer.fit(client, {})
        w = client.model.w.clone()
        # Another client trains on the same host in between.
        guest = visited(fresh, 1, seed=1)
        guest.model.load(torch.zeros_like(w))
        trainer.fit(guest, {})
        client.model.load(w)
        plain_steps(on_rows(twin, view), optimizer, view, key(0, number, 0, "train"), 2)
    torch.testing.assert_close(client.model.w, flat(twin), rtol=1e-5, atol=1e-6)
    names = {"adam": {"step", "exp_avg", "exp_avg_sq"}, "sgd": set(), "momentum": {"momentum_buffer"}}
    assert set(client.state) == {f"model.opt.{moment}" for moment in names[name]}


@pytest.mark.parametrize("name", ["adam", "momentum"])
def test_reset_moments_start_afresh(name: str, view: View, module: nn.Module, make_client: MakeClient) -> None:
    twin = copy.deepcopy(module)
    client = make_client(view, module)
    trainer = trainer_of(client, options(name, epochs=2, opt_state="reset"))
    for number in (1, 2, 3):
        client = visited(client, number)
        trainer.fit(client, {})
        optimizer = OPTIMIZERS[name][1](twin.parameters())
        plain_steps(on_rows(twin, view), optimizer, view, key(0, number, 0, "train"), 2)
    assert client.state == {}
    torch.testing.assert_close(client.model.w, flat(twin), rtol=1e-5, atol=1e-6)


def test_a_client_without_training_rows_stays(make_view: MakeView, module: nn.Module, make_client: MakeClient) -> None:
    client = make_client(make_view(3, [], [0, 1, 2], [], 3, np.ones((3, 4), dtype=np.float32)), module)
    before = client.model.w.clone()
    loss = trainer_of(client, TrainOptions()).fit(client, {})
    assert np.isnan(loss)
    assert torch.equal(client.model.w, before)
    assert client.state == {}


@pytest.mark.parametrize("trained", [MODEL, "copilot"])
def test_a_model_is_trained_alone(trained: str, make_pair: Make) -> None:
    """The other one, its moments and the logits that are known of it stay as they are."""
    pair = make_pair("mlp")
    (other,) = {MODEL, "copilot"} - {trained}
    trainer = trainer_of(pair, options("adam", epochs=2))
    trainer.fit(pair, {}, other)
    pair.models[other].module.eval()
    before, kept, logits = pair.models[other].w.clone(), dict(pair.state), pair.models[other].logits()
    own = pair.models[trained].w.clone()
    values = {name: t.clone() for name, t in kept.items()}
    trainer.fit(pair, {}, trained)
    assert torch.equal(pair.models[other].w, before)
    assert pair.models[other].logits() is logits
    assert not pair.models[other].module.training
    assert not torch.equal(pair.models[trained].w, own)
    assert set(kept) == {f"{other}.opt.{moment}" for moment in ("step", "exp_avg", "exp_avg_sq")}
    assert set(pair.state) - set(kept) == {f"{trained}.opt.{moment}" for moment in ("step", "exp_avg", "exp_avg_sq")}
    assert all(torch.equal(pair.state[name], t) for name, t in values.items())


def test_two_models_in_turns_are_two_plain_runs_with_streams_of_their_own(make_pair: Make) -> None:
    pair = make_pair("mlp")
    twins = {name: copy.deepcopy(model.module).train() for name, model in pair.models.items()}
    optimizers = {name: torch.optim.Adam(twin.parameters(), **ADAM) for name, twin in twins.items()}
    trainer = trainer_of(pair, options("adam", epochs=2, batch_size=4))
    view = pair.data
    for _ in range(2):
        for name, stream in ((MODEL, "train"), ("copilot", "copilot/train")):
            loss = trainer.fit(pair, {}, name)
            seed = key(0, 1, 0, stream)
            losses = plain_steps(on_rows(twins[name], view), optimizers[name], view, seed, 2, 4)
            assert loss == pytest.approx(np.average(losses[-3:], weights=[4, 4, 2]), rel=1e-5)
            torch.testing.assert_close(pair.models[name].w, flat(twins[name]), rtol=1e-5, atol=1e-6)
    assert pair.state["model.opt.step"].item() == pair.state["copilot.opt.step"].item() == 2 * 2 * 3


def test_one_model_s_name_may_begin_with_another_s(view: View, module: nn.Module, make_client: MakeClient) -> None:
    """A guest has moments of `model2` only: `model` starts without any."""
    client, fresh = make_client(view, copy.deepcopy(module)), make_client(view, copy.deepcopy(module))
    moments = {"exp_avg": torch.ones(3), "exp_avg_sq": torch.ones(3), "step": torch.tensor(5.0)}
    client.state.update({f"model2.opt.{name}": t for name, t in moments.items()})
    for c in (client, fresh):
        trainer_of(c, options("adam")).fit(c, {})
    assert torch.equal(client.model.w, fresh.model.w)
    assert all(torch.equal(client.state[f"model2.opt.{name}"], t) for name, t in moments.items())


def test_fit_with_loss_replaces_the_method_s_loss(view: View, module: nn.Module, make_client: MakeClient) -> None:
    class Loud(Algorithm):
        def loss(self, out: Output, y: Tensor, w: Tensor, received: Tree) -> Tensor:
            raise AssertionError("not asked for")

    settings = options("sgd", epochs=2, batch_size=3)
    client, inside = (make_client(view, copy.deepcopy(module)) for _ in range(2))
    found = trainer_of(client, settings, Loud()).fit(
        client, {}, loss=cross_entropy, term=lambda: 0.3 * client.model.flat.w.square().sum()
    )

    def both(out: Output, y: Tensor, w: Tensor, received: Tree) -> Tensor:
        return cross_entropy(out, y, w, received) + 0.3 * w.square().sum()

    expected = trainer_of(inside, settings).fit(inside, {}, loss=both)
    assert found == pytest.approx(expected, rel=1e-6)
    torch.testing.assert_close(client.model.w, inside.model.w)


def test_training_is_no_download(make_pair: Make) -> None:
    pair = make_pair("mlp")
    trainer_of(pair, options("adam")).fit(pair, {})
    assert not pair.model.received


@pytest.mark.parametrize("opt_state", ["keep", "reset"])
@pytest.mark.parametrize("model", [MODEL, "copilot"])
def test_an_optimizer_for_a_loop_of_its_own(model: str, opt_state: str, make_pair: Make) -> None:
    """Two visits that pull the parameters to one; kept moments make them one run of Adam."""
    pair = make_pair("mlp")
    settings = options("adam", opt_state=opt_state)
    own = pair.models[model]
    plain = nn.Parameter(own.w.clone())
    optimizer = torch.optim.Adam([plain], **ADAM)
    trainer, state = trainer_of(pair, settings), pair.state
    for _ in range(2):
        visit = Client(pair.info, pair.data, pair.models, dict(state), {}, pair.random)
        known = own.logits()
        with trainer.optimizer(visit, model) as received:
            for _ in range(3):
                received.zero_grad(set_to_none=False)
                (own.flat.w - 1).square().sum().backward()
                received.step()
        assert own.logits() is not known
        state = {name: t.clone() for name, t in visit.state.items()}
        if opt_state == "reset":
            optimizer = torch.optim.Adam([plain], **ADAM)
        for _ in range(3):
            optimizer.zero_grad()
            (plain - 1).square().sum().backward()
            optimizer.step()
        torch.testing.assert_close(own.w, plain.detach(), rtol=1e-5, atol=1e-6)
    kept = ("step", "exp_avg", "exp_avg_sq") if opt_state == "keep" else ()
    assert set(state) == {f"{model}.opt.{moment}" for moment in kept}


def test_a_reset_optimizer_forgets_kept_moments(view: View, module: nn.Module, make_client: MakeClient) -> None:
    """A visit after one that failed in its own loop starts without what that left behind."""
    client, fresh = (make_client(view, copy.deepcopy(module)) for _ in range(2))
    trainer = trainer_of(client, options("adam", opt_state="reset"))
    start = client.model.w.clone()

    def broken(out: Output, y: Tensor, w: Tensor, received: Tree) -> Tensor:
        if not (client.model.w == start).all():
            raise RuntimeError("on purpose")
        return cross_entropy(out, y, w, received)

    with pytest.raises(RuntimeError, match="on purpose"):
        trainer.fit(client, {}, loss=broken)
    assert client.state == {}
    client.model.load(start)
    trainer.fit(client, {})
    trainer_of(fresh, options("adam")).fit(fresh, {})
    assert torch.equal(client.model.w, fresh.model.w)


OPTIONS: list[dict[str, Any]] = [
    {},
    {"weight_decay": 0.0, "lr": 0.3},
    {"optimizer": "sgd", "lr": 0.1},
    {"optimizer": "sgd", "weight_decay": 0.0},
    {"optimizer": "sgd", "lr": 0.1, "momentum": 0.9},
    {"optimizer": "sgd", "weight_decay": 0.0, "momentum": 0.5},
]
P = 37


def visits(options: TrainOptions, ours: bool) -> Iterator[tuple[Tensor, dict[str, Tensor]]]:
    """Parameters and moments after each of four visits of three steps, the third of which begins without moments."""
    draw = torch.Generator().manual_seed(1)
    w = nn.Parameter(torch.randn(P, generator=draw))
    w.grad = torch.zeros_like(w)
    optimizer = make_optimizer([w], options)
    kept: dict[str, Tensor] = {}
    for visit in range(4):
        optimizer.state.clear()
        if visit == 2:
            kept = {}
        if kept:
            optimizer.state[w] = {name: t.clone() for name, t in kept.items()}
        step = flat_step(optimizer, w) if ours else optimizer.step
        for _ in range(3):
            gradient = torch.randn(P, generator=draw) * 10.0 ** float(visit - 2)
            w.grad.copy_(gradient)
            step()
            # Methods read it after the last step.
            assert torch.equal(w.grad, gradient)
        kept = {name: t for name, t in optimizer.state[w].items() if t is not None}
        yield w.detach().clone(), {name: t.clone() for name, t in kept.items()}
        for group in optimizer.param_groups:
            group["lr"] /= 2


@pytest.mark.parametrize("options", OPTIONS)
def test_flat_step_equals_torch_to_the_bit(options: dict[str, Any]) -> None:
    """Bit for bit, with moments that were kept, without, and with a rate that changes between visits."""
    train = TrainOptions(**options)
    before = torch.zeros(P)
    for (found, moments), (expected, theirs) in zip(visits(train, True), visits(train, False), strict=True):
        assert torch.equal(found, expected)
        assert not torch.equal(found, before)
        assert list(moments) == list(theirs)
        for name, moment in moments.items():
            assert torch.equal(moment, theirs[name])
            assert moment.dtype == theirs[name].dtype
        before = found


def test_denormals_are_zero_inside_the_block_alone() -> None:
    small = torch.full((2,), 1e-30)
    with without_denormals():
        assert not (small * 1e-9).any()
    assert (small * 1e-9).all()
