"""FedGCN in whole rounds against dense matrices over the whole graph, in plain torch."""

from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from support.dense_graphs import smoothing
from support.errors import refused
from support.fixtures import Start
from torch import Tensor

from shoal.algorithms.protocol import MODEL
from shoal.engine.config.config import Config
from shoal.engine.preparing.checks import read_graph
from shoal.engine.preparing.prepare import prepare
from shoal.engine.runs.plan import RunPlan
from shoal.storage.store.store import Store

EDGES = ("drop", "one_hop", "two_hop")
NAMES = ("convs.0.lin.weight", "convs.0.bias", "head.linears.0.weight", "head.linears.0.bias")
LR, EPOCHS, ROUNDS = 0.3, 2, 3


def keys(hops: int, **more: Any) -> dict[str, Any]:
    plain = {"train.epochs": EPOCHS, "train.optimizer": "sgd", "train.lr": LR}
    plain |= {"train.weight_decay": 0.0, "train.dropout": 0.0, "engine.trainer": "autograd"}
    of_fedgcn = {"algorithm.name": "fedgcn", "algorithm.hops": hops, "data.cross_edges": EDGES[hops]}
    return {"model.name": "gcn", "model.head": "conv", **plain, **of_fedgcn, **more}


class PlainFedGCN:
    """The paper's federation of a GCN of two layers, over dense matrices of the whole graph."""

    def __init__(self, config: Config, store: Store, hops: int) -> None:
        graph = read_graph(config)
        nodes = len(graph.y)
        edges_NN = torch.zeros(nodes, nodes, dtype=torch.float64)
        weight = 1.0 if graph.edge_weight is None else torch.from_numpy(np.array(graph.edge_weight)).double()
        edges_NN[np.repeat(np.arange(nodes), np.diff(graph.indptr)), graph.indices.astype(np.int64)] = weight
        whole_NN, x_NF = torch.from_numpy(smoothing(edges_NN.numpy())), torch.from_numpy(np.array(graph.x)).double()
        self.clients = []
        for client in range(store.clients):
            shard, split = store.shard(client), store.split(config.data.split_name, client)
            mine = torch.from_numpy(np.array(shard.node)).long()
            own = torch.from_numpy(smoothing(edges_NN[mine][:, mine].numpy()))
            first, second = whole_NN @ x_NF, whole_NN[mine]
            if hops == 0:
                first, second = own @ x_NF[mine], own
            elif hops == 1:
                first, second = first[mine], own
            train = torch.from_numpy(np.array(split.train)).long()
            self.clients.append((first, second, train, torch.from_numpy(np.array(shard.label)).long()))

    def round(self, parameters: list[Tensor]) -> list[Tensor]:
        total, weights = [torch.zeros_like(p) for p in parameters], 0
        for first, second, train, label in self.clients:
            own = [p.clone().requires_grad_() for p in parameters]
            for _ in range(EPOCHS if len(train) else 0):
                w1, b1, w2, b2 = own
                logits = second @ (torch.relu(first @ w1.t() + b1) @ w2.t()) + b2
                gradients = torch.autograd.grad(F.cross_entropy(logits[train], label[train]), own)
                own = [(p - LR * g).detach().requires_grad_() for p, g in zip(own, gradients)]
            weight = len(label) if len(train) else 0
            total, weights = [t + weight * p.detach() for t, p in zip(total, own)], weights + weight
        return [t / weights for t in total]


@pytest.mark.exhaustive(3)
@pytest.mark.parametrize("trainer", ["autograd", "analytic", "batched"])
@pytest.mark.parametrize("hops", [0, 1, 2])
@pytest.mark.parametrize("weights", [False, True])
def test_whole_rounds_are_the_papers(
    start: Start, configure: Any, weighted: dict[str, Any], weights: bool, hops: int, trainer: str
) -> None:
    given = keys(hops, **{"engine.trainer": trainer}, **(weighted if weights else {}))
    server, config = start(given), configure(given)
    plain = PlainFedGCN(config, prepare(config), hops)
    flat = server._build(MODEL, 0)

    def named() -> list[Tensor]:
        flat.load(server.state.server["w"])
        found = dict(flat.module.named_parameters())
        return [found[name].detach().double().clone() for name in NAMES]

    expected = named()
    for _ in range(ROUNDS):
        server.round()
        expected = plain.round(expected)
        for found, wanted in zip(named(), expected):
            torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-5)


def test_other_edges_and_models_are_refused(configure: Any, start: Start) -> None:
    with refused("data.cross_edges", says="fedgcn with its options reads two_hop, found one_hop"):
        RunPlan.of(configure({**keys(2), "data.cross_edges": "one_hop"}))
    with refused("data.cross_edges", says="reads drop"):
        RunPlan.of(configure({**keys(0), "data.cross_edges": "two_hop"}))
    with refused("model.name"):
        start({**keys(1), "model.name": "sage"})
