"""A client that is trained in one call beside the same one that autograd trains, step for step."""

from collections.abc import Callable
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor

from shoal.algorithms.base import Algorithm
from shoal.algorithms.client import Client, FlatModel
from shoal.algorithms.protocol import MODEL
from shoal.algorithms.train_options import TrainOptions
from shoal.algorithms.training.analytic.small_heads import SmallModel
from shoal.algorithms.training.local_training import LocalTrainer

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
