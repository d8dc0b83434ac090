"""Local, Global, FedAvg, FedProx, FedOPT and MOON in whole rounds written out in plain torch."""

import math
from collections.abc import Mapping
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from support.dense_graphs import join, smoothing
from support.fixtures import Check, CountsOf, Keys, Make, ModuleOf, PlainClients, Start, Views
from support.written_rounds import require_model_bytes
from torch import Tensor, nn

from shoal.algorithms.methods.fedopt import FedOPT
from shoal.algorithms.models.layers.head import Output
from shoal.algorithms.rng import key
from shoal.storage.options.split_codes import TRAIN

near = partial(torch.testing.assert_close, rtol=1e-4, atol=1e-5)


@pytest.mark.exhaustive(2)
@pytest.mark.parametrize("weight", [None, "nodes", "train", "uniform"])
def test_fedavg(
    start: Start,
    unequal: dict[str, Any],
    recorded: Any,
    torch_clients: PlainClients,
    counts_of: CountsOf,
    weight: str | None,
) -> None:
    server = start({**unequal, **({"algorithm.weight": weight} if weight else {})}, pool=recorded.on)
    clients = torch_clients(server)
    w = server._initial.double()
    deployed: dict[int, Tensor] = {}
    for number in range(1, server.plan.rounds + 1):
        server.round()
        cohort, total, weights = server.cohort(number), torch.zeros_like(w), 0.0
        for i in cohort:
            clients[i].load(w)
            clients[i].train(number)
            view = clients[i].view
            n = {"nodes": view.nodes, "train": len(view.train), "uniform": 1}[weight or "nodes"]
            n *= len(view.train) > 0
            near(recorded.downloads[i]["w"].double(), w)
            sent, with_weight = recorded.weighted[i]["w"]
            assert with_weight == n
            if n:
                near(sent.double() / n, clients[i].w)
            clients[i].require_kept(server.state.clients[i])
            total, weights = total + n * clients[i].w, weights + n
        assert (weights == 0) == (cohort == [5])
        w = total / weights if weights else w
        now = server.state.server["w"]
        near(now.double(), w)
        deployed |= dict.fromkeys(cohort, now)
        for i, client in enumerate(clients):
            scores = {"global": now, "deployed": deployed.get(i, server._initial)}
            for scope, model in scores.items():
                expected = counts_of(server, client.view, model)
                np.testing.assert_array_equal(server.state.scores[scope][i], expected, err_msg=f"{number} {scope} {i}")


def test_local(start: Start, unequal: Keys, recorded: Any, torch_clients: PlainClients, counts_of: CountsOf) -> None:
    server = start({**unequal, "algorithm.name": "local"}, pool=recorded.on)
    clients, met = torch_clients(server), set()
    for number in range(1, server.plan.rounds + 1):
        line = server.round()
        assert (line["bytes_up"], line["bytes_down"]) == (0, 0)
        assert not any(recorded.downloads.values())
        assert not any(recorded.uploads.values())
        met |= set(server.cohort(number))
        for i in server.cohort(number):
            clients[i].train(number)
        assert server.state.clients.keys() == met
        for i, client in enumerate(clients):
            if i in met:
                kept = server.state.clients[i]
                torch.testing.assert_close(kept["model.w"].double(), client.w, rtol=1e-4, atol=1e-5)
                client.require_kept(kept)
            counts = counts_of(server, client.view, kept["model.w"] if i in met else server._initial)
            np.testing.assert_array_equal(server.state.scores["deployed"][i], counts)
            if i in met:
                np.testing.assert_array_equal(server.state.scores["trained"][i], counts)


def test_global(start: Start, unequal: dict[str, Any], views: Views, module_of: ModuleOf) -> None:
    """One client on the union graph, all of it written out from the files: edges between clients, hops, rows."""
    server = start({**unequal, "algorithm.name": "global", "participation.trace": None})
    x, y, split, edges = (np.load(f"{unequal['data.path']}/{name}.npy") for name in ("x", "y", "split", "edge_index"))
    operator = smoothing(join(len(x), edges.T))
    # What is dropped depends on the order of the rows.
    (whole,) = views(server)
    rows = whole.node[whole.train.numpy()]
    assert set(rows) == set(np.flatnonzero(split == TRAIN))
    hops = [torch.from_numpy(np.linalg.matrix_power(operator, k) @ x)[rows].float() for k in range(3)]
    module = module_of(server, server._initial)
    optimizer = torch.optim.SGD(module.parameters(), lr=0.05, momentum=0.9, weight_decay=0.01)
    for number in range(1, 4):
        server.round()
        torch.manual_seed(key(0, number, 0, "train"))
        for _ in range(2):
            optimizer.zero_grad()
            F.cross_entropy(module([hops[k] for k in module.inputs]).logits_NC, torch.from_numpy(y[rows])).backward()
            optimizer.step()
        w = nn.utils.parameters_to_vector(module.parameters()).detach()
        torch.testing.assert_close(server.state.clients[0]["model.w"], w, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("more", [{}, {"algorithm.mu": 2.0, "algorithm.weight": "train", "train.batch_size": 2}])
def test_fedprox(start: Start, patchy: Keys, plain_average: Make, assert_averaged: Check, more: Keys) -> None:
    server = start({**patchy, "algorithm.name": "fedprox", "model.hidden": 8, **more})
    plain, mu = plain_average(server, more.get("algorithm.weight", "nodes")), more.get("algorithm.mu", 0.01)

    def loss(module: nn.Module, out: Output, y: Tensor) -> Tensor:
        w = torch.cat([p.flatten() for p in module.parameters()])
        moved = [(now - sent) ** 2 for now, sent in zip(w, plain.w)]
        return F.cross_entropy(out.logits_NC, y) + mu * 0.5 * torch.stack(moved).sum()

    for number in range(1, 8):
        line, cohort = server.round(), server.cohort(number)
        plain.round(number, cohort, loss, more.get("train.batch_size", 100))
        assert_averaged(server, plain)
        require_model_bytes(line, len(plain.w))


@pytest.mark.exhaustive(2)
@pytest.mark.parametrize(
    "more",
    [
        {},
        {"algorithm.mu": 4.0, "algorithm.tau": 0.2, "algorithm.weight": "train", "model.name": "gamlp"},
        {"algorithm.rows": "all", "algorithm.mu": 2.0},
    ],
)
def test_moon(
    start: Start, patchy: Keys, plain_average: Make, module_of: ModuleOf, assert_averaged: Check, more: Keys
) -> None:
    server = start({**patchy, "algorithm.name": "moon", "model.hidden": 8, **more})
    plain = plain_average(server, more.get("algorithm.weight", "nodes"))
    mu, tau = more.get("algorithm.mu", 1.0), more.get("algorithm.tau", 0.5)
    everybody = more.get("algorithm.rows") == "all"

    for number in range(1, 8):
        line, cohort = server.round(), server.cohort(number)
        constant = {}
        for i in (i for i in cohort if i in plain.previous):
            view, found = plain.clients[i].view, []
            for w in (plain.w, plain.previous[i]):
                module = module_of(server, w).eval()
                with torch.no_grad():
                    rows = torch.arange(view.nodes) if everybody else view.train
                    found.append(module([view.hop(k)[rows] for k in module.inputs]).embedding_NH)
            constant[plain.clients[i].module] = found
            assert len(found[0]) == (view.nodes if everybody else len(view.train))

        def loss(module: nn.Module, out: Output, y: Tensor, constant: dict[nn.Module, Any] = constant) -> Tensor:
            total = F.cross_entropy(out.logits_NC, y)
            if module not in constant:
                return total
            terms = []
            if everybody:
                (view,) = (client.view for client in plain.clients if client.module is module)
                out = module([view.hop(k) for k in module.inputs])
            for z, sent, before in zip(out.embedding_NH, *constant[module], strict=True):
                near, far = (torch.exp(F.cosine_similarity(z, other, dim=0) / tau) for other in (sent, before))
                terms.append(-torch.log(near / (near + far)))
            return total + mu * torch.stack(terms).mean()

        plain.round(number, cohort, loss)
        assert_averaged(server, plain)
        plain.require_previous(server)
        require_model_bytes(line, len(plain.w))


OTHER = {"eta": 0.3, "beta1": 0.6, "beta2": 0.7, "tau": 0.02, "momentum": 0.5}


def stepped(kind: str, o: Mapping[str, float], w: list[float], m: list[float], v: list[float], d: list[float]) -> None:
    """One step of the server on lists of numbers."""
    for k, change in enumerate(d):
        if kind == "momentum":
            m[k] = o["momentum"] * m[k] + change
            w[k] += o["eta"] * m[k]
            continue
        m[k] = o["beta1"] * m[k] + (1 - o["beta1"]) * change
        if kind == "adam":
            v[k] = o["beta2"] * v[k] + (1 - o["beta2"]) * change**2
        elif kind == "adagrad":
            v[k] += change**2
        elif v[k] > change**2:
            v[k] -= (1 - o["beta2"]) * change**2
        elif v[k] < change**2:
            v[k] += (1 - o["beta2"]) * change**2
        w[k] += o["eta"] * m[k] / (math.sqrt(v[k]) + o["tau"])


@pytest.mark.exhaustive(3)
@pytest.mark.parametrize("options", [{}, OTHER])
@pytest.mark.parametrize("kind", ["momentum", "adam", "yogi", "adagrad"])
def test_fedopt(
    start: Start, patchy: Keys, plain_average: Make, assert_averaged: Check, kind: str, options: Mapping[str, float]
) -> None:
    chosen = {f"algorithm.{name}": value for name, value in options.items()}
    keys = {**patchy, "algorithm.name": "fedopt", "model.hidden": 3, "algorithm.weight": "train", **chosen}
    server = start({**keys, "algorithm.optimizer": kind} if kind != "adam" or options else keys)
    plain = plain_average(server, "train")
    o = {"eta": 0.01, "beta1": 0.9, "beta2": 0.99, "tau": 1e-3, "momentum": 0.9, **options}
    w, m, v = plain.w.tolist(), [0.0] * len(plain.w), [o["tau"] ** 2] * len(plain.w)
    assert ("v" in server.state.server) == (kind != "momentum")
    for number in range(1, 8):
        line, cohort = server.round(), server.cohort(number)
        before = plain.w
        plain.round(number, cohort, lambda module, out, y: F.cross_entropy(out.logits_NC, y))
        # Round 4 has nobody with a training row: nothing decays, and momentum moves nothing.
        assert (cohort == [3]) == torch.equal(before, plain.w)
        if cohort != [3]:
            stepped(kind, o, w, m, v, (plain.w - before).tolist())
        plain.w = torch.tensor(w)
        assert_averaged(server, plain)
        held = server.state.server
        torch.testing.assert_close(held["m"], torch.tensor(m), rtol=1e-3, atol=1e-5)
        if kind != "momentum":
            torch.testing.assert_close(held["v"], torch.tensor(v), rtol=1e-3, atol=1e-7)
        require_model_bytes(line, len(w))


def test_yogi_where_moment_and_change_are_equal() -> None:
    server = {"w": torch.zeros(1), "m": torch.zeros(1), "v": torch.ones(1)}
    FedOPT(optimizer="yogi")._step(server, torch.ones(1))
    assert server["v"].tolist() == [1]
