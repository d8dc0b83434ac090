"""The floor for clients of many small graphs: PyG's loader, layers and pooling, one loop over the clients.

Graphs lie in memory as PyG's `Data`, which is not counted as work of a round; batches hold the same graphs in the same
order as Shoal's.
"""

import sys
from functools import cache
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from task import ItemTask, Turns, by_rows, read
from torch import Tensor, nn
from torch_geometric.data import Data
from torch_geometric.loader import DataLoader
from torch_geometric.nn import GCNConv, GINConv, global_mean_pool

from shoal.algorithms.rng import key
from shoal.storage.shards.view import Cache, View
from shoal.storage.store.store import Store


class Model(nn.Module):
    """Three layers and a classifier of the pooled embedding, parameters in the order of Shoal's."""

    def __init__(self, name: str, features: int, classes: int, hidden: int = 64, layers: int = 3) -> None:
        super().__init__()
        self.head = nn.Linear(hidden, classes)
        widths = [features, *[hidden] * (layers - 1)]
        self.convs = nn.ModuleList(
            GCNConv(width, hidden) if name == "gcn" else GINConv(mlp(width, hidden), train_eps=True) for width in widths
        )

    def forward(self, batch: Data) -> Tensor:
        first, *others = self.convs
        x = first(batch.x, batch.edge_index)
        for conv in others:
            x = conv(F.relu(x), batch.edge_index)
        return self.head(global_mean_pool(x, batch.batch))


def mlp(width: int, hidden: int) -> nn.Module:
    """A layer's network of GIN."""
    return nn.Sequential(nn.Linear(width, hidden), nn.ReLU(), nn.Linear(hidden, hidden), nn.LayerNorm(hidden))


def graphs_of(view: View) -> list[Data]:
    """The client's training graphs."""
    starts, columns = view.csr
    found = []
    for item in view.train.tolist():
        low, high = view.graph_ptr[item : item + 2].tolist()
        degree = np.diff(starts[low : high + 1])
        edges = np.stack(
            [np.array(columns[starts[low] : starts[high]]) - low, np.repeat(np.arange(high - low), degree)]
        )
        x = view.x[low:high].float().clone()
        found.append(Data(x=x, edge_index=torch.from_numpy(edges).long(), y=view.label[item : item + 1]))
    return found


def main() -> None:
    task = read(sys.argv[1], ItemTask)
    turns = Turns(task.a_turn)
    store, nothing = Store(Path(task.store)), Cache(0)

    @cache
    def of(client: int) -> list[Data]:
        return graphs_of(View(client, *store.data(task.split, None, client), store.manifest.classes, nothing))

    for cohort in task.cohorts:
        for client in cohort:
            of(client)
    model = Model(task.model, store.manifest.features, store.manifest.classes)
    parameters = list(model.parameters())
    nn.utils.vector_to_parameters(task.start(), parameters)
    served = [p.detach().clone() for p in parameters]
    optimizer = torch.optim.SGD(parameters, lr=task.lr)
    for number, cohort in enumerate(task.cohorts, 1):
        turns.wait()
        total = [torch.zeros_like(p) for p in served]
        rows = sum(len(of(client)) for client in cohort)
        for client in cohort:
            with torch.no_grad():
                torch._foreach_copy_(parameters, served)
            torch.manual_seed(key(0, number, client, "train"))
            graphs = of(client)
            order = torch.randperm(len(graphs)).tolist()
            for batch in DataLoader([graphs[i] for i in order], task.batch):
                optimizer.zero_grad()
                F.cross_entropy(model(batch), batch.y).backward()
                optimizer.step()
            with torch.no_grad():
                torch._foreach_add_(total, parameters, alpha=len(graphs) / rows)
        served = total
        turns.finished()
        if number == task.compared:
            with torch.no_grad():
                torch._foreach_copy_(parameters, served)
            task.finish(by_rows(model))
