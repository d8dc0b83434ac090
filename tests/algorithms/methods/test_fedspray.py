"""FedSpray in whole rounds against dense graphs, an encoder of single float64 matrices, and loops over nodes."""

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from support.dense_clients import DenseClient
from support.fixtures import ModuleOf, Start, Views
from support.plain_clients import DECAY, EPOCHS, LR
from support.small_fedgkc import kl
from support.written_rounds import require_mean_loss
from torch import Tensor

CLASSES, FEATURES, MOMENTUM = 4, 5, 0.9
DEFAULTS = {"lam": 1.0, "threshold": 0.7, "hidden": 64, "proxy_lr": 0.02}


class Spraying(DenseClient):
    """A client with its GNN, a copy of the encoder, and a proxy for every training node."""

    options: dict[str, Any]

    def begin(self) -> None:
        self.proxies = torch.full((len(self.y), self.options["hidden"]), 0.1).double()
        self.velocities: list[Tensor] | None = None

    def split(self, w: Tensor) -> list[Tensor]:
        h = self.options["hidden"]
        shapes = [(h, FEATURES), (h,), (CLASSES, h), (CLASSES,), (CLASSES, h), (CLASSES,)]
        return [part.view(shape) for part, shape in zip(w.split([torch.Size(s).numel() for s in shapes]), shapes)]

    def learn(self, w: Tensor, classes: Tensor) -> float:
        """Trains the GNN on labels and targets; `classes` are the proxies of classes."""
        w1, b1, w2, b2, w3, b3 = self.split(w)
        train, targets = self.view.train.tolist(), {}
        for v, x in enumerate(self.x_NF.double()):
            h = (w1 @ x + b1).relu()
            p = (w2 @ h + b2).softmax(0)
            s = sum(p[c] * classes[c] for c in range(CLASSES))
            if v in train:
                s = self.proxies[train.index(v)]
            if v in train or p.max() > self.options["threshold"]:
                targets[v] = (w3 @ (h + s) + b3).softmax(0)
        loss = torch.zeros(())
        for _ in range(EPOCHS):
            self.optimizer.zero_grad()
            logits = self.output().logits_NC
            loss = F.cross_entropy(logits[train], self.y) if train else torch.zeros(())
            if targets:
                own = logits.double().softmax(1)
                loss = loss + self.options["lam"] * sum(kl(q, own[v]) for v, q in targets.items()) / len(targets)
            if targets:
                loss.backward()
                self.optimizer.step()
        return float(loss.detach())

    def teach(self, w: Tensor) -> Tensor:
        """Trains encoder and own proxies; gives the encoder."""
        if not len(self.y):
            return w
        taught = self.output().logits_NC.detach().double()[self.view.train].softmax(1)
        parts = [part.clone().requires_grad_() for part in (w, self.proxies)]
        self.velocities = self.velocities or [torch.zeros_like(part) for part in parts]
        steps = [(LR, DECAY), (self.options["proxy_lr"], 0.0)]
        for _ in range(EPOCHS):
            w1, b1, w2, b2, w3, b3 = self.split(parts[0])
            h = (self.x_NF.double()[self.view.train] @ w1.t() + b1).relu()
            scored = ((h + parts[1]) @ w3.t() + b3).softmax(1)
            loss = F.cross_entropy(h @ w2.t() + b2, self.y)
            loss = loss + sum(kl(p, q) for p, q in zip(taught, scored)) / len(taught)
            gradients = torch.autograd.grad(loss, parts)
            for part, gradient, velocity, (lr, decay) in zip(parts, gradients, self.velocities, steps):
                velocity.mul_(MOMENTUM).add_(gradient + decay * part.detach())
                part.data -= lr * velocity
        self.proxies = parts[1].detach()
        return parts[0].detach()


@pytest.mark.exhaustive(2)
@pytest.mark.parametrize(
    ("model", "options"),
    [
        ({"name": "gcn", "hidden": 8, "head": "linear"}, {"threshold": 0.4, "hidden": 6, "proxy_lr": 2.0, "lam": 3.0}),
        ({"name": "gamlp", "hidden": 8}, {"threshold": 0.3, "hidden": 5}),
        ({"name": "gcn", "hidden": 8, "head": "linear"}, {"threshold": 1.0, "hidden": 5, "lam": 5.0}),
    ],
    ids=["gcn", "gamlp", "training nodes alone"],
)
def test_rounds_written_out(
    start: Start,
    views: Views,
    module_of: ModuleOf,
    unequal: dict[str, Any],
    model: dict[str, Any],
    options: dict[str, Any],
) -> None:
    algorithm = {"algorithm.name": "fedspray", **{f"algorithm.{name}": value for name, value in options.items()}}
    server = start({**unequal, **algorithm, "model": model, "train.dropout": 0.0})
    options = {**DEFAULTS, **options}
    clients = [Spraying(i, view, module_of(server, server._initial)) for i, view in enumerate(views(server))]
    for client in clients:
        client.options = options
        client.begin()
    w, h = server.state.server["w"].double(), options["hidden"]
    classes = torch.stack([torch.full((h,), 0.01 * c).double() for c in range(CLASSES)])
    torch.testing.assert_close(server.state.server["proto"].double(), classes)
    for number in range(1, server.plan.rounds + 1):
        line, cohort = server.round(), server.cohort(number)
        losses, encoders, own = {}, {}, {}
        for i in cohort:
            losses[i] = clients[i].learn(w, classes)
            encoders[i] = clients[i].teach(w)
            own[i] = clients[i].y.tolist()
        require_mean_loss(line, losses, [client.view for client in clients])
        rows = sum(len(y) for y in own.values())
        w = sum(len(own[i]) * encoders[i] for i in cohort) / rows if rows else w
        for c in range(CLASSES):
            means = []
            for i in cohort:
                mine = [s for s, label in zip(clients[i].proxies, own[i]) if label == c]
                if mine:
                    means.append((len(mine) / len(own[i]), torch.stack(mine).mean(0)))
            if means:
                classes[c] = sum(share * s for share, s in means) / sum(share for share, _ in means)
        held = server.state.server
        torch.testing.assert_close(held["w"].double(), w, rtol=1e-3, atol=1e-4)
        torch.testing.assert_close(held["proto"].double(), classes, rtol=1e-3, atol=1e-4)
        for i in cohort:
            kept = server.state.clients[i]
            torch.testing.assert_close(kept["model.w"].double(), clients[i].w, rtol=1e-3, atol=1e-4)
            assert ("proxy" in kept) == bool(own[i])
            if own[i]:
                torch.testing.assert_close(kept["proxy"].double(), clients[i].proxies, rtol=1e-3, atol=1e-4)
        sent = h * sum(len(set(y)) for y in own.values())
        assert line["bytes_up"] == 4 * (len(cohort) * (len(w) + 1 + CLASSES) + sent)
        assert line["bytes_down"] == 4 * len(cohort) * (len(w) + CLASSES * h)


def test_what_is_sure_is_taught_and_what_is_not_is_not(start: Start, unequal: dict[str, Any]) -> None:
    """A client without a training node learns where a node is sure, and only there."""
    keys = {**unequal, "algorithm.name": "fedspray", "model.name": "gcn"}
    for threshold, moved in ((0.0, True), (1.0, False)):
        server = start({**keys, "algorithm.threshold": threshold})
        for _ in range(server.plan.rounds):
            server.round()
        kept = server.state.clients[5]
        assert torch.equal(kept["model.w"], server._initial) != moved
