"""SCAFFOLD and FedDC by recorded gradients, under momentum, weight decay, batches and dropout, beside plain torch."""

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from support.fixtures import Keys, ModuleOf, Start, Views
from torch import Tensor, nn
from torch.nn.utils import parameters_to_vector, vector_to_parameters

from shoal.algorithms.rng import key
from shoal.engine.rounds.server import Server
from shoal.storage.store.view import View

LR, EPOCHS, SIZE, ALPHA = 0.05, 2, 2, 0.3


class PlainClient:
    """A client as torch alone has it: one module and one optimizer for the whole run."""

    def __init__(self, number: int, view: View, module: nn.Module) -> None:
        self.number, self.view, self.module = number, view, module
        self.optimizer = torch.optim.SGD(module.parameters(), lr=LR, momentum=0.9, weight_decay=0.01)
        zero = torch.zeros_like(self.w)
        self.variate, self.drift, self.update = zero, zero.clone(), zero.clone()

    @property
    def w(self) -> Tensor:
        return parameters_to_vector(self.module.parameters()).detach().clone()

    def train(self, round_number: int, w: Tensor, correction: Tensor, penalty: float = 0.0) -> Tensor:
        """Trains from `w`, every gradient with correction + penalty (theta - w); gives the mean of the loss alone."""
        vector_to_parameters(w.clone(), self.module.parameters())
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
) -> Callable[[Keys], tuple[Server, list[PlainClient]]]:
    """A server of a method, and its clients in plain torch."""
    train = {"optimizer": "sgd", "lr": LR, "momentum": 0.9, "weight_decay": 0.01, "dropout": 0.5, "epochs": EPOCHS}
    keys = {**patchy, "train": {**train, "batch_size": SIZE}, "model.name": "mlp", "model.hidden": 8, "model.layers": 2}

    def begun(algorithm: Keys) -> tuple[Server, list[PlainClient]]:
        server = start({**keys, "algorithm": algorithm})
        return server, [
            PlainClient(i, view, module_of(server, server._initial)) for i, view in enumerate(views(server))
        ]

    return begun


def check(found: Tensor, wanted: Tensor) -> None:
    torch.testing.assert_close(found, wanted, rtol=1e-3, atol=1e-5)


def test_scaffold(begun: Callable[[Keys], tuple[Server, list[PlainClient]]]) -> None:
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
        check(server.state.server["w"], w)
        check(server.state.server["c"], c)
        check(server.state.server["c"], torch.stack([client.variate for client in able]).mean(0))


def test_feddc(begun: Callable[[Keys], tuple[Server, list[PlainClient]]]) -> None:
    server, clients = begun({"name": "feddc", "alpha": ALPHA})
    w, g = server._initial.clone(), torch.zeros_like(server._initial)
    for number in range(1, 8):
        server.round()
        cohort = [clients[i] for i in server.cohort(number) if len(clients[i].view.train)]
        sent, updates = [], []
        for client in cohort:
            mean = client.train(number, w, ALPHA * client.drift + client.update - g, ALPHA)
            sent.append(client.w + client.drift)
            client.drift, client.update = client.drift + client.w - w, -mean
            updates.append(client.update)
        if cohort:
            w, g = torch.stack(sent).mean(0), torch.stack(updates).mean(0)
        check(server.state.server["w"], w)
        check(server.state.server["g"], g)
        for i, state in server.state.clients.items():
            if len(clients[i].view.train):
                check(state["drift"], clients[i].drift)
