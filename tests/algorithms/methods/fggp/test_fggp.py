"""FGGP beside what it is without its parts, on graphs that have nearly nothing, and what it refuses."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from shoal.algorithms.client import Client, ClientModel, FlatModel, random_of
from shoal.algorithms.methods.fggp.bank import Bank
from shoal.algorithms.methods.fggp.fggp import FGGP, Received
from shoal.algorithms.methods.registry.load import describe, load
from shoal.algorithms.methods.shared.body import body_of, classifier_of, joined
from shoal.algorithms.models.build import build
from shoal.algorithms.models.gnn.topology import Topology
from shoal.algorithms.protocol import MODEL
from shoal.algorithms.train_options import TrainOptions
from shoal.algorithms.training.local_training import LocalTrainer
from shoal.engine.rounds.server import Server
from shoal.storage.errors import ShoalError
from shoal.storage.store.view import View

Run = Callable[..., Server]
GCN = {"model.name": "gcn", "model.norm": "batch", "model.head": "conv"}
SGD = {"train.optimizer": "sgd", "train.lr": 0.05, "train.momentum": 0.9, "participation.ratio": 0.7}
KEYS: dict[str, Any] = {**GCN, **SGD, "algorithm.name": "fggp", "algorithm.hidden": 6, "algorithm.knn_every": 2}


EVERY_PAIR = [(i, j) for i in range(6) for j in range(i)]


def test_without_its_parts_it_is_fedavg_to_the_bit(run: Run) -> None:
    off = {"algorithm.gkic": "off", "algorithm.fcpp": False, "algorithm.head_mode": "average"}
    for model in (GCN, {"model.name": "gamlp"}):
        found = run({**SGD, **model, **off, "algorithm.name": "fggp"}, rounds=3)
        expected = run({**SGD, **model, "engine.trainer": "autograd"}, rounds=3)
        assert torch.equal(found.state.server["w"], expected.state.server["w"])
        assert found.state.server.keys() == {"w"}
        for scope, counts in expected.state.scores.items():
            for i, of_client in counts.items():
                np.testing.assert_array_equal(found.state.scores[scope][i], of_client)


@pytest.mark.parametrize("head_mode", ["reset", "personal", "average"])
def test_the_classifier_that_a_visit_begins_with(
    start: Run, run: Run, monkeypatch: pytest.MonkeyPatch, head_mode: str
) -> None:
    """The common initial one, that of the client's last visit, or the server's; the rest is the server's."""
    begun: list[tuple[int, int, Tensor]] = []
    left: dict[int, Tensor] = {}
    train, upload = FGGP.train, FGGP.upload

    def trained(self: FGGP, client: Client, *more: Any) -> float:
        head = classifier_of(client.model.flat)
        expected = {"reset": initial_head, "personal": left.get(client.info.client, initial_head)}.get(head_mode)
        if expected is not None:
            assert torch.equal(head, expected)
        begun.append((client.info.client, len(begun), head))
        return train(self, client, *more)

    def uploaded(self: FGGP, client: Client, *more: Any) -> Any:
        left[client.info.client] = classifier_of(client.model.flat)
        sent = upload(self, client, *more)
        assert len(sent.entries["w"]) == len(client.model.w) - (head_mode != "average") * len(initial_head)
        return sent

    keys = {**KEYS, "algorithm.head_mode": head_mode, "algorithm.gkic": "off"}
    initial_head = classifier_of(start(keys)._build(MODEL, 0))
    monkeypatch.setattr(FGGP, "train", trained)
    monkeypatch.setattr(FGGP, "upload", uploaded)
    run(keys, rounds=4)
    assert len(begun) == 16
    assert any(not torch.equal(head, initial_head) for head in left.values())
    differ = any(not torch.equal(head, begun[0][2]) for _, _, head in begun)
    assert differ == (head_mode != "reset")


def test_a_model_is_put_together_from_its_parts() -> None:
    for name, more in (("gcn", {"head": "conv"}), ("gamlp", {"layers": 2}), ("sgc", {"layers": 2})):
        flat = FlatModel(build(name, 5, 4, 2, 0.0, {"hidden": 8, **more}))
        extractor, classifier = body_of(flat), classifier_of(flat)
        assert len(classifier) == 4 * 8 + 4
        last = flat.module.head.linears[-1]  # type: ignore[union-attr, index]
        assert torch.equal(classifier, torch.cat([last.weight.detach().flatten(), last.bias.detach()]))
        other = joined(flat, extractor + 1, classifier * 2)
        flat.load(other)
        assert torch.equal(body_of(flat), extractor + 1)
        assert torch.equal(classifier_of(flat), classifier * 2)


@pytest.mark.exhaustive(3)
@pytest.mark.parametrize("more", [{}, {"algorithm.gkic": "gen_only"}, {"algorithm.head_mode": "personal"}])
def test_a_resumed_run_goes_on_to_the_bit(start: Run, run: Run, more: dict[str, Any]) -> None:
    """From neighbours, classifiers and a bank that were kept."""
    keys = {**KEYS, **more}
    resumed = start(keys, state=run(keys, rounds=2).state)
    resumed.round()
    whole = run(keys, rounds=3)
    assert resumed.state.server.keys() == whole.state.server.keys()
    for name, tensor in whole.state.server.items():
        assert torch.equal(resumed.state.server[name], tensor), name
    for i, tree in whole.state.clients.items():
        for name, tensor in tree.items():
            assert torch.equal(resumed.state.clients[i][name], tensor), name


def client_of(
    view: View, make_client: Callable[..., Client], method: FGGP, name: str = "gcn", **options: Any
) -> Client:
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
    kept: int | None, now: int, anew: bool, make_view: Callable[..., View], make_client: Callable[..., Client]
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
    gkic: Any,
    nodes: int,
    edges: list[tuple[int, int]],
    train: list[int],
    make_view: Callable[..., View],
    make_client: Callable[..., Client],
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


def test_who_has_no_label_does_not_train_and_speaks_for_no_class(
    make_view: Callable[..., View], make_client: Callable[..., Client]
) -> None:
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


def test_a_bank_of_the_server_goes_before_the_own_prototypes(
    make_view: Callable[..., View], make_client: Callable[..., Client]
) -> None:
    view = make_view(5, [(0, 1), (1, 2)], [0, 1, 0, 1, 0], [0, 1], 3)
    method = FGGP(gkic="off")
    client = client_of(view, make_client, method)
    only_two = Received(Bank(torch.rand(1, 8), torch.tensor([2])))
    assert method.predict(client, only_two, "test").argmax(1).tolist() == [2, 2, 2]
    assert 2 not in method.predict(client, Received(), "test").argmax(1).tolist()


def test_a_single_client(run: Run) -> None:
    found = run({**KEYS, "partition.method": "random", "partition.clients": 1, "data.store": None}, rounds=2)
    assert found.state.server["bank.class"].tolist() == [0, 1, 2]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"fcpp": False}, "without fcpp the classifier predicts, which needs head_mode: average"),
        ({"k": 0}, "finch_min, domains, slots, k, neighbours, knn_every and hidden must be at least 1"),
        ({"neighbours": 0}, "must be at least 1"),
        ({"tau": 0.0}, "tau, vote_temperature and eps must be positive"),
        ({"gamma": -1.0}, "beta and gamma must not be negative"),
        ({"lam": 1.5}, "lam must lie in"),
        ({"random_pairs": -1}, "random_pairs must not be negative"),
        ({"edge_temperature": 0.0}, "temperature must be positive"),
    ],
)
def test_options_out_of_range(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ShoalError, match=f"^algorithm: fggp: .*{message}"):
        load(describe("fggp", options))


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"model": {"name": "gamlp"}}, "algorithm.gkic: a second view of the graph needs a model that passes messages"),
        ({"model": {"name": "sage"}}, "algorithm.gkic: the generator makes matrices for gcn and gcnii, not for sage"),
        ({"model": {"name": "gcn", "fanouts": [2, 2]}}, "model.fanouts: a second view of the graph is read whole"),
        ({"train.batch_size": 4}, "train.batch_size: both views take all rows in one step"),
        (
            {"model": {"name": "mlp", "layers": 1}, "algorithm.gkic": "off"},
            "model.layers: FGGP averages what lies",
        ),
    ],
)
def test_models_and_training_that_it_cannot_have(start: Run, keys: dict[str, Any], message: str) -> None:
    plain = {key: value for key, value in KEYS.items() if not key.startswith("model.")}
    with pytest.raises(ShoalError, match=f"^{message}") as error:
        start({**plain, "model": {"name": "gcn"}, **keys})
    assert "\n" not in error.value.line


@pytest.mark.parametrize("name", ["gat", "gin", "sage", "gcnii"])
def test_neighbours_alone_suit_every_model_that_passes_messages(run: Run, name: str) -> None:
    plain = {key: value for key, value in KEYS.items() if not key.startswith("model.")}
    found = run({**plain, "model": {"name": name, "hidden": 8}, "algorithm.gkic": "knn_only"}, rounds=2)
    assert found.state.server["w"].isfinite().all()
