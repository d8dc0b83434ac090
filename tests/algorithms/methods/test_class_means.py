"""Class means: whole rounds written out, with clients that come late or fail, and what a config may not say."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from support.fixtures import Check, Keys, PlainClients, Start
from torch import Tensor

from shoal.algorithms.base import Client, Output, Received, Upload
from shoal.algorithms.methods.class_means import ClassMeans
from shoal.algorithms.rng import key
from shoal.storage.store.view import View

ME = {"algorithm.name": "class_means"}


@dataclass(frozen=True)
class Failing(ClassMeans):
    """Client 4 fails when it has to send its means in round 2, client 0 at the end of round 6."""

    def upload(self, client: Client, received: Received, phase: str) -> Upload:
        if client.random("noise") in (key(0, 2, 4, "noise"), key(0, 6, 0, "noise")):
            raise RuntimeError("no power")
        return super().upload(client, received, phase)


def own_means(view: View, hop: int, at_least: int, share: float, seed: int) -> dict[int, tuple[np.ndarray, int]]:
    """Mean rows of a client's classes that have enough nodes, and their numbers; noise from the client's stream."""
    random = torch.Generator().manual_seed(seed)
    chosen = torch.randperm(5, generator=random)[: round(share * 5)].numpy()
    noise = torch.randn(4, len(chosen), generator=random).double().numpy()
    label, means = view.label[view.train].tolist(), {}
    for c in sorted(set(label)):
        mean = np.mean([view.hop(hop)[row].double().numpy() for row, y in zip(view.train, label) if y == c], 0)
        mean[chosen] += np.sqrt(np.mean((mean - mean.mean()) ** 2)) * noise[c]
        if label.count(c) >= at_least:
            means[c] = mean, label.count(c)
    return means


def train(client: Any, round_number: int, means: dict[int, Tensor], weight: float) -> None:
    """Every mean is a node of its class that counts for `weight` of the client's own."""
    rows, label = torch.stack(list(means.values())), torch.tensor(list(means))

    def loss(out: Output, y: Tensor) -> Tensor:
        logits = client.module([rows] * len(client.module.inputs)).logits_NC
        every = F.cross_entropy(logits, label, reduction="sum")
        return F.cross_entropy(out.logits_NC, y) + weight / len(client.y) * every

    client.train(round_number, loss)


@pytest.mark.parametrize(
    ("own", "failing"),
    [
        ({}, False),
        ({"at_least": 1, "noise": 1.0, "hops": 0}, False),
        ({"weight": 2.5, "at_least": 3, "noise": 0.4}, True),
        ({"weight": 0.5, "at_least": 1, "noise": 0.6, "hops": 1, "model": "gamlp"}, True),
    ],
)
def test_rounds_written_out(
    start: Start, patchy: Keys, plain_clients: PlainClients, assert_holds: Check, own: Keys, failing: bool
) -> None:
    """Newcomers bring their means once; who takes part learns from those of all who came, sent again if they changed.

    A client that fails brings nothing, and is as it was before.
    """
    more = {"model.name" if name == "model" else f"algorithm.{name}": value for name, value in own.items()}
    method = {"algorithm.name": f"{__file__}:Failing", "engine.on_client_error": "skip"} if failing else ME
    server = start({**patchy, **more, **method})
    fails = {(2, 4), (6, 0)} if failing else set()
    clients, weight = plain_clients(server), own.get("weight", 1.0)
    met: set[int] = set()
    told: dict[int, list[int]] = {}
    brought: dict[int, dict[int, tuple[np.ndarray, int]]] = {}
    for number in range(1, 8):
        line, up, down = server.round(), 0, 0
        cohort = set(server.cohort(number))
        for i in sorted(cohort - met):
            if (number, i) in fails:
                cohort.remove(i)
                continue
            met.add(i)
            options = own.get("hops", 2), own.get("at_least", 2), own.get("noise", 0.0)
            if found := own_means(clients[i].view, *options, key(0, number, i, "noise")):
                brought[i] = found
            up += 4 * (5 * len(found) + 4)
        sums = {c: [found[c] for found in brought.values() if c in found] for c in range(4)}
        means = {
            c: torch.from_numpy(np.average([mean for mean, _ in pairs], 0, [n for _, n in pairs])).float()
            for c, pairs in sums.items()
            if pairs
        }
        for i in sorted(cohort):
            if told.get(i, []) != sorted(brought):
                down += 4 * 5 * len(means) + 1
            if (number, i) in fails:
                continue
            told[i] = sorted(brought)
            train(clients[i], number, means, weight)
            held = server.state.clients[i]
            torch.testing.assert_close(held["means"], torch.stack(list(means.values())), rtol=1e-5, atol=1e-6)
            assert held["means.class"].tolist() == list(means)
        assert (line["bytes_up"], line["bytes_down"]) == (up, down)
        assert_holds(server, clients)
    assert met == {0, 1, 2, 3, 4, 5}


def test_a_class_of_few_nodes_stays_at_home(start: Start) -> None:
    server = start({**ME, "algorithm.at_least": 1000})
    for _ in range(2):
        line = server.round()
        assert line["bytes_down"] == 0
    assert "sum" not in server.state.server
    assert "means" not in server.state.clients[0]
