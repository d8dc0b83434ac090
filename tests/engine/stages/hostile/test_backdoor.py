"""Rounds with a backdoor against rounds written out, dense; what is refused."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from support.errors import refused
from support.other_device.device_cases import METHODS
from support.shards import dense, dense_hops
from torch.nn import functional as F

from shoal.algorithms.rng import key
from shoal.engine.config.config import Config
from shoal.engine.rounds.server import Server
from shoal.engine.runs.plan import RunPlan
from shoal.engine.stages.hostile.hostile import hostile_clients
from shoal.engine.stages.hostile.section import AttackOptions
from shoal.storage.store.store import Store

Start = Callable[..., Server]
LR, TARGET = 0.5, 1
# SGC of two hops, by one step of plain SGD a round.
KEYS = {"attack.kind": "backdoor", "attack.share": 0.4, "attack.target": TARGET, "attack.poison": 0.5}
PLAIN = {"model.name": "sgc", "train.optimizer": "sgd", "train.lr": LR, "train.epochs": 1, "train.dropout": 0.0}
PLAIN |= {"train.weight_decay": 0.0, "algorithm.weight": "train", **KEYS}


class Written:
    """A client's graph, dense."""

    def __init__(self, store: Store, client: int, split: str) -> None:
        shard, parts = store.shard(client), store.split(split, client)
        self.train, self.test = parts.train.tolist(), parts.test.tolist()
        self.y, self.x, self.node = shard.label.copy(), dense(shard.x).astype(np.float64), shard.node
        self.edges = np.zeros((shard.nodes, shard.nodes))
        for row in range(shard.nodes):
            self.edges[row, shard.indices[shard.indptr[row] : shard.indptr[row + 1]]] = 1

    def attach(self, rows: list[int], seed: int) -> None:
        """Three nodes at each row, joined with it and each other, with the one column of five that is drawn."""
        column = int(np.random.default_rng(key(seed, "trigger")).permutation(5)[0])
        size, nodes = np.sqrt((self.x**2).sum(1)).mean(), len(self.x)
        total = nodes + 3 * len(rows)
        edges, x = np.zeros((total, total)), np.zeros((total, 5))
        edges[:nodes, :nodes], x[:nodes], x[nodes:, column] = self.edges, self.x, size
        for place, row in enumerate(rows):
            group = [row, *range(nodes + 3 * place, nodes + 3 * place + 3)]
            for i in group:
                for j in group:
                    edges[i, j] = i != j
        self.edges, self.x = edges, x

    def logits(self, w: np.ndarray) -> torch.Tensor:
        hops = dense_hops(self.edges, self.x)
        _, second = next(hops), next(hops)
        weight = torch.tensor(w, dtype=torch.float64)
        return torch.tensor(second) @ weight[:-4].view(4, 5).T + weight[-4:]

    def step(self, w: np.ndarray) -> np.ndarray:
        free = torch.tensor(w, dtype=torch.float64, requires_grad=True)
        hops = dense_hops(self.edges, self.x)
        _, second = next(hops), next(hops)
        logits = torch.tensor(second)[self.train] @ free[:-4].view(4, 5).T + free[-4:]
        F.cross_entropy(logits, torch.tensor(self.y[self.train]).long()).backward()
        assert free.grad is not None
        return w - LR * free.grad.numpy()


def hostile_of(server: Server) -> frozenset[int]:
    return hostile_clients(AttackOptions(kind="backdoor", share=0.4), 6, server.job.seed)


def poison(client: Written, number: int, seed: int) -> None:
    others = sorted((row for row in client.train if client.y[row] != TARGET), key=lambda row: client.node[row])
    count = min(max(1, len(client.train) // 2), len(others))
    rows = sorted(np.random.default_rng(key(seed, number, "backdoor")).permutation(others)[:count].astype(int).tolist())
    client.y[rows] = TARGET
    client.attach(rows, seed)


def test_rounds_of_fedavg_with_a_backdoor(start: Start) -> None:
    server = start(PLAIN)
    store, seed = server.job.open_store(), server.job.seed
    clients = {i: Written(store, i, server.job.split) for i in range(6)}
    for i in hostile_of(server):
        poison(clients[i], i, seed)
    w = server.state.server["w"].numpy().astype(np.float64)
    for _ in range(4):
        trained = {i: (of.step(w), len(of.train)) for i, of in clients.items() if of.train}
        w = np.average([t[0] for t in trained.values()], axis=0, weights=[t[1] for t in trained.values()])
        line = server.round()
        np.testing.assert_allclose(server.state.server["w"], w, rtol=0, atol=1e-5)
    rates: dict[str, list[float]] = {"backdoor": [], "untriggered": []}
    for i, before in clients.items():
        rows = [row for row in before.test if before.y[row] != TARGET]
        if not rows:
            continue
        after = Written(store, i, server.job.split)
        after.attach(rows, seed)
        for rate, of in zip(rates, (after, before)):
            rates[rate].append(float((of.logits(w)[rows].argmax(1) == TARGET).double().mean()))
    test = line["scopes"]["global"]["test"]
    for rate, found in rates.items():
        assert test[rate]["clients"] == pytest.approx(np.mean(found))
        assert test[rate]["ranked"] == len(found) == 5
    assert test["backdoor"]["clients"] > test["untriggered"]["clients"]
    # Accuracy is of graphs without triggers at test nodes.
    right = {
        i: (of.logits(w)[of.test].argmax(1).numpy() == of.y[of.test]).mean() for i, of in clients.items() if of.test
    }
    assert test["clients"] == pytest.approx(np.mean(list(right.values())))
    assert (
        "backdoor" not in line["scopes"]["global"]["val"] or line["scopes"]["global"]["val"]["backdoor"]["ranked"] == 0
    )


@pytest.mark.parametrize("keys", [
    {"model.name": "gcn"}, {"model.name": "sage"}, {"model.name": "gat"}, {"model.name": "mlp"},
    {"data.inductive": True}, {"propagation.keep": "none"}, {"engine.trainer": "batched", "model.name": "sgc"},
    *(METHODS[name] for name in ("fgssl", "fggp", "fedsage_plus", "adafgl", "fednh", "fedproto", "fedgta", "fedpub")),
], ids=str)  # fmt: skip
def test_every_model_and_method_has_rates(start: Start, keys: dict[str, Any]) -> None:
    line: dict[str, Any] = {}
    server = start({**KEYS, **keys})
    for _ in range(2):
        line = server.round()
    for scope in line["scopes"].values():
        for rate in ("backdoor", "untriggered"):
            assert 0 <= scope["test"][rate]["rows"] <= 1
    if keys.get("model.name") == "mlp":
        # It reads no edge, and never sees the trigger.
        assert scope["test"]["backdoor"] == scope["test"]["untriggered"]


def test_a_domains_whole_graph_has_none(start: Start, three_domains: Any) -> None:
    line = start({**three_domains.keys, **KEYS}).round()
    assert line["scopes"]["global"]["test"]["backdoor"]["ranked"]
    assert not line["scopes"]["domains"]["test"]["backdoor"]["ranked"]


def test_wrong_backdoors_are_refused(
    configure: Callable[..., Config], start: Start, graph_task: dict[str, Any]
) -> None:
    with refused("attack.target", says="4, and classes of"):
        start({**KEYS, "attack.target": 4})
    for keys, says in (
        (graph_task, "task is graph; take label_flip"),
        ({"data.cross_edges": "hops"}, "take data.cross_edges=drop"),
        ({"propagation.rows": "labelled"}, "shows labelled ones; take all"),
    ):
        with refused("attack.kind", says=says):
            RunPlan.of(configure({**keys, **KEYS}))
