"""SCAFFOLD and FedDC in whole rounds written out in NumPy, resumed, and without their terms."""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pytest
import torch

from shoal.algorithms.methods.feddc import FedDC
from shoal.algorithms.methods.scaffold import SCAFFOLD
from shoal.engine.rounds.server import Server
from shoal.storage.errors import ShoalError
from shoal.storage.store.view import View

Run = Callable[..., Server]
Keys = Mapping[str, Any]
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
def test_scaffold_written_out(
    start: Run, views: Callable[..., list[View]], linear: Keys, form: str, eta: float
) -> None:
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
def test_feddc_written_out(
    start: Run, views: Callable[..., list[View]], linear: Keys, form: str, alpha: float, sends: str
) -> None:
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


@pytest.mark.parametrize("name", ["scaffold", "feddc"])
def test_a_resumed_run_goes_on_to_the_bit(start: Run, run: Run, patchy: Keys, name: str) -> None:
    keys = {**patchy, "algorithm.name": name, "model.hidden": 8}
    whole, state = run(keys, rounds=7), run(keys, rounds=3).state
    resumed = start(keys, state=type(state).from_tensors(*state.to_tensors()))
    for _ in range(4):
        resumed.round()
    for key, tensor in whole.state.server.items():
        assert torch.equal(resumed.state.server[key], tensor)
    for i, kept in whole.state.clients.items():
        assert kept.keys() == resumed.state.clients[i].keys()
        assert all(torch.equal(resumed.state.clients[i][key], tensor) for key, tensor in kept.items())


def test_switched_off_scaffold_is_fedavg_to_the_last_bit(run: Run) -> None:
    keys = {
        "train.dropout": 0.5,
        "participation.ratio": 0.7,
        "engine.trainer": "autograd",
        "algorithm.weight": "uniform",
    }
    fedavg = run({**keys, "algorithm.name": "fedavg"}).state.server["w"]
    off = run({**keys, "algorithm.name": "scaffold", "algorithm.variate": "off"})
    assert torch.equal(off.state.server["w"], fedavg)
    assert not any("variate" in kept for kept in off.state.clients.values())
    assert not torch.equal(run({**keys, "algorithm.name": "scaffold"}).state.server["w"], fedavg)


def test_switched_off_feddc_is_fedavg_to_the_last_bit(run: Run) -> None:
    keys = {
        "train.dropout": 0.5,
        "participation.ratio": 0.7,
        "engine.trainer": "autograd",
        "algorithm.weight": "uniform",
    }
    plain = run({**keys, "algorithm.name": "fedavg"})
    parts = {"algorithm.alpha": 0.0, "algorithm.variate": "off", "algorithm.sends": "off"}
    switched_off = run({**keys, "algorithm.name": "feddc", **parts})
    lines = [server.round() for server in (plain, switched_off)]
    for way in ("bytes_up", "bytes_down"):
        assert lines[0][way] == lines[1][way]
    fedavg, off = plain.state, switched_off.state
    assert off.server.keys() == fedavg.server.keys()
    assert torch.equal(off.server["w"], fedavg.server["w"])
    assert {i: kept.keys() for i, kept in off.clients.items()} == {i: kept.keys() for i, kept in fedavg.clients.items()}
    for name in parts:
        some = run({**keys, "algorithm.name": "feddc", **{key: value for key, value in parts.items() if key != name}})
        some.round()
        assert not torch.equal(some.state.server["w"], fedavg.server["w"])


@pytest.mark.parametrize("name", ["scaffold", "feddc"])
@pytest.mark.parametrize("train", [{"train.optimizer": "adam"}, {**SGD, "train.momentum": 0.9}])
def test_steps_of_other_optimizers_are_refused(start: Run, name: str, train: Keys) -> None:
    with pytest.raises(ShoalError, match=r"^algorithm\.variate: steps wants .*; set variate: gradient$"):
        start({**train, "algorithm.name": name, "algorithm.variate": "steps"})


def test_options_out_of_range_are_refused() -> None:
    with pytest.raises(ValueError, match="eta"):
        SCAFFOLD(eta=0)
    assert FedDC() == FedDC(alpha=0.1, variate="auto", sends="before", weight="uniform")
    with pytest.raises(ValueError, match="alpha"):
        FedDC(alpha=-0.1)
