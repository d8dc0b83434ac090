"""MOON in whole rounds written out, by hand, and without its term."""

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from support.fixtures import Check, Keys, Make, ModuleOf, Start
from torch import Tensor, nn

from shoal.algorithms.models.layers.output import Output


@pytest.mark.parametrize(
    "more",
    [
        {},
        {"algorithm.mu": 4.0, "algorithm.tau": 0.2, "algorithm.weight": "train", "model.name": "gamlp"},
        {"algorithm.rows": "all", "algorithm.mu": 2.0},
    ],
)
def test_rounds_written_out(
    start: Start, patchy: Keys, plain_average: Make, module_of: ModuleOf, assert_averaged: Check, more: Keys
) -> None:
    server = start({**patchy, "algorithm.name": "moon", "model.hidden": 8, **more})
    plain = plain_average(server, more.get("algorithm.weight", "nodes"))
    mu, tau = more.get("algorithm.mu", 1.0), more.get("algorithm.tau", 0.5)
    everybody = more.get("algorithm.rows") == "all"
    previous: dict[int, Tensor] = {}

    for number in range(1, 8):
        line, cohort = server.round(), server.cohort(number)
        constant = {}
        for i in (i for i in cohort if i in previous):
            view, found = plain.clients[i].view, []
            for w in (plain.w, previous[i]):
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
        previous |= {i: plain.clients[i].w for i in cohort if len(plain.clients[i].y)}
        assert_averaged(server, plain)
        kept = {i: state["previous"] for i, state in server.state.clients.items() if "previous" in state}
        assert kept.keys() == previous.keys()
        for i, w in previous.items():
            torch.testing.assert_close(kept[i], w, rtol=1e-3, atol=1e-4)
        p = len(plain.w)
        assert (line["bytes_up"], line["bytes_down"]) == (len(cohort) * 4 * (p + 1), len(cohort) * 4 * p)
