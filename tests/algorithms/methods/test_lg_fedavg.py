"""LG-FedAvg in whole rounds written out, and methods that take a classifier of messages apart."""

import copy
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from support.errors import refused
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
def test_lg_fedavg(
    start: Start, patchy: Keys, plain_clients: PlainClients, counts_of: CountsOf, weight: str | None, path: str
) -> None:
    keys = {**patchy, **NAME, "model.hidden": 8, "engine.trainer": path}
    server = start({**keys, "algorithm.weight": weight} if weight else keys)
    clients = plain_clients(server)
    assert torch.equal(server.state.server["w"], read(clients[0].module))
    shared, deployed = read(clients[0].module), dict[int, Tensor]()
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
        assert line["scopes"].keys() == {"trained", "deployed"}
        deployed |= dict.fromkeys(cohort, shared)
        for i, client in enumerate(clients):
            module = copy.deepcopy(client.module)
            if i in deployed:
                write(module, deployed[i])
            w = nn.utils.parameters_to_vector(module.parameters()).detach()
            np.testing.assert_array_equal(server.state.scores["deployed"][i], counts_of(server, client.view, w))
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


NAMES = ("gcn", "sage", "gat", "gin", "gcnii")
# Parameters of the last layer for each, five features, four classes, width 8.
SIZES = {"gcn": 36, "gcnii": 36, "sage": 36 + 32, "gat": 36 + 8, "gin": 36 + 64 + 8 + 1}


def model(name: str) -> Keys:
    return {"name": name, "hidden": 8, "head": "conv", **({"heads": 2} if name == "gat" else {})}


@pytest.mark.exhaustive(2)
@pytest.mark.parametrize("name", NAMES)
def test_lg_fedavg_shares_the_whole_last_layer(run: Start, start: Start, name: str) -> None:
    keys = {"algorithm.name": "lg_fedavg", "model": model(name)}
    first = start(keys)
    assert len(first.state.server["w"]) == SIZES[name]
    server = run(keys, rounds=2)
    bodies, tops = [], []
    for client in range(5):
        flat = server._built["model"][0].flat
        w = server.state.clients[client]["model.w"]
        flat.load(w)
        top = {key for key, _ in flat.module.named_parameters() if key.startswith("head.")}
        tops.append(torch.cat([p.detach().flatten() for key, p in flat.module.named_parameters() if key in top]))
        bodies.append(torch.cat([p.detach().flatten() for key, p in flat.module.named_parameters() if key not in top]))
    torch.testing.assert_close(server.state.server["w"], torch.stack(tops).mean(0))
    assert not torch.equal(bodies[0], bodies[1])


@pytest.mark.exhaustive(3)
@pytest.mark.parametrize(("method", "keeps"), [("gcfl_plus", "classifier"), ("fggp", "head")])
@pytest.mark.parametrize("name", ["sage", "gat", "gin"])
def test_classifiers_kept_by_clients_are_whole(run: Start, method: str, keeps: str, name: str) -> None:
    more = {"algorithm.head_mode": "personal", "algorithm.gkic": "off"} if method == "fggp" else {}
    server = run({"algorithm.name": method, "model": model(name), **more}, rounds=2)
    kept = [tree[keeps] for tree in server.state.clients.values() if keeps in tree]
    assert kept
    assert {len(top) for top in kept} == {SIZES[name]}
    assert not torch.equal(kept[0], kept[1])


@pytest.mark.exhaustive(2)
@pytest.mark.parametrize("method", ["fednh", "fedgen"])
@pytest.mark.parametrize("name", NAMES)
def test_methods_that_read_a_classifier_s_weight(start: Start, method: str, name: str) -> None:
    keys = {"algorithm.name": method, "model": model(name)}
    if name in ("gcn", "gcnii"):
        start(keys).round()
        return
    with refused("model.head", says=f"a {name} with head: conv"):
        start(keys)


def test_classifiers_of_one_size_are_averaged(start: Start) -> None:
    models = [model("gcn"), {"name": "gin", "hidden": 8}, model("gcnii")]
    start({"algorithm.name": "lg_fedavg", "model": models}).round()
    with refused("model.head", says="that of gcn has 36 parameters and that of sage 68"):
        start({"algorithm.name": "lg_fedavg", "model": [model("gcn"), model("sage")]})
