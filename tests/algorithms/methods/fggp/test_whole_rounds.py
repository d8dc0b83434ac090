"""Whole rounds of FGGP against the small version beside this file."""

from dataclasses import asdict
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from support.fixtures import Start, Views
from support.small_fggp import Entries, PlainClient, renewed, summed_up
from torch import nn

from shoal.algorithms.methods.fggp.fggp import FGGP
from shoal.algorithms.models.build import build
from shoal.storage.store.view import View

CLASSES, FEATURES, HOPS = 4, 5, 2
DEFAULTS = asdict(FGGP())
GCN = {"name": "gcn", "hidden": 8, "norm": "batch", "head": "conv"}
# Every option is somewhere another one than by default. Round 4 has nobody who trains.
OPTIONS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "by default": ({"hidden": 6}, GCN),
    "as its code": (
        {"hidden": 6, "vote": "softmax_sum", "bank": "ring", "slots": 3, "k": 5, "similarity": "max", "finch_min": 1}
        | {"vote_temperature": 0.2, "knn_every": 2, "random_pairs": 2, "gamma": 3.0},
        GCN,
    ),
    "as written": (
        {"hidden": 5, "gkic": "gen_only", "contrast_form": "literal", "draw": "gumbel", "vote": "sum_cos", "k": 4}
        | {"cluster": "none", "edge_temperature": 0.5, "lam": 0.3, "tau": 0.2, "beta": 0.7, "weight": "uniform"},
        {"name": "gcn", "hidden": 8},
    ),
    "neighbours alone": (
        {"gkic": "knn_only", "head_mode": "personal", "vote": "class_avg", "cluster": "mean", "neighbours": 2}
        | {"knn_every": 3, "need_label": False, "weight": "train"},
        {"name": "sage", "hidden": 8},
    ),
    "prototypes alone": ({"gkic": "off", "bank": "ring", "slots": 2}, GCN),
    "prototypes and classifiers": ({"gkic": "off", "head_mode": "average", "vote": "class_avg"}, {"name": "gamlp"}),
    "classifiers alone": ({"hidden": 6, "fcpp": False, "head_mode": "average", "gamma": 0.0}, GCN),
}  # fmt: skip


@pytest.mark.exhaustive(3)
@pytest.mark.parametrize(("name", "state"), [*((name, "keep") for name in OPTIONS), ("by default", "reset")])
def test_rounds(name: str, state: str, start: Start, views: Views, unequal: dict[str, Any]) -> None:
    """Clients of unequal sizes come and go; one, once alone, has no training node."""
    changed, model = OPTIONS[name]
    o = SimpleNamespace(**{**DEFAULTS, **changed})
    server = start({**unequal, "algorithm": {"name": "fggp", **vars(o)}, "model": model, "train.opt_state": state})
    more = {key: value for key, value in model.items() if key != "name"}
    job, kinds = server.job, server._built
    generates = o.gkic in ("both", "gen_only")

    def a_client(i: int, view: View) -> PlainClient:
        module = build(model["name"], FEATURES, CLASSES, HOPS, 0.5, more)
        nn.utils.vector_to_parameters(job.initial(kinds["model"][0], "model", i).clone(), module.parameters())
        generator: nn.Module = nn.Linear(1, 1)
        if generates:
            widths = ((FEATURES, o.hidden), (o.hidden, o.hidden))
            generator = nn.Sequential(*(nn.Linear(*pair, bias=False) for pair in widths))
            w = job.initial(kinds["generator"][0], "generator", i).clone()
            nn.utils.vector_to_parameters(w, generator.parameters())
        return PlainClient(i, view, module, generator, o, state == "reset")

    clients = [a_client(i, view) for i, view in enumerate(views(server))]
    w, generator_w = clients[0].w, clients[0].generator_w
    torch.testing.assert_close(server.state.server["w"].double(), w, rtol=0, atol=0)
    bank: Entries = []
    served: dict[int, Any] = {}
    for number in range(1, server.plan.rounds + 1):
        line, cohort = server.round(), server.cohort(number)
        down = 4 * (len(w) + generates * len(generator_w)) + 4 * (o.gkic in ("both", "knn_only"))
        down += sum(4 * (len(vector) + 1) for _, vector in bank)
        losses, sent, up, total, generators, weight = {}, [], 0, 0, 0, 0
        for i in cohort:
            client = clients[i]
            client.receive(w, generator_w)
            losses[i] = client.visit(number)
            n = {"nodes": len(client.a_NN), "train": len(client.train), "uniform": 1}[o.weight] * bool(client.train)
            total, generators, weight = total + n * client.w, generators + n * client.generator_w, weight + n
            entries = client.sent() if o.fcpp else {}
            sent += [(c, vector) for c, (vector, _) in entries.items()]
            up += 4 * (len(w) + generates * len(generator_w)) + 4 + sum(4 * len(v) + 8 for v, _ in entries.values())
            if o.head_mode == "personal":
                client.head = [p.detach().clone() for p in client.module.head.parameters()]
            trained = client.counts(bank, CLASSES)
            np.testing.assert_array_equal(server.state.scores["trained"][i], trained)
        assert (line["bytes_up"], line["bytes_down"]) == (up, len(cohort) * down)
        rows = {i: len(clients[i].train) for i in cohort if clients[i].train}
        if rows:
            expected = sum(n * losses[i] for i, n in rows.items()) / sum(rows.values())
            assert line["loss"] == pytest.approx(expected, rel=1e-3)
        if weight:
            w, generator_w = total / weight, generators / weight
        bank = renewed(bank, summed_up(sent, o, CLASSES), o) if sent else bank
        # Who took part is given the new model.
        served.update(dict.fromkeys(cohort, (w, generator_w, bank)))
        torch.testing.assert_close(server.state.server["w"].double(), w, rtol=1e-4, atol=1e-5)
        if generates:
            torch.testing.assert_close(server.state.server["generator"].double(), generator_w, rtol=1e-4, atol=1e-5)
        if o.fcpp:
            assert server.state.server["bank.class"].tolist() == [c for c, _ in bank]
            vectors = torch.stack([vector for _, vector in bank])
            torch.testing.assert_close(server.state.server["bank"], vectors, rtol=1e-4, atol=1e-5)
            assert line["notes"]["bank"] == len(bank)
        for i, client in enumerate(clients):
            kept = server.state.clients.get(i, {})
            assert ("knn" in kept) == (client.near is not None)
            if client.near is not None:
                assert int(kept["knn.round"]) == client.near[0]
                padded = [[*near, *[-1] * (o.neighbours - len(near))] for near in client.near[1]]
                assert kept["knn"].dtype == torch.int32
                assert kept["knn"].tolist() == padded
            assert ("head" in kept) == (client.head is not None)
            if client.head is not None:
                head = torch.cat([p.flatten() for p in client.head])
                torch.testing.assert_close(kept["head"], head, rtol=1e-4, atol=1e-5)
            if i in served:
                client.receive(*served[i][:2])
                np.testing.assert_array_equal(server.state.scores["served"][i], client.counts(served[i][2], CLASSES))
            client.receive(w, generator_w, kept_head=False)
            np.testing.assert_array_equal(server.state.scores["global"][i], client.counts(bank, CLASSES))
