"""OpenFGL's FedAvg and Local on Shoal's clients, items and pairs, for each of its tasks; prints their scores as JSON.

Trainer, clients, server, tasks, models and metrics are OpenFGL's. Its loader, which would download and divide the data
anew, is left out. With `ours` its clients train Shoal's model by Shoal's loss, written here in plain PyG: what is left
of a difference is then none of models and losses. OpenFGL names graph regression, and its module is empty; here it is
graph classification with a squared error.
"""

import contextlib
import io
import json
import pickle
import sys
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import openfgl.flcore.base as base
import torch
import torch.nn.functional as F
from openfgl.config import args
from openfgl.flcore import trainer
from openfgl.task import link_pred
from openfgl.task.graph_cls import GraphClsTask
from openfgl.task.node_clust import NodeClustTask
from openfgl.utils.basic_utils import load_task, seed_everything
from sklearn.cluster import KMeans
from sklearn.metrics import normalized_mutual_info_score
from torch import Tensor, nn
from torch_geometric.data import Data
from torch_geometric.nn import GCNConv, GINConv, global_mean_pool

PARTS = ("train", "val", "test")
METRIC = {"node": "accuracy", "edge": "auc", "cluster": "nmi", "graph": "accuracy", "regression": "r2"}
TASK = {"node": "node_cls", "edge": "link_pred", "cluster": "node_clust", "graph": "graph_cls"}


class Graphs:
    """Many small graphs, as OpenFGL's tasks read them."""

    def __init__(self, graphs: list[Data], classes: int) -> None:
        self.graphs, self.num_global_classes = graphs, classes
        self.y = torch.cat([graph.y for graph in graphs])

    def __len__(self) -> int:
        return len(self.graphs)

    def __getitem__(self, chosen: Any) -> Any:
        if isinstance(chosen, Tensor):
            return [self.graphs[number] for number in chosen.nonzero()[:, 0].tolist()]
        return self.graphs[chosen]

    def to(self, device: Any) -> "Graphs":
        return self


class Clients:
    """In the place of OpenFGL's dataset: what it hands to clients and server, from the benchmark's files."""

    def __init__(self, args: Any) -> None:
        """Reads all clients, and writes their split where OpenFGL looks for it."""
        self.kind, self.processed_dir = args.kind, args.root
        files = [np.load(Path(args.root) / f"{client}.npz") for client in range(args.num_clients)]
        self.folder = (
            Path(args.root) / ("graph_cls" if args.kind == "regression" else TASK[args.kind]) / "default_split"
        )
        self.folder.mkdir(parents=True, exist_ok=True)
        self.local_data, first = [], 0
        for client, file in enumerate(files):
            self.local_data.append(self._client(file, args.classes))
            (self._pairs if args.kind == "edge" else self._items)(client, file, first)
            first += len(file["part"])
        if args.kind in ("graph", "regression"):
            self.global_data: Any = Graphs([g for data in self.local_data for g in data.graphs], args.classes)
        else:
            self.global_data = self._whole(files, args.classes)

    def _client(self, file: Any, classes: int) -> Any:
        x, y, edges = (torch.from_numpy(file[name]) for name in ("x", "y", "edge_index"))
        if self.kind not in ("graph", "regression"):
            return Data(x=x, y=y, edge_index=edges, num_global_classes=classes)
        graphs = []
        for number, (start, end) in enumerate(zip(file["ptr"], file["ptr"][1:])):
            inside = edges[:, (edges[0] >= start) & (edges[0] < end)] - start
            graphs.append(Data(x=x[start:end], edge_index=inside, y=y[number : number + 1]))
        return Graphs(graphs, classes)

    def _items(self, client: int, file: Any, first: int) -> None:
        node = self.kind in ("node", "cluster")
        for number, name in enumerate(PARTS, start=1):
            torch.save(torch.from_numpy(file["part"] == number), self.folder / f"{name}_{client}.pt")
            chosen = np.flatnonzero(file["part"] == number)
            numbers = file["node"][chosen] if node else first + chosen
            (self.folder / f"glb_{name}_{client}.pkl").write_bytes(pickle.dumps(numbers.tolist()))

    def _pairs(self, client: int, file: Any, first: int) -> None:
        x, y, edges = (torch.from_numpy(file[name]) for name in ("x", "y", "edge_index"))
        ends = torch.from_numpy(file["ends"].T.copy())
        torch.save(Data(x=x, y=y, edge_index=edges), self.folder / f"forward_data_{client}.pt")
        torch.save(ends, self.folder / f"merged_edge_index_{client}.pt")
        torch.save(torch.from_numpy(file["node"])[ends], self.folder / f"glb_merged_edge_index_{client}.pkl")
        torch.save(torch.from_numpy(file["pair_label"]).float(), self.folder / f"merged_edge_label_{client}.pt")
        for number, name in enumerate(PARTS, start=1):
            torch.save(torch.from_numpy(file["part"] == number), self.folder / f"merged_edge_{name}_{client}.pt")

    def _whole(self, files: list[Any], classes: int) -> Data:
        """Joins all clients to one graph, whose nodes have the dataset's numbers; clustering takes the first client.

        OpenFGL's server of clustering would list all pairs of nodes in Python, and reads none.
        """
        if self.kind == "cluster":
            return self.local_data[0]
        back = np.argsort(np.concatenate([file["node"] for file in files]))
        x, y = (torch.from_numpy(np.concatenate([file[name] for file in files])[back]) for name in ("x", "y"))
        edges = torch.from_numpy(np.concatenate([file["node"][file["edge_index"]] for file in files], axis=1))
        return Data(x=x, y=y, edge_index=edges, num_global_classes=classes)


class Embedded:
    """Embeddings of nodes, and the model that scores pairs of them."""

    def __init__(self, z_NH: Tensor, model: "OurPairs") -> None:
        self.z_NH, self.model = z_NH, model


class OurPairs(nn.Module):
    """Shoal's GCN of one or two layers, below a linear classifier of the product of both embeddings."""

    def __init__(self, features: int, hidden: int, dropout: float, layers: int) -> None:
        super().__init__()
        widths = [features, *[hidden] * layers]
        self.convs = nn.ModuleList([GCNConv(a, b) for a, b in pairwise(widths)])
        self.head, self.dropout = nn.Linear(hidden, 2), dropout
        nn.init.xavier_uniform_(self.head.weight, gain=2**0.5)
        nn.init.zeros_(self.head.bias)

    def forward(self, data: Data) -> tuple[Embedded, None]:
        hidden, *convs = data.x, *self.convs
        for conv in convs[:-1]:
            hidden = F.dropout(F.relu(conv(hidden, data.edge_index)), self.dropout, self.training)
        return Embedded(convs[-1](hidden, data.edge_index), self), None

    def score(self, z_NH: Tensor, ends_2M: Tensor) -> Tensor:
        joined = F.dropout(z_NH[ends_2M[0]] * z_NH[ends_2M[1]], self.dropout, self.training)
        logits = self.head(joined)
        return logits[:, 1] - logits[:, 0]


class OurGIN(nn.Module):
    """Shoal's GIN: LayerNorm in each layer, the mean of a graph's nodes, one linear classifier."""

    def __init__(self, features: int, hidden: int, outputs: int, dropout: float) -> None:
        super().__init__()
        widths = [features, hidden, hidden]
        layers = [
            nn.Sequential(nn.Linear(a, b), nn.ReLU(), nn.Linear(b, b), nn.LayerNorm(b)) for a, b in pairwise(widths)
        ]
        self.convs = nn.ModuleList([GINConv(layer, train_eps=True) for layer in layers])
        self.head, self.dropout = nn.Linear(hidden, outputs), dropout
        nn.init.xavier_uniform_(self.head.weight, gain=2**0.5)
        nn.init.zeros_(self.head.bias)

    def forward(self, data: Data) -> tuple[Tensor, Tensor]:
        hidden = F.dropout(F.relu(self.convs[0](data.x, data.edge_index)), self.dropout, self.training)
        pooled = global_mean_pool(self.convs[1](hidden, data.edge_index), data.batch)
        return pooled, self.head(F.dropout(pooled, self.dropout, self.training))


class OurEmbedding(nn.Module):
    """A layer of GCN as it is, before ReLU, which Shoal's clusters embed by, and a classifier without a gradient."""

    def __init__(self, features: int, hidden: int) -> None:
        super().__init__()
        self.conv = GCNConv(features, hidden)

    def forward(self, data: Data) -> tuple[Tensor, None]:
        return self.conv(data.x, data.edge_index), None


def link_scores(embedding: Any, ends_2M: Tensor) -> Tensor:
    """Scores pairs by OpenFGL's product of embeddings, or by the model that made them."""
    if isinstance(embedding, Embedded):
        return embedding.model.score(embedding.z_NH, ends_2M)
    return (embedding[ends_2M[0]] * embedding[ends_2M[1]]).sum(1)


class Clusters(NodeClustTask):
    """OpenFGL's task of clusters, whose clusters are scored on the nodes of each part, too."""

    def __init__(self, args: Any, client: Any, data: Any, folder: str, device: Any) -> None:
        super().__init__(args, client, data, folder, device)
        self.splitted_data["part"] = np.load(Path(folder) / f"{client or 0}.npz")["part"]

    def train(self, splitted_data: Any = None) -> None:
        if not self.args.ours:
            super().train(splitted_data)
            return
        data = self.splitted_data["data"]
        joined = self.splitted_data["merged_edge_label"].view(data.num_nodes, -1).bool()
        i, j = data.edge_index[:, data.edge_index[0] < data.edge_index[1]]
        self.model.train()
        for _ in range(self.args.num_epochs):
            self.optim.zero_grad()
            u, v = torch.randint(data.num_nodes, (2, len(i)))
            none = ~joined[u, v]
            z_NH, _ = self.model(data)
            z_NH = z_NH - z_NH.mean(0)
            edges, pairs = (z_NH[i] * z_NH[j]).sum(1), (z_NH[u[none]] * z_NH[v[none]]).sum(1)
            (F.softplus(-edges).mean() + F.softplus(pairs).mean()).backward()
            self.optim.step()

    def evaluate(self, splitted_data: Any = None, mute: bool = True) -> dict[str, float]:
        """Clusters all nodes, as OpenFGL does, and scores those of each part."""
        chosen = splitted_data or self.splitted_data
        self.model.eval()
        with torch.no_grad():
            z_NH = self.model(chosen["data"])[0].numpy()
        clusters = KMeans(self.args.num_clusters, random_state=0, n_init=self.args.starts).fit_predict(z_NH)
        y, part = chosen["data"].y.numpy(), chosen["part"]
        shares = {name: part == number for number, name in enumerate(PARTS, start=1)}
        return {f"nmi_{name}": normalized_mutual_info_score(y[of], clusters[of]) for name, of in shares.items()}


class Regression(GraphClsTask):
    """Graph regression, of which OpenFGL has the name alone: its graph classification, by squared errors."""

    @property
    def default_loss_fn(self) -> Any:
        return lambda scores, y: F.mse_loss(scores[:, 0], y)

    def evaluate(self, splitted_data: Any = None, mute: bool = True) -> dict[str, list[float]]:
        """Returns mean squared error and variance of the items of each part."""
        chosen, result = splitted_data or self.splitted_data, {}
        self.model.eval()
        with torch.no_grad():
            for name in PARTS[1:]:
                batches = [(self.model(batch)[1][:, 0], batch.y) for batch in chosen[f"{name}_dataloader"]]
                scores, y = (torch.cat(some).double() for some in zip(*batches))
                result[f"r2_{name}"] = [float((scores - y).square().mean()), float(y.var(correction=0))]
        return result


def make_task(args: Any, client: Any, data: Any, folder: str, device: Any) -> Any:
    """Makes OpenFGL's task, or those of this file."""
    kind = {"cluster": Clusters, "regression": Regression}.get(args.kind)
    task = load_task(args, client, data, folder, device) if kind is None else kind(args, client, data, folder, device)
    features, hidden = task.num_feats, args.hid_dim
    ours = {
        "edge": partial(OurPairs, features, hidden, args.dropout, args.layers),
        "graph": partial(OurGIN, features, hidden, args.classes, args.dropout),
        "regression": partial(OurGIN, features, hidden, args.classes, args.dropout),
        "cluster": partial(OurEmbedding, features, hidden),
    }
    if args.ours and args.kind in ours:
        task.load_custom_model(ours[args.kind]())
    return task


class Scored(trainer.FGLTrainer):
    """OpenFGL's trainer, which keeps the scores of each client."""

    def __init__(self, args: Any) -> None:
        self.rounds: list[dict[str, Any]] = []
        super().__init__(args)

    def evaluate(self) -> None:
        """Scores clients' own models, and the server's on their items where one is sent, in some rounds."""
        if (self.message_pool["round"] + 1) % self.args.every:
            return
        name, line = METRIC[self.args.kind], {}
        models = (
            {"trained": None} if self.args.fl_algorithm == "isolate" else {"trained": None, "deployed": self.server}
        )
        for scope, server in models.items():
            of_clients = [
                client.task.evaluate(mute=True)
                if server is None
                else server.task.evaluate(client.task.splitted_data, mute=True)
                for client in self.clients
            ]
            line[scope] = {part: [scores[f"{name}_{part}"] for scores in of_clients] for part in PARTS[1:]}
        self.rounds.append(line)


def play(told: dict[str, Any]) -> list[dict[str, Any]]:
    """Plays one run; returns the scores of its rounds."""
    for key, value in told.items():
        setattr(args, key, value)
    args.use_cuda, args.dataset, args.metrics = False, ["Cora"], [METRIC[args.kind]]
    args.task = TASK.get(args.kind, "graph_cls")
    args.scenario = "graph_fl" if args.kind in ("graph", "regression") else "subgraph_fl"
    seed_everything(args.seed)
    run = Scored(args)
    run.train()
    return run.rounds


def main() -> None:
    """Plays the runs of a JSON list, the first argument, and says the scores of each in a line."""
    torch.set_num_threads(1)
    # Files of PyG's Data are objects, which torch refuses by default.
    torch.load = partial(torch.load, weights_only=False)
    base.load_task, link_pred.compute_edge_logits, trainer.FGLDataset = make_task, link_scores, Clients
    for told in json.loads(sys.argv[1]):
        # OpenFGL prints every client's scores.
        with contextlib.redirect_stdout(io.StringIO()):
            rounds = play(told)
        print(json.dumps(rounds), flush=True)


if __name__ == "__main__":
    main()
