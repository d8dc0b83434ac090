"""Gradients of rows by formula beside autograd's, step for step, dense and sparse; whole runs on either path."""

import copy
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from support.errors import refused
from support.fixtures import MakeClient, MakeView, Start
from support.sparse_rows import sparse
from support.written_rounds import require_close_runs
from torch import Tensor

from shoal.algorithms.base import Algorithm
from shoal.algorithms.client import FlatModel
from shoal.algorithms.models.build import build
from shoal.algorithms.models.decoupled.fixed_hops import SGC
from shoal.algorithms.models.gnn.gcn import GCN
from shoal.algorithms.models.inputs.neighbourhood import Inputs
from shoal.algorithms.models.layers.head import Output
from shoal.algorithms.models.names import BACKBONES
from shoal.algorithms.protocol import MODEL
from shoal.algorithms.rng import key
from shoal.algorithms.train_options import TrainOptions
from shoal.algorithms.training.analytic.choice import AnalyticGradient, Formulas, analytic, needed_for_analytic
from shoal.algorithms.training.analytic.heads import HeadGradients
from shoal.algorithms.training.local_training import LocalTrainer, flat_step, make_optimizer
from shoal.storage.graph.sparse_matrix import Features
from shoal.storage.shards.view import View

FEATURES, CLASSES, NODES = 9, 4, 30
ATTENTIONS = ("simple", "gate", "ori_ref", "jk")
# Read dense rows by autograd alone; sparse ones are traced.
WITHOUT_FORMULAS = ("s2gc", "gbp", "sign")


@pytest.fixture
def view(make_view: MakeView) -> View:
    """Thirty nodes, of which the fifth has no neighbour, and eight are trained on."""
    rng = np.random.default_rng(3)
    edges = np.argwhere(np.triu(rng.random((NODES, NODES)) < 0.15, 1))
    edges = edges[(edges != 4).all(1)]
    x = rng.standard_normal((NODES, FEATURES)) * (rng.random((NODES, FEATURES)) < 0.4)
    train = [2, 4, 5, 11, 17, 20, 26, 29]
    return make_view(NODES, edges, [0, 1, 2] * 10, train, CLASSES, x.astype(np.float32))


def model_of(
    name: str, dropout: float, layers: int, hops: int = 0, by_column: bool = False, classes: int = CLASSES, **more: Any
) -> FlatModel:
    module = build(name, FEATURES, classes, hops, dropout, {"hidden": 8, "layers": layers, **more})
    model = FlatModel(module, sparse=by_column)
    model.initial(layers)
    # Biases and some attentions start at zero.
    model.load(model.w.detach() + 0.1 * torch.randn(len(model.w), generator=torch.Generator().manual_seed(0)))
    model.module.train()
    return model


def steps_of(model: FlatModel) -> AnalyticGradient:
    steps = analytic(model).steps
    assert steps is not None
    return steps


def rows_of(rows: int, hops: int = 0) -> list[Tensor]:
    torch.manual_seed(rows)
    return [torch.randn(rows, FEATURES) * (torch.rand(rows, FEATURES) < 0.3) for _ in range(hops + 1)]


def check(model: FlatModel, closed: AnalyticGradient, inputs: Inputs, label: Tensor, atol: float = 1e-6) -> None:
    """The gradient of a step is autograd's, and draws what that draws."""
    assert model.w.grad is not None
    model.w.grad.zero_()
    torch.manual_seed(1)
    expected_loss = F.cross_entropy(model.module(inputs).logits_NC, label)
    expected_loss.backward()
    expected, drawn = model.w.grad.clone(), torch.rand(1)
    model.w.grad.fill_(torch.nan)
    torch.manual_seed(1)
    loss = closed.gradient(inputs, label)
    assert torch.equal(torch.rand(1), drawn), "dropout draws as much as the model's own"
    torch.testing.assert_close(loss, expected_loss.detach(), rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(model.w.grad, expected, rtol=1e-4, atol=atol)


@pytest.mark.exhaustive
@pytest.mark.parametrize("as_sparse", [False, True])
@pytest.mark.parametrize("dropout", [0.0, 0.5])
@pytest.mark.parametrize("layers", [1, 2, 3])
@pytest.mark.parametrize("classes", [1, 4, 172])
def test_gradients_of_heads(layers: int, dropout: float, classes: int, as_sparse: bool) -> None:
    model = model_of("mlp", dropout, layers, by_column=as_sparse, classes=classes)
    closed = HeadGradients(model)
    # Smaller batches use a part of the memory of larger ones, and nothing of what these left in it.
    for rows in (40, 1, 7, 60):
        (x,) = rows_of(rows)
        check(model, closed, [sparse(x) if as_sparse else x], torch.randint(classes, (rows,)))


@pytest.mark.parametrize(("layers", "dropout"), [(1, 0.5), (2, 0.0), (3, 0.5)])
def test_gradients_of_heads_in_bfloat16(layers: int, dropout: float) -> None:
    """They are those of torch's autocast, and further from float32's."""
    plain = model_of("mlp", dropout, layers)
    rounded = FlatModel(copy.deepcopy(plain.module), bfloat16=True)
    closed, found = HeadGradients(rounded), {}
    for rows in (64, 1, 7, 256):
        (x,), label = rows_of(rows), torch.randint(CLASSES, (rows,))
        for model in (plain, rounded):
            assert model.w.grad is not None
            model.w.grad.zero_()
            torch.manual_seed(1)
            found[model] = F.cross_entropy(model([x]).logits_NC, label)
            found[model].backward()
        losses, expected, exact = found[rounded], rounded.w.grad.clone(), plain.w.grad
        for read in (x, x.bfloat16()):
            rounded.w.grad.fill_(torch.nan)
            torch.manual_seed(1)
            torch.testing.assert_close(closed.gradient([read], label), losses.detach(), rtol=1e-4, atol=1e-4)
            assert (rounded.w.grad - expected).norm() < 0.01 * expected.norm()
        assert rows < 64 or (rounded.w.grad - expected).norm() < 0.7 * (rounded.w.grad - exact).norm()


def test_rows_are_rounded_to_bfloat16_once_a_client(view: View, make_client: MakeClient) -> None:
    """The host keeps half the bytes, and steps end with the bits of steps that round the rows themselves."""
    client, ends = make_client(view, model_of("mlp", 0.5, 2).module), []
    model, start = client.model.flat, client.model.w.clone()
    model.bfloat16 = True
    form, before = HeadGradients(model), view._cache.bytes
    options = TrainOptions(epochs=2, batch_size=4)
    LocalTrainer({MODEL: model}, options, Algorithm(), Formulas(None, form)).fit(client, {})
    assert view._cache.bytes - before == len(view.train) * FEATURES * 2
    ends.append(client.model.w.clone())
    client.model.load(start)
    step = flat_step(make_optimizer([model.w], TrainOptions()), model.w)
    torch.manual_seed(key(0, 1, view.client, "train"))
    for _ in range(2):
        for places in torch.randperm(8).split(4):
            form.gradient([view.rows(0, view.train)[places]], view.train_label[places])
            step()
    assert torch.equal(*ends, client.model.w)


@pytest.mark.exhaustive
@pytest.mark.parametrize("attention", ATTENTIONS)
@pytest.mark.parametrize(("layers", "dropout"), [(1, 0.5), (2, 0.0), (3, 0.5)])
@pytest.mark.parametrize("hops", [0, 2])
@pytest.mark.parametrize("which", ["dense", "first sparse", "last sparse", "all sparse"])
def test_gradients_of_gamlp(attention: str, layers: int, dropout: float, hops: int, which: str) -> None:
    model = model_of("gamlp", dropout, layers, hops, by_column=which != "dense", attention=attention)
    closed = steps_of(model)
    turned = {"dense": (), "first sparse": (0,), "last sparse": (hops,), "all sparse": range(hops + 1)}[which]
    for rows in (15, 1, 20):
        inputs: list[Features] = [sparse(hop) if k in turned else hop for k, hop in enumerate(rows_of(rows, hops))]
        check(model, closed, inputs, torch.arange(rows) % CLASSES)


def test_gradients_of_gamlp_of_clients_with_other_hops_sparse() -> None:
    """Some clients' hops are denser than others'."""
    model = model_of("gamlp", 0.5, 2, 2, by_column=True)
    closed = steps_of(model)
    for turned in ((), (0, 1, 2), (0, 1), (2,), ()):
        inputs: list[Features] = [sparse(hop) if k in turned else hop for k, hop in enumerate(rows_of(9, 2))]
        check(model, closed, inputs, torch.arange(9) % CLASSES)


@pytest.mark.parametrize("scale", [1e-30, 1.0, 300.0, 1e30])
def test_losses_of_logits_far_apart_are_those_of_cross_entropy(scale: float) -> None:
    """The probability of a label may be too small for a float, its logarithm is not."""
    model = model_of("mlp", 0.0, 1)
    model.load(model.w.detach() * scale)
    check(model, HeadGradients(model), rows_of(20), torch.arange(20) % CLASSES, atol=1e-5)


@pytest.mark.parametrize("name", ["gamlp", "mlp"])
def test_float16_hops_are_multiplied_in_float32(name: str) -> None:
    model = model_of(name, 0.0, 2, hops=1)
    half, found = [hop.half() for hop in rows_of(6, len(model.inputs) - 1)], []
    for inputs in (half, [hop.float() for hop in half]):
        steps_of(model).gradient(inputs, torch.arange(6) % CLASSES)
        assert model.w.grad is not None
        found.append(model.w.grad.clone())
    assert torch.equal(*found)


@pytest.mark.parametrize(
    ("name", "options", "why"),
    [
        ("gcn", {"fanouts": [2, 2]}, "the whole graph in every step"),
        ("gcn", {"jumping": "max", "layers": 4}, "model.jumping: none"),
        *((name, {"head": head}, None) for name in ("gcn", "sage", "gat", "gin", "gcnii") for head in ("conv", "relu")),
        ("gin", {"head_dropout": False, "norm": "none"}, None),
        ("gcn", {"norm": "batch"}, "another model.norm than batch"),
        ("transformer", {}, None),
        ("sgc", {"head_dropout": False, "layers": 2}, "dropout before the classifier"),
        ("mlp", {"head_dropout": True}, None),
        ("gamlp", {"attention": "recursive"}, "another model.attention than recursive"),
        ("gamlp", {"attention": "jk"}, None),
        *((name, {}, f"a model with formulas of its gradients, which {name} is not") for name in WITHOUT_FORMULAS),
    ],
)
def test_needed_for_analytic_names_what_is_missing(name: str, options: dict[str, Any], why: str | None) -> None:
    missing = needed_for_analytic(Algorithm(), FlatModel(build(name, FEATURES, CLASSES, 0, 0.5, options)))
    assert missing is None if why is None else missing is not None and missing.startswith(why)


def test_sparse_hops_need_no_formulas() -> None:
    for name in (*WITHOUT_FORMULAS, "sgc"):
        model = FlatModel(build(name, FEATURES, CLASSES, 2, 0.5, {"head_dropout": False}), sparse=True)
        assert needed_for_analytic(Algorithm(), model) is None


class OtherGCN(GCN):
    """A new model as the tree gets one: a class and its name."""

    def activate(self, x: Tensor) -> Tensor:
        return x.tanh()


class OtherSGC(SGC):
    def hop_weights(self, hops: int) -> dict[int, float]:
        return {0: 2.0}


@pytest.mark.parametrize("cls", [OtherGCN, OtherSGC])
def test_class_derived_from_one_with_formulas_has_none(cls: type, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(BACKBONES, "new", f"{__name__}:{cls.__name__}")
    missing = needed_for_analytic(Algorithm(), FlatModel(build("new", FEATURES, CLASSES, 0, 0.5, {})))
    assert missing == "a model with formulas of its gradients, which new is not"


def test_fit_with_loss_uses_autograd(view: View, make_client: MakeClient) -> None:
    def squares(out: Output, y: Tensor, w: Tensor, received: Any) -> Tensor:
        return out.logits_NC.square().mean()

    ends = []
    for by_formula in (False, True):
        client = make_client(view, model_of("mlp", 0.5, 2).module)
        model = client.model.flat
        form = analytic(model) if by_formula else None
        LocalTrainer({MODEL: model}, TrainOptions(), Algorithm(), form).fit(client, {}, loss=squares)
        ends.append(client.model.w)
    assert torch.equal(*ends)


def test_a_client_whose_loss_is_not_finite_is_named(start: Start) -> None:
    keys = {"model": {"name": "sgc"}, "engine.trainer": "analytic", "train.optimizer": "sgd", "train.lr": 1e38}
    with refused("round 1, client 0", says="the training loss is"):
        start(keys).round()


RUNS: dict[str, dict[str, Any]] = {
    "sgc": {"model": {"name": "sgc"}},
    "mlp": {"model": {"name": "mlp", "hidden": 8}, "train.dropout": 0.3},
    "sgd, batches": {"model": {"name": "mlp", "hidden": 8}, "train.optimizer": "sgd", "train.batch_size": 4},
    "local": {"model": {"name": "sgc", "layers": 2, "hidden": 8}, "algorithm.name": "local"},
    "fedgta": {"model": {"name": "mlp", "hidden": 8}, "algorithm.name": "fedgta"},
    "gat": {"model": {"name": "gat", "hidden": 8}},
    "two models": {"model": [{"name": "sgc"}, {"name": "gcn", "hidden": 5}], "algorithm.name": "local"},
}


@pytest.mark.exhaustive(3)
@pytest.mark.parametrize("name", RUNS)
def test_whole_runs(run: Start, name: str) -> None:
    """Clients that come and go, one without training rows among them; `auto` is closed form on a processor."""
    keys = {"participation.ratio": 0.7, **RUNS[name]}
    loop, closed = (run({**keys, "engine.trainer": trainer}, rounds=4) for trainer in ("autograd", "auto"))
    assert loop.state.clients.keys() == closed.state.clients.keys()
    require_close_runs(loop, closed, rtol=1e-4, atol=1e-5)
