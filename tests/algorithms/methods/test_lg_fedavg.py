"""LG-FedAvg in whole rounds written out, between different models, and in bytes."""

import copy
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from support.fixtures import CountsOf, Keys, PlainClients, Start
from torch import Tensor, nn

NAME = {"algorithm.name": "lg_fedavg"}
MODELS = [
    {"name": "gcn", "hidden": 6, "init": "own"},
    {"name": "gamlp", "hidden": 8},
    {"name": "sgc", "layers": 2, "hidden": 5},
]


def top_of(module: nn.Module) -> nn.Linear:
    return module.head.linears[-1]  # type: ignore


def read(module: nn.Module) -> Tensor:
    """Weight and bias of a classifier as they are sent."""
    return torch.cat([*top_of(module).weight.detach(), top_of(module).bias.detach()])


def write(module: nn.Module, classifier: Tensor) -> None:
    top, classes = top_of(module), len(top_of(module).bias)
    with torch.no_grad():
        top.weight.copy_(classifier[:-classes].reshape(top.weight.shape))
        top.bias.copy_(classifier[-classes:])


@pytest.mark.parametrize(("weight", "path"), [(None, "autograd"), ("train", "analytic"), ("uniform", "batched")])
def test_rounds_written_out(
    start: Start, patchy: Keys, plain_clients: PlainClients, counts_of: CountsOf, weight: str | None, path: str
) -> None:
    keys = {**patchy, **NAME, "model.hidden": 8, "engine.trainer": path}
    server = start({**keys, "algorithm.weight": weight} if weight else keys)
    clients = plain_clients(server)
    assert torch.equal(server.state.server["w"], read(clients[0].module))
    shared, served = read(clients[0].module), dict[int, Tensor]()
    for number in range(1, 8):
        line, total, count = server.round(), torch.zeros_like(shared), 0
        cohort = server.cohort(number)
        for i in cohort:
            client, rows = clients[i], len(clients[i].y)
            write(client.module, shared)
            client.train(number, lambda out, y: F.cross_entropy(out.logits_NC, y))
            n = {"nodes": 14, "train": rows, "uniform": 1}[weight or "nodes"] * (rows > 0)
            total, count = total + n * read(client.module), count + n
            torch.testing.assert_close(server.state.clients[i]["model.w"], client.w, rtol=1e-3, atol=1e-5)
        assert (count == 0) == (cohort == [3])
        shared = total / count if count else shared
        torch.testing.assert_close(server.state.server["w"], shared, rtol=1e-3, atol=1e-5)
        assert (line["bytes_up"], line["bytes_down"]) == (len(cohort) * 4 * (4 * 9 + 1), len(cohort) * 4 * 4 * 9)
        assert line["scopes"].keys() == {"trained", "served"}
        served |= dict.fromkeys(cohort, shared)
        for i, client in enumerate(clients):
            deployed = copy.deepcopy(client.module)
            if i in served:
                write(deployed, served[i])
            w = nn.utils.parameters_to_vector(deployed.parameters()).detach()
            np.testing.assert_array_equal(server.state.scores["served"][i], counts_of(server, client.view, w))
            if i in cohort:
                now = counts_of(server, client.view, client.w)
                np.testing.assert_array_equal(server.state.scores["trained"][i], now)


@pytest.mark.parametrize("first", [0, 1, 2])
def test_bodies_stay_at_home(run: Start, recorded: Any, start: Start, first: int) -> None:
    """Of three kinds of models only the classifier is downloaded and averaged; client 5 does not count."""
    kinds = [*MODELS[first:], *MODELS[:first]]
    server = start({**NAME, "model": kinds, "heterogeneity.embedding": 7, "rounds": 2}, pool=recorded.on)
    modules = [copy.deepcopy(server._built["model"][i % 3].flat.module) for i in range(6)]
    nn.utils.vector_to_parameters(server._initial.clone(), modules[0].parameters())
    assert torch.equal(server.state.server["w"], read(modules[0]))
    server.round()
    for module, (_, kept) in zip(modules, sorted(server.state.clients.items())):
        nn.utils.vector_to_parameters(kept["model.w"].clone(), module.parameters())
    expected = torch.stack([read(module) for module in modules[:5]]).mean(0)
    torch.testing.assert_close(server.state.server["w"], expected)
    before = server.state.server["w"]
    server.round()
    assert all(
        torch.equal(down["classifier"], before) and down.keys() == {"classifier"}
        for down in recorded.downloads.values()
    )
    # Without a training node, it has its body and what it was sent.
    write(modules[5], before)
    kept = server.state.clients[5]["model.w"]
    assert torch.equal(kept, nn.utils.parameters_to_vector(modules[5].parameters()).detach())
