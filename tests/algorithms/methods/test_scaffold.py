"""SCAFFOLD and FedDC in whole rounds written out in NumPy, resumed, and without their terms."""

from typing import Any

import numpy as np
import pytest
import torch
from support.fixtures import Keys, Start, Views

from shoal.storage.store.view import View

SGD = {"train.optimizer": "sgd", "train.lr": 0.1, "train.weight_decay": 0.0, "train.dropout": 0.0}
LR, K = 0.1, 2
# What the client's variate may be told from; they are one thing under plain SGD.
FORMS = ["auto", "steps", "gradient"]


def softmax_gradient(view: View, w: np.ndarray) -> np.ndarray:
    """Of the mean cross-entropy of a linear layer on the features, weight row by row, then bias."""
    rows = view.train.numpy()
    x, y = view.hop(0).numpy()[rows].astype(float), view.label.numpy()[rows]
    weight, bias = w[:-4].reshape(4, -1), w[-4:]
    p = np.exp(x @ weight.T + bias)
    p /= p.sum(1, keepdims=True)
    p[np.arange(len(y)), y] -= 1
    return np.concatenate([(p.T @ x).ravel(), p.sum(0)]) / len(y)


@pytest.fixture
def linear(patchy: Keys) -> dict[str, Any]:
    """Keys of rounds of softmax regression: two full steps of SGD a visit."""
    return {**patchy, **SGD, "model.name": "mlp", "model.layers": 1}


def check(found: torch.Tensor, wanted: np.ndarray) -> None:
    np.testing.assert_allclose(found.numpy(), wanted, rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("eta", [1.0, 0.6])
def test_scaffold_written_out(start: Start, views: Views, linear: Keys, form: str, eta: float) -> None:
    server = start({**linear, "algorithm": {"name": "scaffold", "variate": form, "eta": eta}})
    shards = views(server)
    x = server._initial.numpy().astype(float)
    c, own = np.zeros_like(x), np.zeros((6, len(x)))
    for number in range(1, 8):
        line, cohort = server.round(), server.cohort(number)
        deltas, changes = [], []
        for i in (i for i in cohort if i != 3):
            y = x.copy()
            for _ in range(K):
                y -= LR * (softmax_gradient(shards[i], y) - own[i] + c)
            new = own[i] - c + (x - y) / (K * LR)
            deltas.append(y - x)
            changes.append(new - own[i])
            own[i] = new
        if deltas:
            x = x + eta * np.mean(deltas, axis=0)
            c = c + len(deltas) / 5 * np.mean(changes, axis=0)
        check(server.state.server["w"], x)
        check(server.state.server["c"], c)
        check(server.state.server["c"], own.sum(0) / 5)
        for i, kept in server.state.clients.items():
            if i != 3:
                check(kept["variate"], own[i])
        assert (line["bytes_up"], line["bytes_down"]) == (len(cohort) * 8 * (len(x) + 1), len(cohort) * 8 * len(x))


@pytest.mark.parametrize("form", [*FORMS, "off"])
@pytest.mark.parametrize(("alpha", "sends"), [(0.1, "before"), (1.5, "after"), (1.5, "off"), (0.0, "after")])
def test_feddc_written_out(start: Start, views: Views, linear: Keys, form: str, alpha: float, sends: str) -> None:
    # Under the penalty a recorded gradient of the loss is not the update, so g differs by what the terms gave.
    server = start({**linear, "algorithm": {"name": "feddc", "variate": form, "alpha": alpha, "sends": sends}})
    shards = views(server)
    w = server._initial.numpy().astype(float)
    mean, drift, update = np.zeros_like(w), np.zeros((6, len(w))), np.zeros((6, len(w)))
    scale = {"gradient": 1.0, "off": 0.0}.get(form, 1 / (LR * K))
    for number in range(1, 8):
        server.round()
        sent, updates = [], []
        for i in (i for i in server.cohort(number) if i != 3):
            theta, total = w.copy(), np.zeros_like(w)
            for _ in range(K):
                g = softmax_gradient(shards[i], theta)
                total += g
                theta -= LR * (g + alpha * (drift[i] + theta - w) + scale * (update[i] - mean))
            before = drift[i].copy()
            drift[i] += theta - w
            update[i] = -total / K if form == "gradient" else theta - w
            sent.append(theta + {"before": before, "after": drift[i], "off": 0}[sends])
            updates.append(update[i])
        if sent:
            w, mean = np.mean(sent, axis=0), np.mean(updates, axis=0)
        check(server.state.server["w"], w)
        assert ("g" in server.state.server) == (form != "off")
        for i, kept in server.state.clients.items():
            if i != 3:
                check(kept["drift"], drift[i])
                assert ("update" in kept) == (form != "off")
            if i != 3 and form != "off":
                check(kept["update"], update[i])
                check(server.state.server["g"], mean)
