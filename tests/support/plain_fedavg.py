"""FedAvg on clients of plain torch: steps on cross-entropy, counts row by row, rounds written out."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from support.dense_graphs import join, smoothing
from torch import Tensor, nn

from shoal.algorithms.models.layers.head import Output
from shoal.engine.rounds.server import Server
from shoal.storage.shards.view import Cache, View

EPOCHS, DROPOUT = 2, 0.5
SGD = {"train.optimizer": "sgd", "train.lr": 0.1, "train.momentum": 0.9, "train.weight_decay": 0.01}
SGD |= {"train.epochs": EPOCHS, "train.dropout": DROPOUT}


def flat(module: nn.Module) -> Tensor:
    """All parameters `[P]`."""
    return nn.utils.parameters_to_vector(module.parameters()).detach()


def sgd_step(server: Server, client: int, w: np.ndarray, lr: float, flipped: bool = False) -> tuple[np.ndarray, int]:
    """Softmax regression after a step of SGD from `w`, `[C, F]` and a bias, on training rows; and their number.

    `flipped`: labels y are C - 1 - y.
    """
    job = server.job
    view = job.view(job.open_store(), client, Cache(0))
    classes = int(view.classes)
    x, y = view.x[view.train].float(), view.label[view.train]
    free = torch.tensor(w, requires_grad=True)
    weight, bias = free[:-classes].view(classes, -1), free[-classes:]
    F.cross_entropy(x @ weight.T + bias, classes - 1 - y if flipped else y).backward()
    assert free.grad is not None
    return w - np.float32(lr) * free.grad.numpy(), len(y)


def by_trust(changes: np.ndarray, root: int) -> np.ndarray:
    """FLTrust's change of changes `[M, P]`, client by client."""
    trusted, total, found = changes[root], 0.0, np.zeros(changes.shape[1])
    for place, change in enumerate(changes):
        if place == root:
            continue
        size = np.linalg.norm(change)
        trust = max(0.0, float(change @ trusted) / (size * np.linalg.norm(trusted))) if size else 0.0
        found += trust * np.linalg.norm(trusted) / (size or 1) * change
        total += trust
    return found / total if total else found


def cross_entropy(out: Output, y: Tensor, w: Tensor, received: Any) -> Tensor:
    """What a method of plain training takes as its loss."""
    return F.cross_entropy(out.logits_NC, y)


def row_counts(view: View, predicted: Sequence[int], classes: int = 4) -> np.ndarray:
    """Counts `[2, 3, C]` of predictions for all rows: items, predictions and hits by class, in validation and test."""
    counts = np.zeros((2, 3, classes), dtype=np.int64)
    for part, rows in enumerate((view.val, view.test)):
        for row in rows.tolist():
            truth = int(view.label[row])
            counts[part, 0, truth] += 1
            counts[part, 1, predicted[row]] += 1
            counts[part, 2, truth] += truth == predicted[row]
    return counts


def require_fedavg(
    server: Server, clients: Sequence[Any], items: Mapping[int, int], untrained: set[int], size: int | None, rounds: int
) -> None:
    """Runs rounds of which all clients are part, and compares parameters, counts and the accuracy over clients.

    Clients of plain torch have `module`, `train` and `counts`; models and accuracies are weighted by `items`;
    `untrained` have none for training; a batch has `size` of them, or all.
    """
    w = server.state.server["w"]
    for number in range(1, rounds + 1):
        line = server.round()
        for client in clients:
            client.module.load(w)
            client.train(number, size)
        weights = {i: items[i] for i in range(len(clients)) if i not in untrained}
        trained = {i: clients[i].module.w for i in weights}
        for i, client in enumerate(clients):
            np.testing.assert_array_equal(server.state.scores["trained"][i], client.counts())
        total = sum(weights.values())
        mean = {name: sum(weights[i] * trained[i][name] for i in weights) / total for name in trained[min(weights)]}
        w = server.state.server["w"]
        for client in clients:
            client.module.load(w)
        for name, value in clients[0].module.w.items():
            torch.testing.assert_close(value, mean[name], rtol=1e-4, atol=1e-5)
        counts = {i: client.counts() for i, client in enumerate(clients)}
        for i, found in counts.items():
            np.testing.assert_array_equal(server.state.scores["global"][i], found)
        tested = {i: found[1] for i, found in counts.items() if found[1, 0].any()}
        share = sum(items[i] * t[2].sum() / t[0].sum() for i, t in tested.items())
        found_share = line["scopes"]["global"]["test"]["nodes"]
        assert found_share == pytest.approx(share / sum(items[i] for i in tested))


def dense_sgc(edges: np.ndarray, x: np.ndarray, w: np.ndarray, classes: int) -> np.ndarray:
    """SGC of two hops: (D^-1/2 (A + I) D^-1/2)^2 X W + b of undirected edges `[E, 2]`, dense and in float64."""
    operator = smoothing(join(len(x), edges))
    return operator @ operator @ x @ w[:-classes].reshape(classes, -1).T + w[-classes:]
