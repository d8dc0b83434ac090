"""FedPG in whole rounds against the small version, its controls to the bit, and clients that lack something."""

import copy
import math
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from support import pyg_clients
from support.errors import refused
from support.fixtures import MakeClient, MakeView, ModuleOf, Start, Views
from support.small_fedpg import (
    CLASSES,
    DECAY,
    EPOCHS,
    LR,
    ROUNDS,
    WIDTH,
    GraphClient,
    PlainClient,
    PlainServer,
    Slots,
    flat,
)
from support.small_graphs import ONE_GRAPH, WITHOUT_TRAIN
from support.written_rounds import require_mean_loss
from torch import Tensor

from shoal.algorithms.base import Tree
from shoal.algorithms.client import FlatModel
from shoal.algorithms.losses.prototypes import unit
from shoal.algorithms.methods.fedpg.fedpg import FedPG, Received, depth_of
from shoal.algorithms.models.build import build
from shoal.algorithms.train_options import TrainOptions
from shoal.algorithms.training.local_training import LocalTrainer
from shoal.engine.rounds.server import Server

PG = {"algorithm.name": "fedpg"}


@pytest.mark.parametrize(("attention", "labels"), [("none", "mean"), ("node", "mean"), ("node", "sum")])
def test_a_model_that_passes_messages_answers_once_for_loss_and_alignment(
    make_view: MakeView, make_client: MakeClient, attention: Any, labels: Any
) -> None:
    """Against steps written out, with one draw of dropout each."""
    view = make_view(6, [(0, 1), (1, 2), (2, 3), (4, 5)], [0, 1, 1, 0, 1, 0], [0, 2, 4], 2)
    torch.manual_seed(0)
    module = build("gcn", view.features, 2, 0, 0.5, {"hidden": 6})
    plain, client = make_client(view, copy.deepcopy(module)), make_client(view, module)
    targets = unit(torch.randn(2, 2, 6)), torch.ones(2, 2, dtype=torch.bool)
    algorithm = FedPG(alignment="prototype", hops=1, attention=attention, mu=0.7, cross_entropy=labels)
    options = TrainOptions(epochs=3, optimizer="sgd", lr=0.3, momentum=0.0, weight_decay=0.0)
    trainer = LocalTrainer({"model": client.model.flat}, options, algorithm)
    loss = algorithm.train(client, Received(1, targets), trainer, "train")
    found = algorithm._alignment(plain, targets)
    assert found is not None
    torch.manual_seed(client.random("train"))
    w, value = plain.model.flat.w, torch.zeros(())
    plain.model.module.train()
    for _ in range(3):
        out = plain.model(plain.model.gathered("all"))
        value = F.cross_entropy(out.logits_NC[view.train], view.train_label, reduction=labels)
        value = value + 0.7 * found[1](out.embedding_NH, found[0])
        assert w.grad is not None
        w.grad.zero_()
        value.backward()
        with torch.no_grad():
            w -= 0.3 * w.grad
    assert loss == pytest.approx(value.item())
    torch.testing.assert_close(client.model.w, w.detach())


GRAPHS_PG = {"algorithm.name": "fedpg", "algorithm.similar": 2, "model.hidden": 8, "train.dropout": 0.5}


def test_what_clients_lack(run: Start, graph_task: dict[str, Any]) -> None:
    """One graph has no neighbour, no training graph no prototype; nobody trains on classes 2 and 3."""
    held = run({**graph_task, **GRAPHS_PG}, rounds=2).state.server
    assert held["present"][ONE_GRAPH].any(1).tolist() == [True, False, False]
    assert held["counts"][ONE_GRAPH].sum() == 1
    assert not held["present"][WITHOUT_TRAIN].any()
    assert not held["counts"][WITHOUT_TRAIN].any()
    assert held["known"].tolist() == [[True, True, False, False]] * 3
    assert torch.equal(held["proto"][~held["present"]], torch.zeros(int((~held["present"]).sum()), 8))


@pytest.mark.parametrize(("hops", "levels"), [(2, 2), (4, 3)])
def test_the_shallowest_model_has_the_say(start: Start, hops: int, levels: int) -> None:
    models = [{"name": "gcn", "layers": 3, "hidden": 8}, {"name": "gamlp", "hidden": 8}, {"name": "gcnii", "layers": 9}]
    keys = {"heterogeneity.rule": "round-robin", "heterogeneity.embedding": 8, "propagation.hops": hops}
    server = start({**PG, **keys, "model": models, "algorithm.hops": "depth"})
    assert server.state.server["hops"] == levels
    assert server.round()["bytes_down"] == 6
    assert server.state.server["proto"].shape[1] == levels + 1
    with refused("algorithm.hops"):
        depth_of("my.py:Net", FlatModel(build("gcn", 5, 4, 0, 0.5, {"layers": 2})))


Begin = Callable[[dict[str, Any]], tuple[Server, PlainServer, list[PlainClient]]]


def padded(slots: Slots, levels: int) -> tuple[Tensor, Tensor]:
    proto, present = torch.zeros(levels, CLASSES, WIDTH), torch.zeros(levels, CLASSES, dtype=torch.bool)
    for slot, row in slots.items():
        proto[slot], present[slot] = row, True
    return proto, present


def assert_close(found: Tensor, expected: Tensor, what: Any, atol: float = 1e-5) -> None:
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=atol, msg=lambda text: f"{what}: {text}")


def assert_same_client(kept: Tree, client: PlainClient, what: Any) -> None:
    """What a client keeps; the attention of one whose loss has a small gradient has its rounding, scaled by Adam."""
    assert_close(client.ours(kept["model.w"]), flat(client.module.parameters()), (*what, "parameters"))
    assert ("attention" in kept) == bool(client.scorers)
    if client.scorers:
        scorers = torch.stack([torch.cat([inner, outer[:, None]], 1) for inner, outer in client.scorers])
        assert_close(kept["attention"], scorers.detach(), (*what, "scorers"), atol=1e-3)
    assert ("proto" in kept) == (client.options.targets == "own")
    if "proto" in kept:
        proto, present = padded(client.own, client.options.hops + 1)
        assert_close(kept["proto"], proto, (*what, "own prototypes"))
        assert torch.equal(kept["present"], present)


def assert_same_server(held: Tree, plain: PlainServer, what: Any) -> None:
    levels = plain.options.hops + 1
    for i, (proto, counts) in plain.last.items():
        expected, present = padded(proto, levels)
        assert_close(held["proto"][i], expected, (*what, i, "upload"))
        assert torch.equal(held["present"][i], present)
        assert held["counts"][i].tolist() == counts.tolist()
    assert held["fresh"].nonzero()[:, 0].tolist() == plain.fresh
    assert sorted(map(tuple, held["known"].nonzero().tolist())) == sorted(plain.known)
    assert ("anchor" in held) == (plain.network is not None)
    if plain.network is not None:
        assert_close(held["anchor"], padded(plain.anchors, levels)[0], (*what, "anchors"))
        parameters = flat([plain.table, *plain.network.parameters()])
        assert_close(held["generator"], parameters, (*what, "generator"))


DEFAULTS = asdict(FedPG())
# Every option is somewhere another one than by default.
OPTIONS: dict[str, dict[str, Any]] = {
    "by default": {},
    "node, a margin that is capped": {
        "mu": 0.7, "alpha": 0.3, "lam": 0.8, "margin_cap": 0.05, "cross_hop": 0.5, "server_steps": 4,
        "server_lr": 0.03, "server_weight_decay": 0.1,
    },
    "node, one hop, a margin below the cap": {
        "hops": 1, "mu": 1.5, "alpha": 0.6, "lam": 0.9, "pseudo_centres": 0.5, "noise": 0.25, "margin_cap": 5.0,
        "cross_hop": 0.3, "server_steps": 3, "server_lr": 0.05,
    },
    "attention, contrast": {
        "mu": 0.6, "alignment": "prototype", "attention": "node", "attention_lr": 0.1, "alpha": 0.7, "lam": 0.3,
        "pseudo_centres": 0.6, "noise": 0.5, "server_loss": "contrast", "margin_cap": 0.02, "temperature": 0.4,
        "cross_hop": 0.7, "server_steps": 5, "server_lr": 0.02, "server_weight_decay": 0.05,
    },
    "contrast of classes alone": {
        "hops": 0, "alignment": "prototype", "alpha": 0.2, "lam": 0.8, "server_loss": "contrast",
        "margin_cap": 3.0, "server_steps": 2,
    },
    # Its model reads three hops.
    "as written": {**FedPG.forms["paper"], "attention_lr": 0.1, "margin_cap": 0.6, "cross_hop": 0.5, "server_steps": 3},
    "equation 7": {"server_loss": "eq7", "margin_cap": 0.1, "server_steps": 4, "server_lr": 0.05},
    "graphs, node": {"similar": 1, "mu": 0.8, "lam": 0.9, "pseudo_centres": 0.5},
    "graphs, prototype": {"similar": 4, "alignment": "prototype", "hops": 1, "cross_hop": 1.0, "noise": 0.25},
    "graphs, attention": {"similar": 2, "alignment": "prototype", "attention": "node", "attention_lr": 0.1},
    "graphs, embeddings as they are": {"similar": 2, "mu": 0.4, "embedding": "raw", "cross_entropy": "sum", "lam": 0.9},
    "node, embeddings as they are": {"embedding": "raw", "cross_entropy": "sum", "mu": 0.9, "alpha": 0.4, "lam": 0.9},
    "graphs, own": {"similar": 3, "mu": 0.6, "targets": "own"},
    "own, node": {"mu": 0.8, "targets": "own"},
    "own, attention": {"mu": 0.3, "targets": "own", "alignment": "prototype", "attention": "node", "noise": 0.5},
}  # fmt: skip


@pytest.fixture
def begun(start: Start, views: Views, module_of: ModuleOf, graph_task: dict[str, Any], recorded: Any) -> Begin:
    """Starts the engine and the small version with some options; half of the clients take part in a round."""

    def begun(chosen: dict[str, Any]) -> tuple[Server, PlainServer, list[PlainClient]]:
        of_graphs = "similar" in chosen
        dropout = pyg_clients.DROPOUT if of_graphs else 0.4
        train = {"epochs": EPOCHS, "lr": LR, "weight_decay": DECAY, "dropout": dropout}
        keys = {
            **(graph_task if of_graphs else {}),
            "model.hidden": WIDTH,
            "propagation.hops": 3 if chosen.get("hops") == "depth" else 2,
            "algorithm.name": "fedpg",
            **{f"train.{name}": value for name, value in train.items()},
            **{f"algorithm.{name}": value for name, value in chosen.items()},
            "participation.ratio": 0.5,
            "rounds": ROUNDS,
        }
        server = start(keys, pool=recorded.on)
        options = SimpleNamespace(**{**DEFAULTS, **chosen})
        options.hops, options.tells_hops = (3, 1) if options.hops == "depth" else (options.hops, 0)
        clients: list[PlainClient] = []
        for i, view in enumerate(views(server)):
            if of_graphs:
                pyg = pyg_clients.PlainClient(i, Path(graph_task["data.path"]), view)
                pyg.module.load(server._initial)
                clients.append(GraphClient(i, view, pyg, options))
            else:
                clients.append(PlainClient(i, view, module_of(server, server._initial), options))
        return server, PlainServer(options), clients

    return begun


SHARED = [name for name, chosen in OPTIONS.items() if "targets" not in chosen]


@pytest.mark.exhaustive(4)
@pytest.mark.parametrize("name", SHARED)
def test_rounds(name: str, begun: Begin, recorded: Any) -> None:
    """Stale uploads, newcomers, a client without training nodes, a class that only the predictions know."""
    server, plain, clients = begun(OPTIONS[name])
    options, levels = plain.options, plain.options.hops + 1
    returning = []
    for number in range(1, ROUNDS + 1):
        before, line, cohort = len(plain.admitted), server.round(), server.cohort(number)
        returning += [i for i in cohort if i in plain.last and i not in plain.fresh and len(clients[i].view.train)]
        uploads, losses = {}, {}
        for i in cohort:
            targets = plain.targets(i)
            down = recorded.downloads[i]
            assert ("proto.rows" in down) == bool(targets)
            assert int(down.get("hops", 0)) == options.hops * options.tells_hops
            if targets:
                proto, present = padded(targets, levels)
                assert_close(down["proto.rows"], proto[present], (number, i, "targets"))
            losses[i] = clients[i].visit(number, targets)
            uploads[i] = clients[i].upload(number)
            assert_same_client(server.state.clients[i], clients[i], (number, i))
        require_mean_loss(line, losses, [client.view for client in clients])
        bits = math.ceil(levels * CLASSES / 8)
        sent = [4 * WIDTH * len(proto) + 4 * CLASSES + bits for proto, _ in uploads.values()]
        received = [4 * WIDTH * len(plain.known) + bits for down in recorded.downloads.values() if "proto.rows" in down]
        assert (line["bytes_up"], line["bytes_down"]) == (sum(sent), sum(received) + len(cohort) * options.tells_hops)
        met, notes = plain.admitted[before:], line.get("notes", {})
        if met:
            assert notes["set size"] == pytest.approx(sum(size for size, _ in met) / len(met))
        if (loss := plain.take(number, uploads)) is not None:
            assert notes["server loss"] == pytest.approx(loss, rel=1e-4)
        assert_same_server(server.state.server, plain, (number,))
    # An option without a say would be tested by nothing.
    assert returning
    assert any(size > 1 for size, _ in plain.admitted)
    assert any(size < having for size, having in plain.admitted)
    assert max(plain.margins) > 0
    assert (max(plain.margins) == options.margin_cap) == (options.margin_cap < 1)
    assert any(plain.drawn) == bool(options.hops)
    if options.attention == "node":
        assert any(float(outer.detach().abs().max()) > 0.1 for client in clients for _, outer in client.scorers)


@pytest.mark.exhaustive(3)
@pytest.mark.parametrize("name", [name for name in OPTIONS if name not in SHARED])
def test_rounds_of_the_self_control(name: str, begun: Begin) -> None:
    server, _, clients = begun(OPTIONS[name])
    for number in range(1, ROUNDS + 1):
        line, losses = server.round(), {}
        for i in server.cohort(number):
            losses[i] = clients[i].visit(number, clients[i].own)
            clients[i].upload(number)
            assert_same_client(server.state.clients[i], clients[i], (number, i))
        require_mean_loss(line, losses, [client.view for client in clients])
        assert (server.state.server, line["bytes_up"], line["bytes_down"]) == ({}, 0, 0)
