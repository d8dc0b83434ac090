"""SGC, S2GC, GBP, SIGN and GAMLP against their equations, and trained beside plain torch."""

import copy
import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from support.fixtures import Keys, MakeClient
from support.made_models import make_moved
from support.plain_dropout import dropped
from support.plain_fedavg import flat
from support.plain_training import plain_steps
from support.sparse_rows import sparse
from torch import Tensor

from shoal.algorithms.methods.fedavg import FedAvg
from shoal.algorithms.models.build import width_of
from shoal.algorithms.models.decoupled.fixed_hops import SummedFeatures
from shoal.algorithms.models.decoupled.gamlp import ATTENTIONS, GAMLP
from shoal.algorithms.models.decoupled.sign import SIGN
from shoal.algorithms.models.layers.weighted_hops import weighted_hops
from shoal.algorithms.protocol import MODEL
from shoal.algorithms.train_options import TrainOptions
from shoal.algorithms.training.local_training import LocalTrainer
from shoal.storage.graph.sparse_matrix import Features
from shoal.storage.shards.view import View

Propagated = Callable[..., tuple[View, list[np.ndarray]]]
FEATURES, CLASSES, HIDDEN = 5, 3, 4
MODELS: list[tuple[str, dict[str, float], float]] = [
    ("sgc", {}, 0.5),
    *(("s2gc", options, 0.5) for options in ({}, {"alpha": 0.2}, {"alpha": 0.0}, {"alpha": 1.0})),
    *(("gbp", options, 0.5) for options in ({}, {"beta": 0.25}, {"beta": 1.0})),
    ("gbp", {"beta": 0.25}, 0.2),
    ("sign", {}, 0.5),
]


def make(name: str, hops: int, **options: Any) -> Any:
    return make_moved(name, FEATURES, CLASSES, hops, 0.5, {"hidden": HIDDEN, **options})


def weights(name: str, hops: int, alpha: float = 0.05, beta: float = 0.1) -> list[float]:
    """Those of the hops in the papers' sums."""
    if name == "gbp":
        return [beta * (1 - beta) ** k for k in range(hops + 1)]
    if name == "sgc" or not hops:
        return [0.0] * hops + [1.0]
    return [alpha, *[(1 - alpha) / hops] * hops]


def plain(
    name: str, model: Any, hops: Sequence[Tensor], options: dict[str, float], drops_embedding: bool = True
) -> tuple[Tensor, Tensor]:
    """Logits and embedding by the equations, with a model's weights and mode."""
    layers = list(model.head.linears)
    if name == "sign":
        z = torch.cat([linear(hop) for linear, hop in zip(model.of_hops, hops, strict=True)], 1)
        slopes = [model.prelu.weight, *[getattr(model.head.prelu, "weight", None)] * (len(layers) - 1)]
    else:
        embedding = sum(w * hop for w, hop in zip(weights(name, len(hops) - 1, **options), hops, strict=True))
        z, slopes = layers.pop(0)(embedding), [torch.zeros(())] * len(layers)
    for number, (linear, slope) in enumerate(zip(layers, slopes), start=1):
        embedding = torch.where(z > 0, z, slope * z)
        drops = number < len(layers) or drops_embedding
        z = linear(dropped(embedding, 0.5, model.training and drops))
    return z, embedding


@pytest.mark.parametrize(("name", "options", "r"), MODELS)
@pytest.mark.parametrize("hops", [0, 1, 3])
@pytest.mark.parametrize("layers", [1, 3])
def test_is_the_equation(name: str, options: Keys, r: float, hops: int, layers: int, propagated: Propagated) -> None:
    view, dense = propagated(hops, r)
    model = make(name, hops, layers=layers, **options).eval()
    assert model.inputs == ((hops,) if name == "sgc" else tuple(range(hops + 1)))
    out = model([view.hop(k) for k in model.inputs])
    twin = copy.deepcopy(model).double()
    logits, embedding = plain(name, twin, [torch.from_numpy(hop).double() for hop in dense], options)
    torch.testing.assert_close(out.embedding_NH.double(), embedding, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(out.logits_NC.double(), logits, rtol=1e-4, atol=1e-5)
    assert out.embedding_NH.shape[1] == width_of(model)


@pytest.mark.parametrize("name", ["sgc", "s2gc", "gbp", "sign"])
@pytest.mark.parametrize("layers", [1, 3])
@pytest.mark.parametrize("head_dropout", [True, False])
@pytest.mark.parametrize("as_sparse", [False, True])
def test_trains_as_plain_torch(
    name: str, layers: int, head_dropout: bool, as_sparse: bool, propagated: Propagated, make_client: MakeClient
) -> None:
    view, dense = propagated(2)
    if as_sparse:
        view._hops[:] = [sparse(torch.as_tensor(view.hop(k))) for k in range(3)]
    model = make(name, 2, layers=layers, head_dropout=head_dropout)
    twin = copy.deepcopy(model).train()
    client = make_client(view, model)
    trained = TrainOptions(epochs=6, optimizer="sgd", lr=0.1, momentum=0.9, weight_decay=0.01)
    loss = LocalTrainer({MODEL: client.model.flat}, trained, FedAvg()).fit(client, {})
    optimizer = torch.optim.SGD(twin.parameters(), lr=0.1, momentum=0.9, weight_decay=0.01)
    hops = [torch.from_numpy(hop).float() for hop in dense]

    def logits_of(rows: Tensor) -> Tensor:
        return plain(name, twin, [hop[rows] for hop in hops], {}, head_dropout)[0]

    losses = plain_steps(logits_of, optimizer, view, client.model.random("train"), 6)
    assert loss == pytest.approx(losses[-1], rel=1e-4)
    torch.testing.assert_close(client.model.w, flat(twin), rtol=1e-4, atol=1e-5)
    expected, _ = plain(name, twin.eval(), hops, {})
    torch.testing.assert_close(client.model.logits(), expected.detach(), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("layers", [1, 2])
def test_sparse_hops_are_not_written_out(layers: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither in a step nor in an evaluation; a method that asks for the embedding of one layer has it dense."""
    hops: list[Features] = [sparse(torch.randn(6, FEATURES).relu()) for _ in range(3)]
    expected = sum(w * hop.to_dense() for w, hop in zip([0.1, 0.09, 0.081], hops))
    model = make("gbp", 2, layers=layers)

    def refused(self: Any) -> Tensor:
        raise AssertionError("a sparse hop is written out")

    with monkeypatch.context() as patch:
        patch.setattr(type(hops[0]), "to_dense", refused)
        out = model(hops)
        out.logits_NC.sum().backward()
    assert isinstance(out.embedding, SummedFeatures) == (layers == 1)
    if layers == 1:
        torch.testing.assert_close(out.embedding_NH, expected)
        assert (out.embedding.shape, len(out.embedding)) == ((6, FEATURES), 6)


def test_layers_of_hops_start_as_other_layers() -> None:
    """Xavier-uniform with ReLU's gain, no bias, a slope of a quarter."""
    model = SIGN(500, 3, 2, 0.0)
    bound = np.sqrt(2) * np.sqrt(6 / (500 + 64))
    for linear in model.of_hops:
        assert 0.99 * bound < linear.weight.abs().max() <= bound
        assert not linear.bias.any()
    assert model.prelu.weight.tolist() == [0.25]


def test_nothing_is_dropped_before_embeddings_are_pooled() -> None:
    model = make("sign", 2).train()
    hops = [torch.randn(9, FEATURES) for _ in range(3)]
    out, whole = model(hops), model.eval()(hops)
    assert torch.equal(out.embedding_NH, whole.embedding_NH)
    assert not torch.equal(out.logits_NC, whole.logits_NC)
    model.train().head.pooled = True
    assert torch.equal(model(hops).logits_NC, whole.logits_NC)


def random_hops(nodes: int, features: int, hops: int) -> list[Tensor]:
    generator = torch.Generator().manual_seed(nodes)
    return [torch.randn(nodes, features, generator=generator) for _ in range(hops + 1)]


def sharp(attention: str, features: int, hops: int) -> GAMLP:
    """A model whose scores are far from zero, so that a wrong weight shows."""
    model = GAMLP(features, 4, hops, 0.5, hidden=8, attention=attention)
    with torch.no_grad():
        for name, p in model.named_parameters():
            if name in ("theta", "score.weight", "score.bias"):
                p.copy_(torch.randn(p.shape))
    return model


def naive_weights(model: GAMLP, hops: list[Tensor]) -> list[list[float]]:
    """The formulas node by node, with every concatenation formed, in float64."""
    sigmoid = lambda z: 1 / (1 + math.exp(-z))  # noqa: E731

    def softmax(scores: list[float]) -> list[float]:
        exponentials = [math.exp(z) for z in scores]
        return [e / sum(exponentials) for e in exponentials]

    result = []
    for v in range(len(hops[0])):
        rows = [hop[v].double() for hop in hops]
        if model.attention == "simple":
            result.append(softmax([sigmoid(float(theta)) for theta in model.theta.detach()]))
            continue
        a, b = model.score.weight[0].detach().double(), float(model.score.bias.detach())
        gates: list[float] = []
        for row in rows:
            if model.attention == "gate":
                pair = row
            elif model.attention == "ori_ref":
                pair = torch.cat([rows[0], row])
            elif model.attention == "jk":
                pair = torch.cat([*rows, row])
            else:
                history = [w * earlier for w, earlier in zip(softmax(gates), rows)] if gates else [rows[0]]
                pair = torch.cat([torch.stack(history).sum(0), row])
            gates.append(sigmoid(float(a @ pair) + b))
        result.append(softmax(gates))
    return result


@pytest.mark.parametrize("hops", [0, 1, 4])
@pytest.mark.parametrize("attention", ATTENTIONS)
def test_equals_the_formula_node_by_node(attention: str, hops: int) -> None:
    torch.manual_seed(0)
    model, x = sharp(attention, 6, hops).eval(), random_hops(9, 6, hops)
    expected = torch.tensor(naive_weights(model, x), dtype=torch.float64)
    weights = model.weights_NK(weighted_hops(x, model.head, model.vectors_RF()))
    torch.testing.assert_close(weights.double(), expected, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(weights.sum(1), torch.ones(9))

    u = sum(w.unsqueeze(1) * hop.double() for w, hop in zip(expected.T, x))
    first, second, last = (linear.double() for linear in model.head.linears)
    embedding = F.leaky_relu(second(F.leaky_relu(first(u), 0.25)), 0.25)
    logits = last.double()(embedding).detach()
    model.float()
    for rows in (x, [sparse(hop) for hop in x], [sparse(x[0]), *x[1:]]):
        for with_gradients in (True, False):
            with torch.set_grad_enabled(with_gradients):
                out = model(rows)
            torch.testing.assert_close(out.embedding_NH.double(), embedding, rtol=1e-4, atol=1e-5)
            torch.testing.assert_close(out.logits_NC.double(), logits, rtol=1e-4, atol=1e-5)
