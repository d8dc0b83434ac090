"""A pull beside the same terms in the loss: by autograd, by formulas, in one call, and in batches."""

import re
from dataclasses import dataclass, field
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
import torch
from support.fixtures import MakeClient, MakeView
from torch import Tensor

from shoal.algorithms.base import Algorithm, Client, Output, Pull, Received
from shoal.algorithms.client import ClientModel, FlatModel
from shoal.algorithms.models.build import build
from shoal.algorithms.protocol import MODEL
from shoal.algorithms.train_options import TrainOptions
from shoal.algorithms.training.analytic.choice import analytic
from shoal.algorithms.training.analytic.small_heads import SmallModel
from shoal.algorithms.training.batched.batched_training import BatchedTrainer
from shoal.algorithms.training.local_training import LocalTrainer, pull_of
from shoal.storage.errors import ShoalError
from shoal.storage.graph.rows import CsrRows

NODES, FEATURES, CLASSES = 20, 7, 3
OPTIMIZERS: dict[str, dict[str, Any]] = {
    "adam": {"weight_decay": 0.1},
    "sgd": {"optimizer": "sgd", "lr": 0.2, "weight_decay": 0.1},
    "momentum": {"optimizer": "sgd", "lr": 0.1, "momentum": 0.9, "weight_decay": 0.0},
    "batches": {"optimizer": "sgd", "lr": 0.1, "batch_size": 3},
}
# Models by how they are trained: of two of them all steps are one call.
MODELS = {"gamlp": {"hidden": 6}, "sgc": {}, "gcn": {"hidden": 6, "head": "conv"}}


@dataclass(frozen=True)
class Written(Algorithm):
    """A loss with the terms of a pull in it, and the sum of the gradients that are without them."""

    linear: Tensor
    origin: Tensor
    mu: float

    def loss(self, out: Output, y: Tensor, w: Tensor, received: Received) -> Tensor:
        plain = super().loss(out, y, w, received)
        model = received["model"]
        gradients = torch.autograd.grad(plain, list(model.module.parameters()), retain_graph=True)
        for part, gradient in zip(model.parts(received["total"]), gradients, strict=True):
            part += gradient
        return plain + self.linear @ w + self.mu / 2 * (w - self.origin).square().sum()


@dataclass(frozen=True)
class Pulled(Algorithm):
    given: Any
    asked: list[TrainOptions] = field(default_factory=list)

    def pull(self, client: Client, received: Received, options: TrainOptions) -> Pull | None:
        self.asked.append(options)
        return self.given  # type: ignore[no-any-return]


def make(name: str, make_view: MakeView, make_client: MakeClient, rows: int = 8) -> Client:
    rng = np.random.default_rng(rows)
    x = rng.standard_normal((NODES, FEATURES)).astype(np.float32)
    edges = np.argwhere(np.triu(rng.random((NODES, NODES)) < 0.2, 1))
    kept = rng.random((NODES, FEATURES)) < 0.5
    starts = np.append(0, kept.sum(1).cumsum()).astype(np.int32)
    sparse = CsrRows(starts, kept.nonzero()[1].astype(np.int32), x[kept], FEATURES)
    torch.manual_seed(0)
    module = build(name, FEATURES, CLASSES, 0, 0.3, MODELS[name])
    view = make_view(NODES, edges, [0, 1, 2, 1] * 5, list(range(rows)), CLASSES, sparse if name == "gcn" else x)
    client = make_client(view, module)
    model = ClientModel(FlatModel(module, sparse=name == "gcn"), view, client.random)
    return Client(client.info, view, {MODEL: model}, {}, {}, client.random)


def vectors(model: FlatModel) -> tuple[Tensor, Tensor]:
    linear, origin = 0.1 * torch.randn(2, len(model.w), generator=torch.Generator().manual_seed(1))
    return linear, origin


def as_written(client: Client, options: TrainOptions) -> tuple[Tensor, Tensor]:
    """Returns parameters and the sum of gradients after training with the terms in the loss."""
    model = client.model.flat
    received: dict[str, Any] = {"model": model, "total": torch.zeros(len(model.w))}
    LocalTrainer({MODEL: model}, options, Written(*vectors(model), 0.5)).fit(client, received)
    return client.model.w.clone(), received["total"]


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("formulas", [False, True])
@pytest.mark.parametrize("name", MODELS)
def test_a_pull_is_terms_of_the_loss(
    name: str, formulas: bool, optimizer: str, make_view: MakeView, make_client: MakeClient
) -> None:
    options = TrainOptions(epochs=4, **OPTIMIZERS[optimizer])
    w, total = as_written(make(name, make_view, make_client), options)
    client = make(name, make_view, make_client)
    flat = client.model.flat
    linear, origin = vectors(flat)
    method = Pulled(Pull(linear, origin, 0.5, torch.zeros_like(linear)))
    with patch.object(SmallModel, "fit", autospec=True, side_effect=SmallModel.fit) as call:
        LocalTrainer({MODEL: flat}, options, method, analytic(flat) if formulas else None).fit(client, {})
    assert call.called == (formulas and name != "gamlp" and optimizer in ("adam", "sgd"))
    assert method.asked == [options]
    torch.testing.assert_close(client.model.w, w, rtol=1e-4, atol=2e-5)
    torch.testing.assert_close(method.given.total, total, rtol=1e-4, atol=2e-5)
    assert torch.equal(torch.stack([linear, origin]), torch.stack(vectors(flat)))


@pytest.mark.parametrize("alike", [True, False])
@pytest.mark.parametrize("optimizer", ["adam", "sgd", "momentum"])
def test_clients_of_a_batch_are_pulled_each(
    optimizer: str, alike: bool, make_view: MakeView, make_client: MakeClient
) -> None:
    options = TrainOptions(epochs=4, **OPTIMIZERS[optimizer])
    written = [as_written(make("gamlp", make_view, make_client, rows), options) for rows in (8, 5)]
    clients = [make("gamlp", make_view, make_client, rows) for rows in (8, 5, 6)]
    flat = clients[0].model.flat
    linear, origin = vectors(flat)
    pulls: list[Pull | None] = [Pull(linear, origin, 0.5, torch.ones_like(linear)) for _ in range(2)]
    # The third client has nothing, or twice as much.
    pulls.append(Pull(linear, origin, 0.5, torch.zeros_like(linear)) if alike else None)
    w_BP = torch.stack([client.model.w.clone() for client in clients])
    BatchedTrainer(flat, options).fit(clients, w_BP, pulls=pulls)
    for (w, total), trained, pull in zip(written, w_BP, pulls):
        assert pull is not None
        torch.testing.assert_close(trained, w, rtol=1e-4, atol=2e-5)
        torch.testing.assert_close(pull.total, total + 1, rtol=1e-4, atol=2e-5)


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ("w", "gives a str, expected a Pull or None"),
        (Pull(torch.zeros(())), "gives linear as float32 []"),
        (Pull(origin=torch.zeros(3), mu=1.0), "gives origin as float32 [3]"),
        (Pull(total=np.zeros(24)), "gives total as ndarray"),  # type: ignore[arg-type]
        (Pull(torch.zeros(24, dtype=torch.float64)), "gives linear as float64 [24], expected float32 [24]"),
        (Pull(origin=torch.zeros(24, requires_grad=True)), "gives origin with a gradient, expected values alone"),
        (Pull(mu=0.5), "gives mu 0.5 without an origin"),
    ],
)
def test_a_pull_that_does_not_fit_is_named(given: Any, says: str, make_view: MakeView, make_client: MakeClient) -> None:
    client = make("sgc", make_view, make_client)
    assert len(client.model.w) == 24
    with pytest.raises(ShoalError, match=re.escape(says)):
        pull_of(Pulled(given), client, {}, TrainOptions())
