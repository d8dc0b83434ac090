"""S2GC and GBP against their equations in dense algebra, and trained beside plain torch."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from support.plain_dropout import dropped
from support.sparse_rows import sparse
from torch import Tensor, nn

from shoal.algorithms.client import Client, FlatModel
from shoal.algorithms.methods.fedavg import FedAvg
from shoal.algorithms.models.build import build
from shoal.algorithms.models.decoupled.fixed_hops import SummedFeatures
from shoal.algorithms.protocol import MODEL
from shoal.algorithms.train_options import TrainOptions
from shoal.algorithms.training.analytic.choice import needed_for_analytic
from shoal.algorithms.training.local_training import LocalTrainer
from shoal.storage.graph.sparse_matrix import Features
from shoal.storage.store.view import View

Propagated = Callable[..., tuple[View, list[np.ndarray]]]
FEATURES, CLASSES = 5, 3
MODELS = [("s2gc", {"alpha": 0.2}, 0.5), ("gbp", {"beta": 0.25}, 0.5), ("gbp", {"beta": 0.25}, 0.2)]
every_model = pytest.mark.parametrize(("name", "options", "r"), MODELS)


def equation(name: str, hops: Sequence[np.ndarray]) -> np.ndarray:
    """What the papers write, summed term by term."""
    x, total = hops[0], np.zeros_like(hops[0])
    if name == "s2gc":
        for hop in hops[1:]:
            total += (0.8 * hop + 0.2 * x) / (len(hops) - 1)
    for step, hop in enumerate(hops):
        if name == "gbp":
            total += 0.25 * 0.75**step * hop
    return total


def make(name: str, hops: int, dropout: float = 0.5, **options: Any) -> Any:
    torch.manual_seed(0)
    return build(name, FEATURES, CLASSES, hops, dropout, {"hidden": 4, **options})


@every_model
@pytest.mark.parametrize("hops", [1, 3])
@pytest.mark.parametrize("layers", [1, 2])
def test_is_the_equation(
    name: str, options: dict[str, float], r: float, hops: int, layers: int, propagated: Propagated
) -> None:
    view, dense = propagated(hops, r)
    model = make(name, hops, layers=layers, **options).eval()
    assert model.inputs == tuple(range(hops + 1))
    out = model([view.hop(k) for k in model.inputs])
    embedding = equation(name, dense)
    weights = [p.detach().double().numpy() for p in model.parameters()]
    assert len(weights) == 2 * layers
    if layers == 2:
        embedding = np.maximum(embedding @ weights[0].T + weights[1], 0)
    np.testing.assert_allclose(out.embedding_NH.detach().numpy(), embedding, rtol=1e-4, atol=1e-5)
    logits = embedding @ weights[-2].T + weights[-1]
    np.testing.assert_allclose(out.logits_NC.detach().numpy(), logits, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("name", "options", "weights"),
    [
        ("s2gc", {}, [0.05, 0.95 / 3, 0.95 / 3, 0.95 / 3]),
        ("s2gc", {"alpha": 0.0}, [0, 1 / 3, 1 / 3, 1 / 3]),
        ("s2gc", {"alpha": 1.0}, [1, 0, 0, 0]),
        ("gbp", {}, [0.1, 0.09, 0.081, 0.0729]),
        ("gbp", {"beta": 0.5}, [0.5, 0.25, 0.125, 0.0625]),
        ("gbp", {"beta": 1.0}, [1, 0, 0, 0]),
    ],
)
@pytest.mark.parametrize("as_sparse", [False, True])
def test_hop_weights_equal_the_papers(
    name: str, options: dict[str, float], weights: list[float], as_sparse: bool
) -> None:
    torch.manual_seed(1)
    model = make(name, 3, layers=1, **options)
    hops = [torch.randn(6, FEATURES) for _ in range(4)]
    hops = [sparse(hop) for hop in hops] if as_sparse else hops
    before = model(hops).logits_NC
    for k, weight in enumerate(weights):
        more = torch.randn(6, FEATURES)
        other = list(hops)
        other[k] = sparse(hops[k].to_dense() + more) if as_sparse else hops[k] + more
        expected = before + weight * more @ model.head.linears[0].weight.T
        torch.testing.assert_close(model(other).logits_NC, expected, rtol=1e-5, atol=1e-5)


def test_without_hops() -> None:
    """S2GC reads the features as they are, GBP its first term alone."""
    x = torch.randn(4, FEATURES)
    for name, scale in (("s2gc", 1.0), ("gbp", 0.1)):
        model = make(name, 0, layers=1)
        torch.testing.assert_close(model([x]).embedding_NH, scale * x)
        torch.testing.assert_close(model([x]).logits_NC, model.head.linears[0](scale * x))


class Plain(nn.Module):
    """An MLP of plain torch that holds a model's weights."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.linears = nn.ModuleList(nn.Linear(p.in_features, p.out_features) for p in model.head.linears)
        self.linears.load_state_dict(model.head.linears.state_dict())

    def forward(self, x: Tensor) -> Tensor:
        first, *others = self.linears
        x = first(x)
        for linear in others:
            x = linear(dropped(F.relu(x), 0.5, self.training))
        return x


@every_model
@pytest.mark.parametrize("layers", [1, 3])
@pytest.mark.parametrize("as_sparse", [False, True])
def test_trains_as_plain_torch(
    name: str,
    options: dict[str, float],
    r: float,
    layers: int,
    as_sparse: bool,
    propagated: Propagated,
    make_client: Callable[..., Client],
) -> None:
    view, dense = propagated(2, r)
    if as_sparse:
        view._hops[:] = [sparse(torch.as_tensor(view.hop(k))) for k in range(3)]
    model = make(name, 2, layers=layers, **options)
    plain = Plain(model)
    client = make_client(view, model)
    trained = TrainOptions(epochs=6, optimizer="sgd", lr=0.3, momentum=0.9, weight_decay=0.01)
    loss = LocalTrainer({MODEL: client.model.flat}, trained, FedAvg()).fit(client, {})
    optimizer = torch.optim.SGD(plain.parameters(), lr=0.3, momentum=0.9, weight_decay=0.01)
    x = torch.from_numpy(equation(name, dense)).float()
    torch.manual_seed(client.model.random("train"))
    for _ in range(6):
        optimizer.zero_grad()
        expected = F.cross_entropy(plain(x[view.train]), view.label[view.train])
        expected.backward()
        optimizer.step()
    assert loss == pytest.approx(float(expected.detach()), rel=1e-4)
    torch.testing.assert_close(
        client.model.w, nn.utils.parameters_to_vector(plain.parameters()).detach(), rtol=1e-4, atol=1e-5
    )
    torch.testing.assert_close(client.model.logits(), plain.eval()(x), rtol=1e-4, atol=1e-5)


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


@pytest.mark.parametrize("name", ["s2gc", "gbp", "sign"])
def test_gradients_are_autograd_s(name: str) -> None:
    missing = f"a model with formulas of its gradients, which {name} is not"
    assert needed_for_analytic(FedAvg(), FlatModel(make(name, 2))) == missing
