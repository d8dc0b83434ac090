"""A client that is trained in one call beside the same one that autograd trains, step for step."""

from collections.abc import Callable
from functools import partial
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
from support.fixtures import MakeView
from torch import Tensor

from shoal.algorithms.base import Algorithm
from shoal.algorithms.client import Client, ClientInfo, ClientModel, FlatModel
from shoal.algorithms.models.build import build
from shoal.algorithms.protocol import MODEL
from shoal.algorithms.rng import key
from shoal.algorithms.train_options import TrainOptions
from shoal.algorithms.training.analytic.small_heads import SmallModel
from shoal.algorithms.training.local_training import LocalTrainer
from shoal.storage.graph.rows import CsrRows
from shoal.storage.shards.view import View

NODES, FEATURES, CLASSES = 30, 11, 3
TRAIN = [2, 4, 5, 11, 17, 20, 26, 29]
# Options of training that a call has to follow.
VISITS: dict[str, dict[str, Any]] = {
    "sgd": {"optimizer": "sgd", "lr": 0.3},
    "sgd, decay, a batch of all": {"optimizer": "sgd", "lr": 0.3, "weight_decay": 0.1, "batch_size": 13},
    "adam": {"weight_decay": 0.1},
    "adam, reset": {"opt_state": "reset", "epochs": 5},
}


def require_visits_of_autograd(
    make: Callable[[], Client], form: Callable[[FlatModel], Any], options: dict[str, Any], w_atol: float = 1e-5
) -> None:
    """Trains fresh clients for two visits, and compares losses, moments and parameters."""
    train = TrainOptions(**{"weight_decay": 0.0, **options})
    ends: list[tuple[list[float], dict[str, Tensor], Tensor]] = []
    gradients: list[Tensor] = []
    for in_one_call in (False, True):
        client = make()
        flat = client.model.flat
        if not in_one_call:
            # The model's own passes, and no compiled ones.
            vars(flat)["passes"] = None
        trainer = LocalTrainer({MODEL: flat}, train, Algorithm(), form(flat) if in_one_call else None)
        with patch.object(SmallModel, "fit", autospec=True, side_effect=SmallModel.fit) as call:
            ends.append(([trainer.fit(client, {}) for _ in range(2)], client.state, client.model.w.clone()))
        assert call.call_count == (2 if in_one_call else 0)
        assert flat.w.grad is not None
        gradients.append(flat.w.grad.clone())
    (losses, moments, w), by_call = ends
    torch.testing.assert_close(*gradients, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(by_call[0], losses, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(by_call[1], moments, rtol=1e-4, atol=1e-6)
    torch.testing.assert_close(by_call[2], w, rtol=1e-4, atol=w_atol)


def fit_in_one_call(small: SmallModel, client: Client, label_N: Tensor) -> tuple[float, float]:
    """Trains a client on cross-entropy with these labels; gives the last loss and the first."""
    client.model.flat.set_training(True)
    plan = small.plan(client.model.gathered("train"), label_N)
    return small.fit(client.model, plan, {}, TrainOptions())


def require_same_bits_on_any_threads(make: Callable[[], Client], form: Callable[[FlatModel], Any]) -> None:
    """Trains fresh clients on one and on two threads, and compares their parameters."""
    ends = []
    for threads in (1, 2):
        torch.set_num_threads(threads)
        client = make()
        fit_in_one_call(form(client.model.flat), client, client.data.train_label)
        ends.append(client.model.w.clone())
    torch.set_num_threads(1)
    assert torch.equal(*ends)


def model_of(name: str, dropout: float = 0.0, sparse: bool = True, **options: Any) -> FlatModel:
    module = build(name, FEATURES, CLASSES, 0, dropout, {"hidden": 6, "layers": 2, "head": "conv", **options})
    model = FlatModel(module, sparse=sparse)
    model.initial(1)
    # Biases start at zero.
    model.load(model.w.detach() + 0.1 * torch.randn(len(model.w), generator=torch.Generator().manual_seed(0)))
    return model


def view_of(make_view: MakeView, weighted: bool = False) -> View:
    """Thirty nodes with sparse features, of which the fifth has no neighbour, and eight are trained on."""
    rng = np.random.default_rng(3)
    edges = np.argwhere(np.triu(rng.random((NODES, NODES)) < 0.1, 1))
    edges = edges[(edges != 4).all(1)]
    x = rng.standard_normal((NODES, FEATURES)).astype(np.float32)
    kept = rng.random((NODES, FEATURES)) < 0.4
    # A feature that no node has, and a node that has none.
    kept[:, 7] = kept[11] = False
    starts = np.append(0, kept.sum(1).cumsum()).astype(np.int32)
    rows = CsrRows(starts, np.nonzero(kept)[1].astype(np.int32), x[kept], FEATURES)
    half = rng.random((NODES, NODES)).astype(np.float32) + 0.1
    return make_view(NODES, edges, [0, 1, 2] * 10, TRAIN, CLASSES, rows, half + half.T if weighted else None)


def client_of(model: FlatModel, view: View) -> Client:
    random = partial(key, 0, 1, view.client)
    own = ClientModel(model, view, random)
    return Client(ClientInfo(view.client, view.nodes, len(TRAIN), CLASSES), view, {MODEL: own}, {}, {}, random)
