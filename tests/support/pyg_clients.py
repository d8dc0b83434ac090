"""Clients of small graphs as PyG alone has them: its loader's batches, layers and pooling."""

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
from shoal.storage.options.split_codes import TEST, TRAIN, VAL
from shoal.storage.shards.view import View

HIDDEN = 8


class Net(nn.Module):
    """GCN, mean pooling, a linear layer; parameters are named as in an export."""

    def __init__(self) -> None:
        super().__init__()
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

    def load(self, w: Tensor) -> None:
        ours = build("gcn", FEATURES, CLASSES, 2, DROPOUT, {"hidden": HIDDEN}, task="graph")
        nn.utils.vector_to_parameters(w.clone(), ours.parameters())
        self.load_state_dict(dict(ours.named_parameters()))

    @property
    def w(self) -> dict[str, Tensor]:
        return {name: p.detach().double().clone() for name, p in self.named_parameters()}


class PlainClient:
    """A client as PyG alone has it."""

    def __init__(self, number: int, folder: Path, view: View, module: nn.Module | None = None) -> None:
        """Reads its graphs from the published arrays, their nodes in the order of the shard, which dropout sees."""
        arrays = {file.stem: np.load(file) for file in folder.glob("*.npy")}
        self.number = number
        self.module = Net() if module is None else module
        self.optimizer = torch.optim.SGD(self.module.parameters(), lr=0.1, momentum=0.9, weight_decay=0.01)
        self.graphs: list[Data] = []
        mine = np.flatnonzero(arrays["assignment"] == number)
        self.split, self.y = arrays["split"][mine], arrays["y"][mine]
        for graph in mine:
            nodes = view.node[arrays["graph"][view.node] == graph]
            place = {int(node): row for row, node in enumerate(nodes)}
            pairs = [(int(a), int(b)) for a, b in arrays["edge_index"].T if int(a) in place and a != b]
            edges = sorted({(place[p], place[q]) for a, b in pairs for p, q in ((a, b), (b, a))})
            index = torch.tensor(edges, dtype=torch.int64).reshape(-1, 2).t()
            self.graphs.append(Data(x=torch.from_numpy(arrays["x"][nodes]), edge_index=index, num_nodes=len(nodes)))

    def batch(self, graphs: np.ndarray) -> Batch:
        return Batch.from_data_list([self.graphs[g] for g in graphs])

    def train(self, round_number: int, size: int | None) -> None:
        rows = np.flatnonzero(self.split == TRAIN)
        torch.manual_seed(key(0, round_number, self.number, "train"))
        self.module.train()
        for _ in range(EPOCHS):
            order = rows if size is None or size >= len(rows) else rows[torch.randperm(len(rows)).numpy()]
            for start in range(0, len(rows), size or max(len(rows), 1)):
                chosen = order[start : start + (size or len(rows))]
                self.optimizer.zero_grad()
                F.cross_entropy(self.module(self.batch(chosen)), torch.from_numpy(self.y[chosen])).backward()
                self.optimizer.step()

    def counts(self) -> np.ndarray:
        found = np.zeros((2, 3, CLASSES), dtype=np.int64)
        self.module.eval()
        with torch.no_grad():
            predicted = self.module(self.batch(np.arange(len(self.graphs)))).argmax(1).tolist()
        for part, code in enumerate((VAL, TEST)):
            for g in np.flatnonzero(self.split == code):
                found[part, 0, self.y[g]] += 1
                found[part, 1, predicted[g]] += 1
                found[part, 2, self.y[g]] += self.y[g] == predicted[g]
        return found
