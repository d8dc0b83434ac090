"""SCAFFOLD and FedDC in whole rounds written out in NumPy under plain SGD, and in plain torch under all options."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from support.fixtures import Keys, ModuleOf, Start, Views
from support.plain_clients import EPOCHS, PlainClient, sgd
from torch import Tensor

from shoal.algorithms.rng import key
from shoal.engine.rounds.server import Server
from shoal.storage.shards.view import View

SGD = {"train.optimizer": "sgd", "train.lr": 0.1, "train.weight_decay": 0.0, "train.dropout": 0.0}
LR, K = 0.1, 2
# What the client's variate may be told from; they are one thing under plain SGD.
FORMS = ["auto", "steps", "gradient"]


def probabilities(view: View, w: np.ndarray) -> np.ndarray:
    """Computes those of all nodes, float64 `[N, C]`, by a linear layer: weight row by row, then bias."""
    p = np.exp(view.hop(0).numpy().astype(float) @ w[:-4].reshape(4, -1).T + w[-4:])
    return np.asarray(p / p.sum(1, keepdims=True))


def softmax_gradient(view: View, w: np.ndarray, labels: dict[int, int] | None = None) -> np.ndarray:
    """Computes that of the mean cross-entropy of some nodes' labels, by default of the training nodes'."""
    if labels is None:
        labels = {row: int(view.label[row]) for row in view.train.tolist()}
    rows, y = list(labels), list(labels.values())
    x, p = view.hop(0).numpy()[rows].astype(float), probabilities(view, w)[rows]
    p[np.arange(len(y)), y] -= 1
    return np.concatenate([(p.T @ x).ravel(), p.sum(0)]) / len(y)


@pytest.fixture
def linear(patchy: Keys) -> dict[str, Any]:
    """Keys of rounds of softmax regression: two full steps of SGD a visit."""
    return {**patchy, **SGD, "model.name": "mlp", "model.layers": 1}


def check(found: torch.Tensor, wanted: np.ndarray) -> None:
    np.testing.assert_allclose(found.numpy(), wanted, rtol=1e-3, atol=1e-5)


@pytest.mark.exhaustive(2)
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


@pytest.mark.exhaustive(4)
@pytest.mark.parametrize("form", [*FORMS, "off"])
@pytest.mark.parametrize(("alpha", "sends"), [(None, "auto"), (1.5, "after"), (1.5, "off"), (0.0, "before")])
@pytest.mark.parametrize("pseudo", [0.0, 0.7])
def test_feddc_written_out(
    start: Start, views: Views, linear: Keys, form: str, alpha: Any, sends: str, pseudo: float
) -> None:
    """Alone, and inside FedGL, whose loss has the pseudo labels of the model of the client's last training."""
    # Under the penalty a recorded gradient of the loss is not the update, so g differs by what the terms gave.
    options = {"name": "feddc", "variate": form, "alpha": alpha, "sends": sends}
    options |= {"name": "fedgl_feddc", "pseudo": pseudo, "threshold": 0.4} if pseudo else {}
    server = start({**linear, "algorithm": options})
    alpha = 0.1 if alpha is None else alpha
    shards = views(server)
    w = server._initial.numpy().astype(float)
    mean, drift, update = np.zeros_like(w), np.zeros((6, len(w))), np.zeros((6, len(w)))
    scale = {"gradient": 1.0, "off": 0.0}.get(form, 1 / (LR * K))
    told: dict[int, dict[int, int]] = {}
    labelled = 0
    for number in range(1, 8):
        server.round()
        sent, updates = [], []
        for i in (i for i in server.cohort(number) if i != 3):
            theta, total = w.copy(), np.zeros_like(w)
            for _ in range(K):
                g = softmax_gradient(shards[i], theta)
                g += pseudo * softmax_gradient(shards[i], theta, told[i]) if told.get(i) else 0
                total += g
                theta -= LR * (g + alpha * (drift[i] + theta - w) + scale * (update[i] - mean))
            p = probabilities(shards[i], theta)
            certain = set(np.flatnonzero(p.max(1) >= 0.4).tolist()) - set(shards[i].train.tolist())
            told[i] = {row: int(p[row].argmax()) for row in certain} if pseudo else {}
            labelled += len(told[i])
            before = drift[i].copy()
            drift[i] += theta - w
            update[i] = -total / K if form == "gradient" else theta - w
            sent.append(theta + {"auto": before, "before": before, "after": drift[i], "off": 0}[sends])
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
    assert bool(labelled) == bool(pseudo)


SIZE, ALPHA = 2, 0.3


class Corrected(PlainClient):
    """A client with SGD, whose gradients are corrected."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.optimizer = sgd(self.module.parameters())
        zero = torch.zeros_like(self.w)
        self.variate, self.drift, self.update = zero, zero.clone(), zero.clone()

    def train(  # type: ignore[override]
        self, round_number: int, w: Tensor, correction: Tensor, penalty: float = 0.0
    ) -> Tensor:
        """Trains from `w`, every gradient with correction + penalty (theta - w); gives the mean of the loss alone."""
        self.load(w)
        torch.manual_seed(key(0, round_number, self.number, "train"))
        self.module.train()
        rows, gradients = self.view.train, []
        for _ in range(EPOCHS):
            order = torch.randperm(len(rows)) if len(rows) > SIZE else torch.arange(len(rows))
            for chosen in order.split(SIZE):
                batch = rows[chosen]
                self.optimizer.zero_grad()
                logits = self.module([self.view.hop(k)[batch] for k in self.module.inputs]).logits_NC
                F.cross_entropy(logits, self.view.label[batch]).backward()
                parameters = list(self.module.parameters())
                gradients.append(torch.cat([p.grad.flatten() for p in parameters if p.grad is not None]))
                corrected = gradients[-1] + correction + penalty * (self.w - w)
                for p, part in zip(parameters, corrected.split([p.numel() for p in parameters])):
                    p.grad = part.view_as(p).clone()
                self.optimizer.step()
        return torch.stack(gradients).mean(0)


@pytest.fixture
def begun(
    start: Start, patchy: Keys, views: Views, module_of: ModuleOf
) -> Callable[[Keys], tuple[Server, list[Corrected]]]:
    """A server of a method, and its clients in plain torch."""
    momentum = {"train.optimizer": "sgd", "train.momentum": 0.9, "train.batch_size": SIZE}
    keys = {**patchy, **momentum, "model.name": "mlp", "model.hidden": 8, "model.layers": 2}

    def begun(algorithm: Keys) -> tuple[Server, list[Corrected]]:
        server = start({**keys, "algorithm": algorithm})
        return server, [Corrected(i, view, module_of(server, server._initial)) for i, view in enumerate(views(server))]

    return begun


def gradient_check(found: Tensor, wanted: Tensor) -> None:
    torch.testing.assert_close(found, wanted, rtol=1e-3, atol=1e-5)


def test_scaffold(begun: Callable[[Keys], tuple[Server, list[Corrected]]]) -> None:
    server, clients = begun({"name": "scaffold"})
    able = [client for client in clients if len(client.view.train)]
    w, c = server._initial.clone(), torch.zeros_like(server._initial)
    for number in range(1, 8):
        server.round()
        cohort = [clients[i] for i in server.cohort(number) if len(clients[i].view.train)]
        changes = []
        for client in cohort:
            mean = client.train(number, w, c - client.variate)
            changes.append(mean - client.variate)
            client.variate = mean
        if cohort:
            w = torch.stack([client.w for client in cohort]).mean(0)
            c = c + len(cohort) / len(able) * torch.stack(changes).mean(0)
        gradient_check(server.state.server["w"], w)
        gradient_check(server.state.server["c"], c)
        gradient_check(server.state.server["c"], torch.stack([client.variate for client in able]).mean(0))


@pytest.mark.parametrize("usual", [True, False])
def test_feddc(begun: Callable[[Keys], tuple[Server, list[Corrected]]], usual: bool) -> None:
    """With momentum drifts stay out of the average, and the penalty is small, unless they are asked for."""
    alpha = 0.005 if usual else ALPHA
    server, clients = begun({"name": "feddc", **({} if usual else {"alpha": alpha, "sends": "before"})})
    w, g = server._initial.clone(), torch.zeros_like(server._initial)
    for number in range(1, 8):
        server.round()
        cohort = [clients[i] for i in server.cohort(number) if len(clients[i].view.train)]
        sent, updates = [], []
        for client in cohort:
            mean = client.train(number, w, alpha * client.drift + client.update - g, alpha)
            sent.append(client.w if usual else client.w + client.drift)
            client.drift, client.update = client.drift + client.w - w, -mean
            updates.append(client.update)
        if cohort:
            w, g = torch.stack(sent).mean(0), torch.stack(updates).mean(0)
        gradient_check(server.state.server["w"], w)
        gradient_check(server.state.server["g"], g)
        for i, state in server.state.clients.items():
            if len(clients[i].view.train):
                gradient_check(state["drift"], clients[i].drift)
