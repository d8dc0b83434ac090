"""FGGP beside what it is without its parts, on graphs that have nearly nothing, and what it refuses."""

from typing import Any

import numpy as np
import pytest
import torch
from support.fixtures import MakeClient, MakeView, Start
from support.same_bits import assert_same_runs, assert_same_scores

from shoal.algorithms.client import Client, ClientModel, FlatModel, random_of
from shoal.algorithms.methods.fggp.fggp import FGGP, Received
from shoal.algorithms.methods.fggp.prototypes import Bank
from shoal.algorithms.models.build import build
from shoal.algorithms.models.gnn.topology import Topology
from shoal.algorithms.protocol import MODEL
from shoal.algorithms.train_options import TrainOptions
from shoal.algorithms.training.local_training import LocalTrainer
from shoal.storage.store.view import View

GCN = {"model.name": "gcn", "model.norm": "batch", "model.head": "conv"}
SGD = {"train.optimizer": "sgd", "train.lr": 0.05, "train.momentum": 0.9, "participation.ratio": 0.7}
KEYS: dict[str, Any] = {**GCN, **SGD, "algorithm.name": "fggp", "algorithm.hidden": 6, "algorithm.knn_every": 2}


EVERY_PAIR = [(i, j) for i in range(6) for j in range(i)]


def test_without_its_parts_it_is_fedavg_to_the_bit(run: Start) -> None:
    off = {"algorithm.gkic": "off", "algorithm.fcpp": False, "algorithm.head_mode": "average"}
    for model in (GCN, {"model.name": "gamlp"}):
        found = run({**SGD, **model, **off, "algorithm.name": "fggp"}, rounds=3)
        expected = run({**SGD, **model, "engine.trainer": "autograd"}, rounds=3)
        assert_same_runs(expected, found)
        assert_same_scores(expected, found)


@pytest.mark.exhaustive(3)
@pytest.mark.parametrize("more", [{}, {"algorithm.gkic": "gen_only"}, {"algorithm.head_mode": "personal"}])
def test_a_resumed_run_goes_on_to_the_bit(start: Start, run: Start, more: dict[str, Any]) -> None:
    """From neighbours, classifiers and a bank that were kept."""
    keys = {**KEYS, **more}
    resumed = start(keys, state=run(keys, rounds=2).state)
    resumed.round()
    assert_same_runs(run(keys, rounds=3), resumed)


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
def test_when_neighbours_are_found_anew(
    kept: int | None, now: int, anew: bool, make_view: MakeView, make_client: MakeClient
) -> None:
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


@pytest.mark.parametrize("gkic", ["both", "knn_only", "gen_only", "off"])
@pytest.mark.parametrize(
    ("nodes", "edges", "train"),
    [(1, [], [0]), (2, [], [0]), (6, [], [0, 1, 2]), (6, [(0, 1)], [5]), (6, EVERY_PAIR, [0, 3])],
)
def test_graphs_that_have_nearly_nothing(
    gkic: Any, nodes: int, edges: list[tuple[int, int]], train: list[int], make_view: MakeView, make_client: MakeClient
) -> None:
    """One node, no edges, all edges; class 2 is nobody's."""
    x = np.random.default_rng(0).standard_normal((nodes, 4)).astype(np.float32)
    view = make_view(nodes, edges, [i % 2 for i in range(nodes)], train, 3, x)
    method = FGGP(gkic=gkic, hidden=5)
    client = client_of(view, make_client, method)
    assert np.isfinite(trained(client, method, Received(None, 1)))
    assert client.model.w.isfinite().all()
    sent = method.upload(client, Received(), "train")
    assert set(sent.entries["proto.class"].tolist()) == {i % 2 for i in train}
    assert sent.entries["proto"].shape == (len({i % 2 for i in train}), 8)
    scores = method.predict(client, Received(), "all")
    assert scores[:, :2].max(1).values.isfinite().all()
    assert not scores[:, 2].isfinite().any()


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


@pytest.mark.parametrize("name", ["gat", "gin", "sage", "gcnii"])
def test_neighbours_alone_suit_every_model_that_passes_messages(run: Start, name: str) -> None:
    plain = {key: value for key, value in KEYS.items() if not key.startswith("model.")}
    found = run({**plain, "model": {"name": name, "hidden": 8}, "algorithm.gkic": "knn_only"}, rounds=2)
    assert found.state.server["w"].isfinite().all()
