"""FGGP in whole rounds against the small version, without its parts, and on graphs that have nearly nothing."""

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from support.errors import refused
from support.fixtures import Keys, MakeClient, MakeView, Start, Views
from support.same_bits import assert_same_runs, assert_same_scores
from support.small_fedgkc import DECAY, EPOCHS, LR, MOMENTUM
from support.small_fggp import PlainClient, PlainGraphClient, require_rounds
from support.written_rounds import cohorts_of
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
from shoal.engine.rounds.server import Server
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


CLASSES, HOPS = 4, 2
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


def clients_of(
    server: Server, views: Sequence[View], o: SimpleNamespace, of: type[PlainClient], reset: bool = False
) -> list[PlainClient]:
    """The clients of a server, with the parameters that its own start from."""
    job, kinds = server.job, server._built
    width = None if len(job.models) == 1 else kinds["model"][0].info.width
    clients = []
    for i, (info, view) in enumerate(zip(server.infos, views)):
        spec, task = kinds["model"][info.model].spec, "node" if view.graph_ptr is None else "graph"
        module = build(spec.name, view.features, view.classes, HOPS, 0.5, spec.options, width, task=task)
        w = job.initial(kinds["model"][info.model], "model", i).clone()
        nn.utils.vector_to_parameters(w, module.parameters())
        own = SimpleNamespace(**{**vars(o), "gkic": FITS[spec.name] if o.gkic == "fitting" else o.gkic})
        generator: nn.Module = nn.Linear(1, 1)
        if own.gkic in ("both", "gen_only"):
            widths = ((view.features, o.hidden), (o.hidden, o.hidden))
            generator = nn.Sequential(*(nn.Linear(*pair, bias=False) for pair in widths))
            w = job.initial(kinds["generator"][0], "generator", i).clone()
            nn.utils.vector_to_parameters(w, generator.parameters())
        clients.append(of(i, view, module, generator, own, reset))
    if o.head_mode != "average":
        for client in clients:
            client.first_head = clients[0].first_head
    return clients


@pytest.mark.exhaustive(4)
@pytest.mark.parametrize(("name", "state"), [*((name, "keep") for name in OPTIONS), ("by default", "reset")])
def test_rounds(name: str, state: str, start: Start, views: Views, unequal: dict[str, Any]) -> None:
    """Clients of unequal sizes come and go; one, once alone, has no training node."""
    changed, model = OPTIONS[name]
    o = SimpleNamespace(**{**DEFAULTS, **changed})
    server = start({**unequal, "algorithm": {"name": "fggp", **vars(o)}, "model": model, "train.opt_state": state})
    require_rounds(server, clients_of(server, views(server), o, PlainClient, state == "reset"), o, CLASSES)


# What `gkic: fitting` is for a model.
FITS = {"gcn": "both", "gcnii": "both", "sage": "knn_only", "gamlp": "off"}
THREE = [
    {"name": "gcn", "hidden": 8, "norm": "batch"}, {"name": "sage", "hidden": 6}, {"name": "gamlp", "hidden": 12},
]  # fmt: skip
# A step on labels alone reads whole graphs here, too, whose norm is over all nodes.
WHOLE = [THREE[0], {"name": "gcn", "hidden": 6, "norm": "batch"}, THREE[2]]
OF_ARCHITECTURES: dict[str, tuple[dict[str, Any], list[dict[str, Any]]]] = {
    "two": ({"hidden": 6, "gkic": "gen_only"}, [{"name": "gin", "hidden": 8}, {"name": "gcn", "hidden": 5}]),
    "as fits": ({"hidden": 6, "gkic": "fitting", "weight": "train", "least_mass": 0.0}, THREE),
    "classifiers of their own": ({"gkic": "off", "head_mode": "personal", "bank": "ring", "slots": 2}, WHOLE),
    "classifiers averaged": ({"gkic": "off", "head_mode": "average", "fcpp": False, "weight": "uniform"}, WHOLE),
}


@pytest.mark.parametrize("name", OF_ARCHITECTURES)
def test_rounds_of_several_architectures(name: str, start: Start, views: Views, unequal: dict[str, Any]) -> None:
    """Bodies are averaged within an architecture, prototypes of all fill one bank, and all start from one classifier.

    Rounds may lack an architecture.
    """
    changed, models = OF_ARCHITECTURES[name]
    o = SimpleNamespace(**{**DEFAULTS, **changed})
    server = start({**unequal, "algorithm": {"name": "fggp", **vars(o)}, "model": models})
    assert {info.model for info in server.infos} == set(range(len(models)))
    require_rounds(server, clients_of(server, views(server), o, PlainClient), o, CLASSES)


# Neighbours are found by models that weigh a node itself: others give nodes of the same neighbours one embedding, and
# rounding says which is nearer.
OF_GRAPHS: dict[str, tuple[dict[str, Any], Any, int | None]] = {
    "by default": ({"hidden": 6, "knn_every": 2}, {"name": "gcnii", "hidden": 8}, None),
    "gin in batches": (
        {"hidden": 5, "random_pairs": 2, "gkic": "gen_only", "gamma": 0.5, "head_mode": "personal"},
        {"name": "gin", "hidden": 8, "readout": "attention"}, 3,
    ),
    "as written": ({"hidden": 4, **FGGP.forms["paper"], "k": 3}, {"name": "gcnii", "hidden": 6}, 4),
    "neighbours alone": ({"gkic": "knn_only", "feature": "embedding"}, {"name": "sage", "hidden": 6}, 3),
    "prototypes alone": ({"gkic": "off"}, {"name": "gamlp", "hidden": 8}, 3),
    "two architectures": (
        {"hidden": 6, "gkic": "fitting"}, [{"name": "gcnii", "hidden": 8}, {"name": "gamlp", "hidden": 6}], 3
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", OF_GRAPHS)
def test_rounds_on_small_graphs(name: str, start: Start, views: Views, graph_task: Keys, tmp_path: Path) -> None:
    """Items are graphs: prototypes are means of readouts, and second views are made within each training graph."""
    changed, model, size = OF_GRAPHS[name]
    o = SimpleNamespace(**{**DEFAULTS, **changed})
    rest = {key: value for key, value in graph_task.items() if key != "model.name"}
    training = {"train.dropout": 0.5, "train.optimizer": "sgd", "train.lr": LR, "train.momentum": MOMENTUM}
    training |= {"train.weight_decay": DECAY, "train.epochs": EPOCHS, "train.batch_size": size}
    keys = {**rest, **training, **cohorts_of(tmp_path, [[0, 1, 2, 5], [0, 3], [1, 2, 3, 4], [5], [0, 2, 4]])}
    server = start({**keys, "algorithm": {"name": "fggp", **vars(o)}, "model": model, "propagation.hops": HOPS})
    clients = clients_of(server, views(server), o, PlainGraphClient)
    for client in clients:
        client.size = size
    require_rounds(server, clients, o, CLASSES)
