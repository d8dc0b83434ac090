"""FedStar in whole rounds against PyG alone, over clients of one graph, of none to train on, and of odd graphs."""

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import load_file
from support.errors import refused
from support.fixtures import Configure, Keys, Make, Start, Views
from support.plain_dropout import dropped
from support.plain_fedavg import SGD
from support.pyg_clients import DROPOUT, Exported, PlainClient
from support.small_graphs import CLASSES, FEATURES, OF_CLIENT, ONE_GRAPH, WITHOUT_TRAIN
from support.written_rounds import cohorts_of
from torch import Tensor, nn
from torch_geometric.data import Batch
from torch_geometric.nn import GCNConv, GINConv, global_mean_pool
from torch_geometric.transforms import AddRandomWalkPE

from shoal.algorithms.client import FlatModel
from shoal.algorithms.methods.fedstar import structure_of
from shoal.algorithms.models.build import build
from shoal.engine.runs.export import export
from shoal.engine.runs.run import run as run_config
from shoal.storage.options.split_codes import TRAIN
from shoal.storage.shards.view import View

HIDDEN = 6
KEYS = {"model": {"name": "star", "hidden": HIDDEN, "init": "own"}, "algorithm.name": "fedstar", **SGD}
# Client 5 has no training graph and is alone in round 2; client 3, of one graph, comes once.
ONLINE = [[0, 1, 5], [5], [0, 2, 3, 4], [1, 2, 5]]


class Structure(nn.Module):
    """The encoder that is shared, as PyG has its layers; all names are as in an export."""

    def __init__(self) -> None:
        super().__init__()
        self.lift = nn.Linear(32, HIDDEN)
        self.convs = nn.ModuleList(GCNConv(HIDDEN, HIDDEN) for _ in range(2))


class Net(Exported):
    """Both encoders, mean pooling, a linear layer."""

    def __init__(self) -> None:
        super().__init__(lambda: build("star", FEATURES, CLASSES, 2, DROPOUT, {"hidden": HIDDEN}, task="graph"))

        def mlp() -> nn.Module:
            return nn.Sequential(
                nn.Linear(2 * HIDDEN, HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, HIDDEN), nn.LayerNorm(HIDDEN)
            )

        self.backbone = nn.Module()
        self.backbone.head = nn.Module()
        self.backbone.head.linears = nn.ModuleList([nn.Linear(2 * HIDDEN, CLASSES)])
        self.backbone.lift = nn.Linear(FEATURES, HIDDEN)
        self.backbone.convs = nn.ModuleList(GINConv(mlp(), train_eps=True) for _ in range(2))
        self.backbone.structure = Structure()

    def forward(self, batch: Batch) -> Tensor:
        inner = self.backbone
        x, s = inner.lift(batch.x), inner.structure.lift(batch.codes)
        for layer in range(2):
            x = dropped(x, DROPOUT, self.training) if layer else x
            heard = torch.cat([x, s], 1)
            s = torch.tanh(inner.structure.convs[layer](s, batch.edge_index))
            x = F.relu(inner.convs[layer](heard, batch.edge_index))
        pooled = global_mean_pool(torch.cat([x, s], 1), batch.batch)
        return inner.head.linears[0](dropped(pooled, DROPOUT, self.training))

    @property
    def structure(self) -> Tensor:
        return nn.utils.parameters_to_vector(self.backbone.structure.parameters()).detach().double()


class StarClient(PlainClient):
    """A client with both encoders; random walks are PyG's transform."""

    module: Net

    def __init__(self, number: int, folder: Path, view: View, w: Tensor) -> None:
        super().__init__(number, folder, view, Net())
        self.module.load(w)
        for data in self.graphs:
            degree = torch.bincount(data.edge_index[0], minlength=data.num_nodes)
            hot = F.one_hot(degree.clamp(max=16), 17)[:, 1:].float()
            alone = not data.edge_index.numel()
            walks = torch.zeros(data.num_nodes, 16) if alone else AddRandomWalkPE(16, "pe")(data.clone()).pe
            data.codes = torch.cat([walks, hot], 1)

    def receive(self, structure: Tensor) -> None:
        nn.utils.vector_to_parameters(structure.float(), self.module.backbone.structure.parameters())


@pytest.fixture
def keys(graph_task: dict[str, Any], tmp_path: Path) -> dict[str, Any]:
    plain = {name: value for name, value in graph_task.items() if name != "model.name"}
    return {**plain, **KEYS, **cohorts_of(tmp_path, ONLINE)}


@pytest.mark.exhaustive(3)
@pytest.mark.parametrize(("size", "weight"), [(None, None), (3, "train"), (None, "uniform")])
def test_rounds_written_out(start: Start, keys: Keys, views: Views, size: int | None, weight: str | None) -> None:
    more = {"algorithm.weight": weight} if weight else {}
    server = start({**keys, **more, "train.batch_size": size})
    (kind,) = server._built["model"]
    starts = [server.job.initial(kind, "model", i) for i in range(6)]
    assert len({tuple(w.tolist()) for w in starts}) == 6
    folder = Path(keys["data.path"])
    clients = [StarClient(i, folder, view, starts[i]) for i, view in enumerate(views(server))]
    sizes = [graph.num_nodes for client in clients for graph in client.graphs]
    assert min(sizes) == 1
    assert any(not graph.edge_index.numel() and graph.num_nodes > 1 for client in clients for graph in client.graphs)
    shared = clients[0].module.structure
    torch.testing.assert_close(server.state.server["w"].double(), shared)
    for number, cohort in enumerate(ONLINE, start=1):
        line = server.round()
        trained: dict[int, Tensor] = {}
        for i in cohort:
            clients[i].receive(shared)
            clients[i].train(number, size)
            trained[i] = clients[i].module.structure
            np.testing.assert_array_equal(server.state.scores["trained"][i], clients[i].counts())
            kept = Net()
            kept.load(server.state.clients[i]["model.w"])
            for name, value in kept.w.items():
                torch.testing.assert_close(value, clients[i].module.w[name], rtol=1e-3, atol=1e-4)
        of = {"train": lambda i: int((clients[i].split == TRAIN).sum()), "uniform": lambda i: 1}
        weights = {i: of.get(weight or "", lambda i: OF_CLIENT[i])(i) for i in cohort if i != WITHOUT_TRAIN}
        if weights:
            shared = sum(n * trained[i] for i, n in weights.items()) / sum(weights.values())
        torch.testing.assert_close(server.state.server["w"].double(), shared, rtol=1e-3, atol=1e-4)
        scalars = len(shared)
        assert scalars == 32 * HIDDEN + HIDDEN + 2 * (HIDDEN * HIDDEN + HIDDEN)
        assert (line["bytes_up"], line["bytes_down"]) == (4 * len(cohort) * (scalars + 1), 4 * len(cohort) * scalars)
        assert line["scopes"].keys() == {"trained", "deployed"}
        for i in cohort:
            clients[i].receive(shared)
        for i, client in enumerate(clients):
            np.testing.assert_array_equal(server.state.scores["deployed"][i], client.counts())
    assert server.state.scores["deployed"][ONE_GRAPH].sum() == 0


def test_an_export_has_clients_and_no_model_of_the_server(
    configure: Make, start: Start, views: Views, keys: Keys, tmp_path: Path
) -> None:
    """By which PyG predicts what it says."""
    config = configure({**keys, "run.root": str(tmp_path), "run.tensorboard": False})
    out = export(run_config(config))
    models, batch = load_file(out / "models.safetensors"), pa.ipc.open_file(out / "predictions.arrow").get_batch(0)
    column = {name: batch.column(name).to_numpy() for name in ("client", "deployed")}
    server = start(keys)
    for i, view in enumerate(views(server)):
        client = StarClient(i, Path(keys["data.path"]), view, server._initial)
        own = {name.partition("/")[2].partition("/")[2]: t for name, t in models.items() if f"/{i:05d}/" in name}
        client.module.load_state_dict(own)
        predicted = client.module.eval()(client.batch(np.arange(len(client.graphs)))).argmax(1)
        np.testing.assert_array_equal(column["deployed"][column["client"] == i], predicted.numpy())
    assert {name.split("/")[0] for name in models} == {"client"}
    name = "backbone.structure.lift.weight"
    # Who came last, came together.
    assert torch.equal(models[f"client/00001/{name}"], models[f"client/00005/{name}"])
    assert not torch.equal(models[f"client/00001/{name}"], models[f"client/00000/{name}"])


@pytest.mark.parametrize(("more", "place"), [({"model": {"name": "gin"}}, "model.name"), ({"task": "node"}, "task")])
def test_refused(configure: Configure, keys: dict[str, Any], more: dict[str, Any], place: str) -> None:
    keys = {**keys, "run.tensorboard": False, **more}
    with refused(place):
        run_config(configure(keys))


@pytest.mark.parametrize("embedding", [None, 5])
@pytest.mark.parametrize("readout", ["mean", "attention"])
def test_where_the_structure_lies(readout: str, embedding: int | None) -> None:
    options = {"hidden": HIDDEN, "readout": readout}
    flat = FlatModel(build("star", FEATURES, CLASSES, 0, 0.0, options, embedding, task="graph"))
    place = structure_of(flat)
    with torch.no_grad():
        flat.w.zero_()
        flat.w[place] = 1
    for name, p in flat.module.named_parameters():
        assert bool((p == float("structure" in name)).all()), name
