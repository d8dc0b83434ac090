"""Clients of graphs or pairs as PyG alone has them: its loader's batches, layers and pooling."""

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from support.plain_dropout import dropped
from support.plain_fedavg import DROPOUT, EPOCHS
from support.small_graphs import CLASSES, FEATURES
from torch import Tensor, nn
from torch_geometric.data import Batch, Data
from torch_geometric.nn import GCNConv, global_mean_pool

from shoal.algorithms.models.build import build
from shoal.algorithms.rng import key
from shoal.engine.rounds.server import Server
from shoal.storage.options.split_codes import TEST, TRAIN, VAL
from shoal.storage.shards.view import View

HIDDEN = 8


class Exported(nn.Module):
    """A network whose parameters are named as in an export; `make` builds the same model of ours."""

    def __init__(self, make: Callable[[], nn.Module]) -> None:
        super().__init__()
        self.make = make

    def load(self, w: Tensor) -> None:
        """Reads the parameters of the model of ours, `[P]`."""
        ours = self.make()
        nn.utils.vector_to_parameters(w.clone(), ours.parameters())
        self.load_state_dict(dict(ours.named_parameters()))

    @property
    def w(self) -> dict[str, Tensor]:
        """The parameters by their names, float64."""
        return {name: p.detach().double().clone() for name, p in self.named_parameters()}


class Net(Exported):
    """GCN, mean pooling, a linear layer."""

    def __init__(self) -> None:
        super().__init__(lambda: build("gcn", FEATURES, CLASSES, 2, DROPOUT, {"hidden": HIDDEN}, task="graph"))
        self.backbone = nn.Module()
        self.backbone.head = nn.Module()
        self.backbone.head.linears = nn.ModuleList([nn.Linear(HIDDEN, CLASSES)])
        self.backbone.convs = nn.ModuleList([GCNConv(FEATURES, HIDDEN), GCNConv(HIDDEN, HIDDEN)])

    def embed(self, batch: Batch) -> Tensor:
        first, second = self.backbone.convs
        x = dropped(F.relu(first(batch.x, batch.edge_index)), DROPOUT, self.training)
        return global_mean_pool(second(x, batch.edge_index), batch.batch)

    def forward(self, batch: Batch) -> Tensor:
        return self.backbone.head.linears[0](dropped(self.embed(batch), DROPOUT, self.training))


class ItemClient:
    """A client with SGD and items, whose `rows` train; a subclass says what its network answers for some."""

    rows: np.ndarray
    y: Tensor

    def __init__(self, number: int, module: nn.Module) -> None:
        self.number, self.module = number, module
        self.optimizer = torch.optim.SGD(module.parameters(), lr=0.1, momentum=0.9, weight_decay=0.01)

    def logits_of(self, items: np.ndarray) -> Tensor:
        raise NotImplementedError

    def train(self, round_number: int, size: int | None) -> None:
        rows = self.rows
        torch.manual_seed(key(0, round_number, self.number, "train"))
        self.module.train()
        for _ in range(EPOCHS):
            order = rows if size is None or size >= len(rows) else rows[torch.randperm(len(rows)).numpy()]
            for start in range(0, len(rows), size or max(len(rows), 1)):
                chosen = order[start : start + (size or len(rows))]
                self.optimizer.zero_grad()
                F.cross_entropy(self.logits_of(chosen), self.y[chosen]).backward()
                self.optimizer.step()

    def embed(self, items: np.ndarray) -> Tensor:
        raise NotImplementedError

    def predicted(self) -> list[int]:
        """Computes the class of every item, nothing dropped."""
        self.module.eval()
        with torch.no_grad():
            return self.logits_of(np.arange(len(self.y))).argmax(1).tolist()


def require_prototypes(server: Server, clients: Sequence[ItemClient], classes: int) -> None:
    """Asserts that prototypes are means of training items' embeddings by the models that clients keep."""
    rows: dict[int, list[Tensor]] = {}
    for client in clients:
        client.module.load(server.state.clients[client.number]["model.w"])
        client.module.eval()
        for item in client.rows:
            with torch.no_grad():
                rows.setdefault(int(client.y[item]), []).append(client.embed(np.array([item]))[0])
    assert server.state.server["known"].tolist() == [c in rows for c in range(classes)]
    for c, of_class in rows.items():
        mean = torch.stack(of_class).mean(0)
        torch.testing.assert_close(server.state.server["proto"][c], mean, rtol=1e-4, atol=1e-5)


def graphs_of(folder: Path, number: int, view: View) -> list[tuple[np.ndarray, list[tuple[int, int]]]]:
    """Reads features and pairs, smaller row first, of a client's graphs; nodes are in the order of its shard."""
    arrays = {file.stem: np.load(file) for file in folder.glob("*.npy")}
    graphs = []
    for graph in np.flatnonzero(arrays["assignment"] == number):
        nodes = view.node[arrays["graph"][view.node] == graph]
        place = {int(node): row for row, node in enumerate(nodes)}
        ends = [(place[int(a)], place[int(b)]) for a, b in arrays["edge_index"].T if int(a) in place and a != b]
        graphs.append((arrays["x"][nodes], sorted({(min(a, b), max(a, b)) for a, b in ends})))
    return graphs


class PlainClient(ItemClient):
    """A client of small graphs."""

    def __init__(self, number: int, folder: Path, view: View, module: nn.Module | None = None) -> None:
        super().__init__(number, Net() if module is None else module)
        mine = np.load(folder / "assignment.npy") == number
        self.split, self.y = np.load(folder / "split.npy")[mine], torch.from_numpy(np.load(folder / "y.npy")[mine])
        self.rows = np.flatnonzero(self.split == TRAIN)
        self.graphs: list[Data] = []
        for x, pairs in graphs_of(folder, number, view):
            edges = sorted((a, b) for p, q in pairs for a, b in ((p, q), (q, p)))
            index = torch.tensor(edges, dtype=torch.int64).reshape(-1, 2).t()
            self.graphs.append(Data(x=torch.from_numpy(x), edge_index=index, num_nodes=len(x)))

    def batch(self, graphs: np.ndarray) -> Batch:
        return Batch.from_data_list([self.graphs[g] for g in graphs])

    def logits_of(self, items: np.ndarray) -> Tensor:
        return self.module(self.batch(items))

    def embed(self, items: np.ndarray) -> Tensor:
        return self.module.embed(self.batch(items))

    def counts(self) -> np.ndarray:
        """Counts graphs, predictions and hits by class, in validation and test, `[2, 3, C]`."""
        counts, predicted = np.zeros((2, 3, CLASSES), dtype=np.int64), self.predicted()
        for part, code in enumerate((VAL, TEST)):
            for g in np.flatnonzero(self.split == code):
                counts[part, 0, self.y[g]] += 1
                counts[part, 1, predicted[g]] += 1
                counts[part, 2, self.y[g]] += int(self.y[g]) == predicted[g]
        return counts
