"""Whole rounds of FedPG against the small version beside this file."""

import math
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from support import pyg_clients
from support.fixtures import ModuleOf, Start, Views
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
from torch import Tensor

from shoal.algorithms.methods.fedpg.fedpg import FedPG
from shoal.algorithms.protocol import Tree
from shoal.engine.rounds.server import Server

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
        assert_close(kept["attention"], scorers.detach(), (*what, "scorers"), atol=1e-4)
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
    "graphs, node": {"similar": 1, "mu": 0.8, "lam": 0.9, "pseudo_centres": 0.5},
    "graphs, prototype": {"similar": 4, "alignment": "prototype", "hops": 1, "cross_hop": 1.0, "noise": 0.25},
    "graphs, attention": {"similar": 2, "alignment": "prototype", "attention": "node", "attention_lr": 0.1},
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
            "algorithm.name": "fedpg",
            **{f"train.{name}": value for name, value in train.items()},
            **{f"algorithm.{name}": value for name, value in chosen.items()},
            "participation.ratio": 0.5,
            "rounds": ROUNDS,
        }
        server = start(keys, pool=recorded.on)
        options = SimpleNamespace(**{**DEFAULTS, **chosen})
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


@pytest.mark.exhaustive(3)
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
            assert bool(down) == bool(targets)
            if targets:
                proto, present = padded(targets, levels)
                assert_close(down["proto.rows"], proto[present], (number, i, "targets"))
            losses[i] = clients[i].visit(number, targets)
            uploads[i] = clients[i].upload(number)
            assert_same_client(server.state.clients[i], clients[i], (number, i))
        assert line["loss"] == pytest.approx(mean_loss(losses, clients), rel=1e-4)
        bits = math.ceil(levels * CLASSES / 8)
        sent = [4 * WIDTH * len(proto) + 4 * CLASSES + bits for proto, _ in uploads.values()]
        received = [4 * WIDTH * len(plain.known) + bits for down in recorded.downloads.values() if down]
        assert (line["bytes_up"], line["bytes_down"]) == (sum(sent), sum(received))
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
        assert line["loss"] == pytest.approx(mean_loss(losses, clients), rel=1e-4)
        assert (server.state.server, line["bytes_up"], line["bytes_down"]) == ({}, 0, 0)


def mean_loss(losses: dict[int, float], clients: Sequence[PlainClient]) -> float:
    rows = {i: len(clients[i].view.train) for i in losses if len(clients[i].view.train)}
    return sum(n * losses[i] for i, n in rows.items()) / sum(rows.values())
