"""FedProto by hand on clients that lack classes, in whole rounds written out, and through the engine against Local."""

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from shoal.algorithms.base import Algorithm, Client, Context, Output, Tree
from shoal.algorithms.methods.fedproto import FedProto
from shoal.algorithms.methods.registry.load import describe, load
from shoal.algorithms.models.build import build
from shoal.algorithms.protocol import Ask, Replies
from shoal.engine.config.config import Config
from shoal.engine.messages.cell import Outcome
from shoal.engine.messages.models import require_mixable
from shoal.engine.rounds.reduction import Sums, combine, reduce_cell, upload_bytes
from shoal.engine.rounds.server import Server
from shoal.engine.runs.run import run as run_config
from shoal.storage.store.view import View

Run = Callable[..., Server]
Keys = Mapping[str, Any]
PlainClients = Callable[[Server], list[Any]]
AssertHolds = Callable[[Server, list[Any]], None]
MLP = {"model.name": "mlp", "model.hidden": 8, "train.dropout": 0.0}
# With one layer the embedding is the features.
X = np.array([[1, 0], [3, 0], [0, 2], [9, 9], [5, 5]], dtype=np.float32)


def server_step(algorithm: Algorithm, server: Tree, cohort: dict[int, Client], ctx: Context) -> Ask:
    """One round of the server on what the clients upload, without training; gives what it asked."""
    steps = algorithm.round(server, ctx, sorted(cohort))
    ask = next(steps)
    assert isinstance(ask, Ask)
    outcome = Outcome(ids=sorted(cohort))
    reduce_cell([algorithm.upload(cohort[i], {}, ask.phase) for i in sorted(cohort)], ask.up, outcome)
    sums = Sums()
    sums.take(0, outcome)
    replies: Replies = combine([outcome], sorted(cohort), ask.up, sums)[0]
    with pytest.raises(StopIteration):
        steps.send(replies)
    return ask


@pytest.fixture
def logistic() -> nn.Module:
    return build("sgc", 2, 4, 0, 0.0, {"layers": 1})


@pytest.fixture
def clients(make_view: Callable[..., View], make_client: Callable[..., Client], logistic: nn.Module) -> list[Client]:
    """Classes 0 (two rows) and 1; class 1 only; nothing to train on. Nobody has classes 2 and 3."""
    rows: list[tuple[list[int], list[int]]] = [([0, 0, 1, 2, 2], [0, 1, 2]), ([2, 2, 2, 1, 1], [3, 4]), ([0] * 5, [])]
    views = [make_view(5, [], label, train, 4, X) for label, train in rows]
    return [make_client(view, logistic) for view in views]


def test_means_by_hand_with_missing_classes(clients: list[Client], make_context: Callable[..., Context]) -> None:
    algorithm, server = FedProto(), {}
    ask = server_step(algorithm, server, dict(enumerate(clients)), make_context(3, 4))
    assert ask.shared == {}
    # Class 0: rows 0 and 1 of the first. Class 1: its row 2 and both rows of the second, three rows in all.
    assert server["proto"].tolist() == [[2, 0], [pytest.approx(14 / 3), pytest.approx(16 / 3)], [0, 0], [0, 0]]
    assert server["known"].tolist() == [True, True, False, False]
    first = server["proto"].clone()
    ask = server_step(algorithm, server, {1: clients[1]}, make_context(3, 4))
    assert torch.equal(ask.shared["proto.rows"], first[:2])
    assert torch.equal(server["proto"][0], first[0])
    assert server["proto"][1].tolist() == [7, 7]


def test_a_cohort_with_nothing_to_say(clients: list[Client], make_context: Callable[..., Context]) -> None:
    server: Tree = {}
    server_step(FedProto(), server, {2: clients[2]}, make_context(3, 4))
    assert not server["known"].any()
    ask = server_step(FedProto(), server, {2: clients[2]}, make_context(3, 4))
    assert len(ask.shared["proto.rows"]) == 0


def test_loss_by_hand(clients: list[Client]) -> None:
    algorithm, client = FedProto(lam=3.0), clients[0]
    out = client.model(client.model.gathered("train"))
    y = torch.tensor([0, 0, 1])
    plain = F.cross_entropy(out.logits_NC, y)
    # Class 1 has no target: rows 0 and 1 are 0 and 2 from theirs, over two dimensions.
    received = torch.tensor([[1.0, 0], [0, 0], [0, 0], [0, 0]]), torch.tensor([True] + [False] * 3)
    torch.testing.assert_close(algorithm.loss(out, y, client.model.w, received), plain + 3.0 / 2 * (0 + 4) / 2)
    assert torch.equal(algorithm.loss(out, y, client.model.w, None), plain)
    assert torch.equal(FedProto(lam=0).loss(out, y, client.model.w, received), plain)


def test_bytes_are_those_of_the_rows_that_exist(clients: list[Client]) -> None:
    sizes = [upload_bytes(FedProto().upload(client, {}, "train")) for client in clients]
    assert sizes == [4 * (2 * 2 + 4), 4 * (1 * 2 + 4), 4 * (0 + 4)]


@pytest.mark.parametrize("name", ["fedproto", "fedtgp"])
def test_clients_may_train_different_models(configure: Callable[..., Config], name: str) -> None:
    """No parameters are averaged, so that the command refuses no list of models."""
    models = {"model": [{"name": "mlp"}, {"name": "sgc"}], "heterogeneity.embedding": 8}
    config = configure({"algorithm.name": name, **models})
    require_mixable(config, load(describe(name, {})))


def test_a_negative_weight_is_refused() -> None:
    with pytest.raises(ValueError, match="lam"):
        FedProto(lam=-1)


@pytest.mark.parametrize("more", [{}, {"algorithm.lam": 3.0, "train.batch_size": 2, "model.name": "gamlp"}])
def test_rounds_written_out(
    start: Run, patchy: Keys, plain_clients: PlainClients, assert_holds: AssertHolds, more: Keys
) -> None:
    """Prototypes are those of whole activations, of this cohort alone; a class that is not there keeps its own."""
    server = start({**patchy, "algorithm.name": "fedproto", "model.hidden": 8, **more})
    clients, lam = plain_clients(server), more.get("algorithm.lam", 1.0)
    proto: dict[int, np.ndarray] = {}

    def loss(out: Output, y: Tensor) -> Tensor:
        distances = [
            (z - torch.from_numpy(proto[c]).float()).square().sum()
            for z, c in zip(out.embedding_NH, y.tolist())
            if c in proto
        ]
        plain = F.cross_entropy(out.logits_NC, y)
        return plain + lam / 8 * torch.stack(distances).mean() if distances else plain

    for number in range(1, 8):
        line, rows, up = server.round(), dict[int, list[np.ndarray]](), 0
        for i in server.cohort(number):
            clients[i].train(number, loss, more.get("train.batch_size", 100))
            embeddings = clients[i].embeddings()
            up += 4 * (8 * len(embeddings) + 4)
            for c, found in embeddings.items():
                rows.setdefault(c, []).extend(found)
        down = len(server.cohort(number)) * (4 * 8 * len(proto) + 1) if number > 1 else 0
        assert (line["bytes_up"], line["bytes_down"]) == (up, down)
        proto.update({c: np.mean(found, 0) for c, found in rows.items()})
        held = server.state.server
        assert held["known"].nonzero()[:, 0].tolist() == sorted(proto)
        for c, p in proto.items():
            np.testing.assert_allclose(held["proto"][c], p, rtol=1e-3, atol=1e-5)
        assert_holds(server, clients)


def assert_same_clients(left: Server, right: Server) -> None:
    for i in range(6):
        for name, tensor in left.state.clients[i].items():
            assert torch.equal(right.state.clients[i][name], tensor), (i, name)
    for scope in ("trained", "served"):
        for i in range(6):
            np.testing.assert_array_equal(left.state.scores[scope][i], right.state.scores[scope][i])


@pytest.mark.parametrize("method", ["fedproto", "fedtgp"])
def test_without_the_term_it_is_local_to_the_last_bit(run: Run, method: str) -> None:
    keys = {"train.dropout": 0.5, "train.weight_decay": 0.01, "participation.ratio": 0.7}
    local = run({**keys, "algorithm.name": "local", "engine.trainer": "autograd"})
    assert_same_clients(local, run({**keys, "algorithm.name": method, "algorithm.lam": 0}))
    pulled = run({**keys, "algorithm.name": method, "algorithm.lam": 1})
    assert not torch.equal(pulled.state.clients[0]["model.w"], local.state.clients[0]["model.w"])


@pytest.mark.parametrize("method", ["fedproto", "fedtgp"])
def test_messages(
    configure: Callable[..., object], views: Callable[..., list[View]], method: str, tmp_path: Path
) -> None:
    """Bytes of metrics and summary are those of the rows that exist."""
    keys = {"algorithm.name": method, **MLP, "rounds": 3, "run.root": str(tmp_path), "run.tensorboard": False}
    folder = run_config(configure(keys))  # type: ignore[arg-type]
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    owned = [len(set(view.label[view.train].tolist())) for view in views()]
    assert owned[5] == 0
    up = sum(4 * (8 * c + 4) for c in owned)
    assert [line["bytes_up"] for line in lines] == [up] * 3
    # The first round has nothing to send; then three known classes and the bits of four.
    down = 6 * (4 * 8 * 3 + 1)
    assert [line["bytes_down"] for line in lines] == [0, down, down]
    summary = json.loads((folder / "summary.json").read_text())
    assert summary["bytes"]["up_per_client_round"] == up / 6
    assert summary["bytes"]["down_per_client_round"] == 2 * down / 18


@pytest.mark.parametrize("method", ["fedproto", "fedtgp"])
def test_labels_outside_the_training_rows_change_nothing(run: Run, method: str) -> None:
    plain, shuffled = (run({"algorithm.name": method}, rounds=3, graph=graph) for graph in ("plain", "shuffled"))
    for name, tensor in plain.state.server.items():
        assert torch.equal(tensor, shuffled.state.server[name]), name
