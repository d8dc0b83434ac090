"""Whole rounds over pairs of nodes, against PyG and plain torch, from the published arrays."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from support.fixtures import Keys, PlainClients, Start, Views
from support.plain_dropout import dropped
from support.plain_fedavg import DROPOUT, SGD, require_fedavg, row_counts
from support.pyg_clients import Exported, ItemClient, require_prototypes
from support.small_pairs import FEATURES, NO_EDGES, OF_CLIENT, ONE_EDGE
from torch import Tensor, nn
from torch_geometric.nn import GCNConv

from shoal.algorithms.models.build import build
from shoal.engine.rounds.server import Server
from shoal.storage.graph.pairs import EDGE
from shoal.storage.shards.view import View

HIDDEN, ROUNDS, CLASSES = 8, 3, 2
MODELS: dict[str, dict[str, Any]] = {
    "gcn": {"model.name": "gcn"},
    "sgc": {"model.name": "sgc", "model.layers": 2},
    "sgc of one layer": {"model.name": "sgc", "model.layers": 1},
}


class Net(Exported):
    """Embeds nodes, multiplies both ends, and a linear layer."""

    def __init__(self, kind: str) -> None:
        name, _, rest = kind.partition(" ")
        options = {"hidden": HIDDEN} if name == "gcn" else {"hidden": HIDDEN, "layers": 1 if rest else 2}
        super().__init__(lambda: build(name, FEATURES, CLASSES, 2, DROPOUT, options, task="edge"))
        self.kind = kind
        self.backbone, head = nn.Module(), nn.Module()
        self.backbone.head = head
        widths = {"gcn": [HIDDEN], "sgc": [FEATURES, HIDDEN], "sgc of one layer": [FEATURES]}[kind]
        head.linears = nn.ModuleList(nn.Linear(*pair) for pair in zip(widths, [*widths[1:], CLASSES]))
        if kind == "gcn":
            self.backbone.convs = nn.ModuleList([GCNConv(FEATURES, HIDDEN), GCNConv(HIDDEN, HIDDEN)])

    def nodes(self, client: "PlainClient") -> Tensor:
        """Embeddings of all nodes."""
        if self.kind != "gcn":
            *before, _ = self.backbone.head.linears
            return F.relu(before[0](client.hop)) if before else client.hop
        first, second = self.backbone.convs
        x = dropped(F.relu(first(client.x, client.edges)), DROPOUT, self.training)
        return second(x, client.edges)

    def embed(self, client: "PlainClient", items: Tensor) -> Tensor:
        z = self.nodes(client)
        return torch.stack([z[a] * z[b] for a, b in client.pairs[items].tolist()])

    def forward(self, client: "PlainClient", items: Tensor) -> Tensor:
        return self.backbone.head.linears[-1](dropped(self.embed(client, items), DROPOUT, self.training))


class PlainClient(ItemClient):
    """A client of pairs: the published edges among its nodes but those that its pairs hold out."""

    def __init__(self, number: int, folder: Path, view: View, kind: str) -> None:
        x, edges, assignment = (np.load(folder / f"{name}.npy") for name in ("x", "edge_index", "assignment"))
        super().__init__(number, Net(kind))
        assert view.pairs is not None
        self.view, self.pairs, self.y, self.rows = view, view.pairs, view.label, view.train.numpy()
        place = {int(node): row for row, node in enumerate(view.node)}
        joined = {tuple(sorted((place[a], place[b]))) for a, b in edges.T.tolist() if a in place and b in place}
        assert all(assignment[node] == number for node in place)
        shown = set(view.train.tolist())
        hidden = {tuple(p) for i, p in enumerate(view.pairs.tolist()) if view.label[i] == EDGE and i not in shown}
        assert hidden <= joined
        left = sorted({(a, b) for p, q in joined - hidden for a, b in ((p, q), (q, p))})
        self.x = torch.from_numpy(x[view.node])
        self.edges = torch.tensor(left, dtype=torch.int64).reshape(-1, 2).t()
        adjacency = torch.eye(len(place))
        adjacency[tuple(self.edges)] = 1
        root = adjacency.sum(1).rsqrt()
        self.hop = torch.linalg.matrix_power(root[:, None] * adjacency * root, 2) @ self.x

    def logits_of(self, items: np.ndarray) -> Tensor:
        return self.module(self, torch.from_numpy(items)) if len(items) else torch.empty(0, CLASSES)

    def embed(self, items: np.ndarray) -> Tensor:
        return self.module.embed(self, torch.from_numpy(items))

    def counts(self) -> np.ndarray:
        return row_counts(self.view, self.predicted(), CLASSES)


@pytest.fixture
def plain(edge_task: dict[str, Any], views: Views) -> Callable[[Server, str], list[PlainClient]]:
    def plain(server: Server, kind: str) -> list[PlainClient]:
        return [PlainClient(i, Path(edge_task["data.path"]), view, kind) for i, view in enumerate(views(server))]

    return plain


def keys_of(edge_task: Keys, kind: str, **more: Any) -> dict[str, Any]:
    return {**edge_task, **SGD, **MODELS[kind], "rounds": ROUNDS, **more}


@pytest.mark.exhaustive(3)
@pytest.mark.parametrize("size", [None, 5])
@pytest.mark.parametrize("kind", MODELS)
def test_fedavg_is_that_of_plain_torch(
    start: Start, edge_task: dict[str, Any], plain: Callable[..., list[PlainClient]], kind: str, size: int | None
) -> None:
    """Parameters, counts of predictions and weights, whole batches or five pairs a step, dropout included."""
    server = start({**keys_of(edge_task, kind), "train.batch_size": size})
    clients = plain(server, kind)
    assert [info.items for info in server.infos] == [len(client.pairs) for client in clients]
    assert [info.nodes for info in server.infos] == list(OF_CLIENT)
    untrained = {i for i, client in enumerate(clients) if not len(client.view.train)}
    assert untrained == {NO_EDGES, ONE_EDGE}
    assert not len(clients[NO_EDGES].pairs)
    items = {client.number: len(client.pairs) for client in clients}
    require_fedavg(server, clients, items, untrained, size, ROUNDS)


@pytest.mark.parametrize("kind", ["gcn", "sgc"])
def test_prototypes_are_means_over_pairs(start: Start, edge_task: Keys, plain: PlainClients, kind: str) -> None:
    """FedProto's after a round, from the embeddings of training pairs by the models that clients keep."""
    server = start({**keys_of(edge_task, kind), "algorithm.name": "fedproto", "model.init": "own", "rounds": 1})
    server.round()
    require_prototypes(server, plain(server, kind), CLASSES)
