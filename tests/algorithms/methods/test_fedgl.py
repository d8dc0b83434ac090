"""FedGL in whole rounds written out, without its term, and at clients that have nearly nothing."""

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from support.fixtures import Check, Keys, Make, ModuleOf, Start
from support.written_rounds import require_model_bytes
from torch import Tensor, nn

from shoal.algorithms.models.layers.head import Output


@pytest.mark.parametrize(
    "more",
    [
        {},
        {"algorithm.pseudo": 2.0, "algorithm.threshold": 0.7, "model.name": "gamlp", "train.batch_size": 3},
        {"algorithm.name": "fedgl_moon", "algorithm.mu": 3.0, "algorithm.tau": 0.7},
        {"algorithm.name": "fedgl_moon", "algorithm.pseudo": 2.0, "algorithm.rows": "all", "model.name": "gamlp"},
    ],
)
def test_rounds_written_out(
    start: Start,
    patchy: Keys,
    plain_average: Make,
    module_of: ModuleOf,
    assert_averaged: Check,
    more: dict[str, Any],
) -> None:
    server = start({**patchy, "algorithm.name": "fedgl", "model.hidden": 8, **more})
    plain = plain_average(server)
    weight, threshold = more.get("algorithm.pseudo", 0.1), more.get("algorithm.threshold", 0.5)
    mu, tau = more.get("algorithm.mu", 1.0), more.get("algorithm.tau", 0.5)
    mu, of_all = mu * (more.get("algorithm.name") == "fedgl_moon"), "algorithm.rows" in more
    labelled = 0
    for number in range(1, 8):
        line, cohort = server.round(), server.cohort(number)
        told: dict[nn.Module, list[tuple[int, int]]] = {}
        drawn: dict[nn.Module, tuple[Tensor, list[Tensor]]] = {}
        for i in (i for i in cohort if i in plain.previous):
            view, module = plain.clients[i].view, module_of(server, plain.previous[i]).eval()
            found = []
            for row in sorted(set(range(view.nodes)) - set(view.train.tolist())):
                with torch.no_grad():
                    p = module([view.hop(k)[[row]] for k in module.inputs]).logits_NC[0].softmax(0).tolist()
                if max(p) >= threshold:
                    found.append((row, p.index(max(p))))
            told[plain.clients[i].module] = found
            rows = torch.arange(view.nodes) if of_all else view.train
            with torch.no_grad():
                models = (module_of(server, w).eval() for w in (plain.w, plain.previous[i]))
                zs = [F.normalize(m([view.hop(k)[rows] for k in m.inputs]).embedding_NH) for m in models]
            drawn[plain.clients[i].module] = rows, zs
            labelled += len(found)
            assert len(found) < view.nodes - len(view.train)

        def loss(
            module: nn.Module,
            out: Output,
            y: Tensor,
            told: Any = told,
            drawn: Any = drawn,
            clients: Any = plain.clients,
        ) -> Tensor:
            total = F.cross_entropy(out.logits_NC, y)
            (view,) = (client.view for client in clients if client.module is module)
            if told.get(module):
                rows, classes = map(list, zip(*told[module]))
                more_out = module([view.hop(k)[rows] for k in module.inputs])
                terms = [-row.log_softmax(0)[c] for row, c in zip(more_out.logits_NC, classes)]
                total = total + weight * torch.stack(terms).mean()
            if mu and module in drawn:
                rows, zs = drawn[module]
                z = (module([view.hop(k)[rows] for k in module.inputs]) if of_all else out).embedding_NH
                near, far = ((F.normalize(z) * other).sum(1) / tau for other in zs)
                total = total - mu * (near.exp() / (near.exp() + far.exp())).log().mean()
            return total

        plain.round(number, cohort, loss, more.get("train.batch_size", 100))
        assert_averaged(server, plain)
        plain.require_previous(server)
        require_model_bytes(line, len(plain.w))
    assert labelled


def test_among_all_clients_fedgta_averages_as_fedgl_does(run: Start) -> None:
    keys = {"train.dropout": 0.0, "algorithm.threshold": 0.3, "algorithm.pseudo": 1.0, "model.name": "gcn"}
    plain = run({**keys, "algorithm.name": "fedgl", "algorithm.weight": "uniform"}, rounds=4)
    mixed = {**keys, "algorithm.name": "fedgl_fedgta", "algorithm.eps": -1.0, "algorithm.confidence": "uniform"}
    all_alike = run(mixed, rounds=4)
    assert len(all_alike.state.inboxes) == 6
    for inbox in all_alike.state.inboxes.values():
        torch.testing.assert_close(inbox["w"], plain.state.server["w"], rtol=1e-3, atol=1e-5)
    for i, kept in plain.state.clients.items():
        assert ("previous" in kept) == ("previous" in all_alike.state.clients[i])
        if "previous" in kept:
            torch.testing.assert_close(all_alike.state.clients[i]["previous"], kept["previous"], rtol=1e-3, atol=1e-5)
    some = run({**mixed, "algorithm.eps": 0.95}, rounds=4).state.inboxes
    assert any(not torch.allclose(some[0]["w"], inbox["w"], rtol=1e-3, atol=1e-5) for inbox in some.values())
