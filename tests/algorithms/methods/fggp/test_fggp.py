"""FGGP in whole rounds against the small version, without its parts, and on graphs that have nearly nothing."""

from dataclasses import asdict
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from support.errors import refused
from support.fixtures import MakeClient, MakeView, Start, Views
from support.same_bits import assert_same_runs, assert_same_scores
from support.small_fggp import Entries, PlainClient, newest, summed_up
from support.written_rounds import require_counts, require_mean_loss
from torch import nn

from shoal.algorithms.client import Client, ClientModel, FlatModel
from shoal.algorithms.methods.fggp import fggp
from shoal.algorithms.methods.fggp.fggp import FGGP, Received
from shoal.algorithms.methods.fggp.prototypes import Bank
from shoal.algorithms.models.build import build
from shoal.algorithms.models.gnn.topology import Topology
from shoal.algorithms.protocol import MODEL
from shoal.algorithms.rng import random_of
from shoal.algorithms.train_options import TrainOptions
from shoal.algorithms.training.local_training import LocalTrainer
from shoal.storage.shards.view import View

GCN = {"model.name": "gcn", "model.norm": "batch", "model.head": "conv"}
SGD = {"train.optimizer": "sgd", "train.lr": 0.05, "train.momentum": 0.9, "participation.ratio": 0.7}
KEYS: dict[str, Any] = {**GCN, **SGD, "algorithm.name": "fggp", "algorithm.hidden": 6, "algorithm.knn_every": 2}


def test_without_its_parts_it_is_fedavg_to_the_bit(run: Start) -> None:
    off = {"algorithm.gkic": "off", "algorithm.fcpp": False, "algorithm.head_mode": "average"}
    for model in (GCN, {"model.name": "gamlp"}):
        found = run({**SGD, **model, **off, "algorithm.name": "fggp"}, rounds=3)
        expected = run({**SGD, **model}, rounds=3)
        assert_same_runs(expected, found)
        assert_same_scores(expected, found)


def client_of(view: View, make_client: MakeClient, method: FGGP, name: str = "gcn", **options: Any) -> Client:
    torch.manual_seed(0)
    more = {"norm": "batch", "head": "conv"} if name == "gcn" else {}
    client = make_client(view, build(name, view.features, view.classes, 0, 0.3, {"hidden": 8, **more, **options}))
    models = {MODEL: client.model}
    if "generator" in method.models():
        flat = FlatModel(Topology(view.features, view.classes, 0, 0.0, hidden=method.hidden))
        models["generator"] = ClientModel(flat, view, random_of(client.random, "generator"))
    return Client(client.info, view, models, {}, {}, client.random)


def trained(client: Client, method: FGGP, received: Received) -> float:
    options = TrainOptions(epochs=2, optimizer="sgd", lr=0.1)
    trainer = LocalTrainer({name: model.flat for name, model in client.models.items()}, options, method)
    return method.train(client, received, trainer, "train")


@pytest.mark.parametrize(
    ("kept", "now", "anew"),
    [(None, 7, True), (5, 7, False), (5, 10, True), (10, 30, True), (9, 29, False), (9, 31, True), (1, 21, False)],
)
def test_new_neighbours(kept: int | None, now: int, anew: bool, make_view: MakeView, make_client: MakeClient) -> None:
    """In every tenth round, or when those of before are of more than twenty rounds ago."""
    x = np.random.default_rng(0).standard_normal((8, 4)).astype(np.float32)
    view = make_view(8, [(i, i + 1) for i in range(7)], [0, 1] * 4, [0, 1, 2], 2, x)
    method = FGGP(gkic="knn_only", neighbours=2)
    client = client_of(view, make_client, method)
    old = torch.tensor([[1, 2]] + [[0, -1]] * 7, dtype=torch.int32)
    if kept is not None:
        client.state.update({"knn": old, "knn.round": torch.tensor(kept, dtype=torch.int32)})
    trained(client, method, Received(None, now))
    assert int(client.state["knn.round"]) == (now if anew else kept)
    assert torch.equal(client.state["knn"], old) != anew
    assert client.state["knn"].shape == (8, 2)


def test_who_has_no_label_does_not_train_and_speaks_for_no_class(make_view: MakeView, make_client: MakeClient) -> None:
    view = make_view(5, [(0, 1), (1, 2)], [0, 1, 0, 1, 0], [], 2)
    method = FGGP(hidden=5)
    client = client_of(view, make_client, method)
    before = client.model.w.clone()
    assert np.isnan(trained(client, method, Received(None, 1)))
    assert torch.equal(client.model.w, before)
    sent = method.upload(client, Received(), "train")
    assert sent.weight == {"w": 0.0, "generator": 0.0}
    assert sent.entries["proto"].shape == (0, 8)
    # Without a bank nothing speaks for any class; it may still guess the classes of others' prototypes.
    assert not method.predict(client, Received(), "test").any()
    bank = Bank(torch.rand(2, 8), torch.tensor([0, 1]))
    assert method.predict(client, Received(bank), "test").isfinite().all()
    guessed = FGGP(hidden=5, need_label=False).upload(client, Received(), "train")
    assert len(guessed.entries["proto"])


def test_a_single_client(run: Start) -> None:
    found = run({**KEYS, "partition.method": "random", "partition.clients": 1, "data.store": None}, rounds=2)
    assert found.state.server["bank.class"].tolist() == [0, 1, 2]


def test_all_pairs_of_a_large_client_are_refused(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fggp, "MOST_NODES", 29)
    start(KEYS)
    start({**KEYS, "algorithm.random_pairs": "all", "algorithm.gkic": "knn_only"})
    with refused("algorithm.random_pairs", says="30 nodes"):
        start({**KEYS, "algorithm.random_pairs": "all"})


CLASSES, FEATURES, HOPS = 4, 5, 2
DEFAULTS = asdict(FGGP())
WHOLE_GCN = {"name": "gcn", "hidden": 8, "norm": "batch", "head": "conv"}
# Every option is somewhere another one than by default. Round 4 has nobody who trains.
OPTIONS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "by default": ({"hidden": 6}, WHOLE_GCN),
    "as its code": (
        {"hidden": 6, "vote": "softmax_sum", "bank": "ring", "slots": 3, "k": 5, "similarity": "max", "finch_min": 1}
        | {"vote_temperature": 0.2, "knn_every": 2, "random_pairs": 2, "gamma": 3.0},
        WHOLE_GCN,
    ),
    "as written": (
        {"hidden": 5, "gkic": "gen_only", **FGGP.forms["paper"], "k": 4}
        | {"edge_temperature": 0.5, "lam": 0.3, "tau": 0.2, "beta": 0.7, "weight": "uniform"},
        {"name": "gcn", "hidden": 8},
    ),
    "both views, as written": (
        {"hidden": 4, **FGGP.forms["paper"], "k": 3, "neighbours": 2, "tau": 0.8, "beta": 0.3, "gamma": 0.5}, WHOLE_GCN
    ),
    "neighbours alone": (
        {"gkic": "knn_only", "head_mode": "personal", "vote": "class_avg", "cluster": "mean", "neighbours": 2}
        | {"knn_every": 3, "need_label": False, "weight": "train"},
        {"name": "sage", "hidden": 8},
    ),
    "prototypes alone": ({"gkic": "off", "bank": "ring", "slots": 2}, WHOLE_GCN),
    "prototypes and classifiers": (
        {"gkic": "off", "head_mode": "average", "vote": "class_avg", "cluster": "none"}, {"name": "gamlp"}
    ),
    "classifiers alone": ({"hidden": 5, "fcpp": False, "head_mode": "average", "gamma": 0.0}, WHOLE_GCN),
}  # fmt: skip


@pytest.mark.exhaustive(4)
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

    of_clients = views(server)
    clients = [a_client(i, view) for i, view in enumerate(of_clients)]
    w, generator_w = clients[0].w, clients[0].generator_w
    torch.testing.assert_close(server.state.server["w"].double(), w, rtol=0, atol=0)
    bank: Entries = []
    kept_of: dict[int, Entries] = {}
    deployed: dict[int, Any] = {}
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
            own = [(c, vector) for c, (vector, _) in entries.items()]
            kept_of[i] = own or kept_of.get(i, [])
            sent += own
            up += 4 * (len(w) + generates * len(generator_w)) + 4 + sum(4 * len(v) + 8 for v, _ in entries.values())
            if o.head_mode == "personal":
                client.head = [p.detach().clone() for p in client.module.head.parameters()]
            require_counts(server, "trained", {i: client.counts(bank, CLASSES)})
        assert (line["bytes_up"], line["bytes_down"]) == (up, len(cohort) * down)
        if any(clients[i].train for i in cohort):
            require_mean_loss(line, losses, of_clients)
        if weight:
            w, generator_w = total / weight, generators / weight
        if sent and o.bank == "ring":
            bank = newest(bank, summed_up(sent, o, CLASSES), o.slots)
        elif sent:
            bank = summed_up([entry for i in sorted(kept_of) for entry in kept_of[i]], o, CLASSES)
        # Who took part is given the new model.
        deployed.update(dict.fromkeys(cohort, (w, generator_w, bank)))
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
            if i in deployed:
                client.receive(*deployed[i][:2])
                require_counts(server, "deployed", {i: client.counts(deployed[i][2], CLASSES)})
            client.receive(w, generator_w, kept_head=False)
            require_counts(server, "global", {i: client.counts(bank, CLASSES)})
