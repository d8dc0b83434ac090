"""A graph whose edges have weights, from its files to what clients train on, against dense matrices."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from support.errors import refused
from support.fixtures import Configure, Keys, Start
from support.small_cells import require_same_tree, tensors_of

from shoal.algorithms.models.build import build
from shoal.algorithms.models.inputs.neighbourhood import all_nodes
from shoal.engine.config.config import Config
from shoal.engine.preparing.checks import require_weights_used
from shoal.engine.preparing.prepare import prepare
from shoal.engine.runs.dry_run import expected
from shoal.engine.runs.plan import RunPlan
from shoal.engine.runs.pretrain import options_of, pretrain
from shoal.engine.screen.tables import show_store
from shoal.storage.adapters import to_pyg
from shoal.storage.datasets.registry import load
from shoal.storage.datasets.sources.source import DataSource
from shoal.storage.shards.view import Cache, View
from shoal.storage.store.store import Store
from shoal.storage.store.verify import verify

CLIENTS, NODES, CLASSES = 6, 30, 4
ONES = """
import numpy as np
from dataclasses import replace
from pathlib import Path
import shoal
from shoal.storage.graph.from_arrays import graph_from_arrays

class Ones(shoal.Dataset):
    def load(self, root):
        arrays = {{file.stem: np.load(file) for file in Path({folder!r}).glob("*.npy")}}
        graph = graph_from_arrays("one", arrays, dict.fromkeys(arrays, "one"))
        return replace(graph, edge_weight=np.ones(graph.entries, dtype=np.float32))
"""


@pytest.fixture(scope="session")
def weights(weighted: Keys) -> np.ndarray:
    """What edges weigh, as a dense symmetric matrix of float32: zero where there is none, and on the diagonal."""
    source, target = np.load(Path(weighted["data.path"]) / "edge_index.npy")
    dense = np.zeros((CLIENTS * NODES,) * 2, dtype=np.float32)
    dense[source, target] = dense[target, source] = np.load(Path(weighted["data.path"]) / "edge_weight.npy")
    np.fill_diagonal(dense, 0)
    return dense


def dense_of(view: View, weights: np.ndarray) -> np.ndarray:
    """The weights of a client's edges, of its rows, float64."""
    same_client = view.node[:, None] // NODES == view.node // NODES
    return np.where(same_client, weights[np.ix_(view.node, view.node)], 0).astype(np.float64)


def smoothing(weights: np.ndarray, r: float = 0.5) -> np.ndarray:
    """D^(r-1) (A + I) D^-r."""
    loops = weights + np.eye(len(weights))
    degree = loops.sum(1)
    return degree[:, None] ** (r - 1) * loops * degree**-r


def require_weighed(view: View, weights: np.ndarray) -> None:
    """Everything that a view makes of edges, beside dense matrices."""
    np.testing.assert_array_equal(view.adjacency.to_dense(), weights)
    np.testing.assert_allclose(view.degree, 1 + weights.sum(1), rtol=1e-6)
    y = torch.rand(view.nodes, CLASSES, generator=torch.Generator().manual_seed(0))
    np.testing.assert_allclose(view.smooth(y), smoothing(weights) @ y.numpy(), rtol=1e-5, atol=1e-6)


def test_shards_and_hops_keep_weights(start: Start, weighted: Keys, weights: np.ndarray) -> None:
    job = start({**weighted, "algorithm.name": "global", "propagation.r": 0.3}).job
    whole = Store(job.store_path)
    stores = [Store(job.store_path.parent), whole]
    assert whole.path.name == "whole"
    for store in stores:
        assert store.manifest.weighted
        assert verify(store) == []
        for client in range(store.clients):
            view = job.view(store, client, Cache(2**24))
            dense = weights[np.ix_(view.node, view.node)] if store is whole else dense_of(view, weights)
            require_weighed(view, dense)
            np.testing.assert_array_equal(to_pyg(store.shard(client)).edge_weight, view.adjacency.values())
            operator, hop = smoothing(dense, 0.3), view.x.numpy().astype(np.float64)
            for k in (1, 2):
                hop = operator @ hop
                np.testing.assert_allclose(view.hop(k), hop, rtol=1e-5, atol=1e-6)


PAIRS = {"task": "edge", "data.split": "stratified", "model.name": "gcn"}


@pytest.mark.parametrize(
    ("keys", "all_edges"),
    [
        ({"data.inductive": True}, True),
        ({"propagation.rows": "labelled"}, True),
        ({"data.sparsity.edges": 0.3}, False),
        (PAIRS, False),
    ],
)
def test_parts_of_a_client_keep_weights(
    start: Start, weighted: Keys, weights: np.ndarray, keys: Keys, all_edges: bool, tmp_path: Path
) -> None:
    job = start({**weighted, "data.store": str(tmp_path / "store"), **keys}).job
    store = job.open_training(Store(job.store_path))
    assert verify(Store(job.store_path)) == verify(store) == []
    missing = 0
    for client in range(store.clients):
        view = job.view(store, client, Cache(2**24))
        there = view.adjacency.to_dense().numpy() > 0
        missing += int((there != (dense_of(view, weights) > 0)).sum())
        require_weighed(view, np.where(there, dense_of(view, weights), 0))
    assert (missing == 0) == all_edges


METHODS = {"fedgta": ["sgc", "gcnii"], "fedavg": ["gcn"], "adafgl": ["gcn"]}
RUNS: list[Keys] = [{"algorithm.name": m, "model.name": model} for m, models in METHODS.items() for model in models]
RUNS += [{"model.name": "gcn", "engine.trainer": "autograd"}]


@pytest.fixture(scope="session")
def of_one(tmp_path_factory: pytest.TempPathFactory, graphs: Mapping[str, Path]) -> Keys:
    """Keys of the small federation with weights that are all one, and yet kept."""
    folder = tmp_path_factory.mktemp("ones")
    (folder / "ones.py").write_text(ONES.format(folder=str(graphs["plain"])))
    return {"data.dataset": f"{folder / 'ones.py'}:Ones", "data.path": None, "data.store": str(folder / "store")}


@pytest.mark.parametrize("own", RUNS, ids=lambda own: " ".join(own.values()))
def test_weights_of_one_give_the_bits_of_no_weights(own: Keys, start: Start, weighted: Keys, of_one: Keys) -> None:
    plain, ones, others = (start({**own, **keys}) for keys in ({}, of_one, weighted))
    assert Store(ones.job.store_path).manifest.weighted
    losses = [[server.round()["loss"] for _ in range(2)] for server in (plain, ones, others)]
    assert losses[0] == losses[1] != losses[2]
    require_same_tree(tensors_of(ones), tensors_of(plain))


COPILOT = {"algorithm": {"name": "fml", "copilot": {"name": "sage"}}}
MIXED = {"model": [{"name": "sgc"}, {"name": "sage"}], "algorithm.name": "local"}


@pytest.mark.parametrize(
    ("place", "says", "keys"),
    [
        *(("model.name", f"{name} leaves out", {"model.name": name}) for name in ("sage", "gat", "gin", "transformer")),
        ("model.name", "sage leaves out; take gcn, gcnii or a model that reads hops, ", MIXED),
        ("model.fanouts", "by which no neighbours are drawn", {"model.name": "gcn", "model.fanouts": [3, 3]}),
        *(
            ("algorithm.name", f"{name} leaves out", {"algorithm.name": name, "model.name": "gcn"})
            for name in ("fedpg", "fedgkc", "fggp", "fgssl", "fedsage_plus")
        ),
        ("algorithm", "sage, a model of fml, leaves out", COPILOT),
        ("data.features", "degree leaves out", {"data.features": "degree"}),
    ],
)
def test_refused_where_weights_would_be_left_out(configure: Configure, place: str, says: str, keys: Keys) -> None:
    config = configure(keys)
    with refused(place, says=says):
        require_weights_used(config, "files", True)
    require_weights_used(config, "files", False)


def test_refused_before_and_after_a_store_is_made(
    configure: Configure, weighted: Keys, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    sage = {**weighted, "model.name": "sage"}
    fresh = configure({**sage, "data.store": str(tmp_path / "store")})
    prepare(configure(weighted))

    def rows(config: Config) -> dict[str, str]:
        return expected(RunPlan.of(config)).rows

    for call in (prepare, rows):
        for config in (fresh, configure(sage)):
            with refused("model.name", says="which sage leaves out"):
                call(config)
    assert not (tmp_path / "store" / "clients").exists()
    assert rows(configure(weighted))["edges"] == "weighted"
    assert "edges" not in rows(fresh.model_copy(update={"data": replace(fresh.data, edge_weights="drop")}))
    for config, said in ((configure(weighted), "undirected, weighted; cut"), (configure({}), "undirected; cut")):
        store = prepare(config)
        show_store(store.path, store.manifest)
        assert said in " ".join(capsys.readouterr().out.split())
    options = options_of({"epochs": 1})
    with refused("data.dataset", says="have weights, which views of altered edges leave out"):
        pretrain(configure({**weighted, "model.name": "gcn"}), tmp_path / "gnn", options, 2, "all")


MODEL = """
import torch
import shoal

class Sums(shoal.Backbone):
    def __init__(self, features: int):
        super().__init__(width=features)
        self.scale = torch.nn.Parameter(torch.ones(1))

    def forward(self, x, edge_index, edge_weight):
        heard, hears = edge_index
        return self.scale * torch.zeros_like(x).index_add(0, hears, edge_weight[:, None] * x[heard])
"""


def test_a_model_of_ones_own_may_ask_for_weights(
    start: Start, weighted: Keys, configure: Configure, weights: np.ndarray, tmp_path: Path
) -> None:
    (tmp_path / "mine.py").write_text(MODEL)
    (tmp_path / "other.py").write_text(MODEL.replace(", edge_weight", "").replace("edge_weight[:, None] * ", ""))
    model = {"name": f"{tmp_path / 'mine.py'}:Sums"}
    server = start({**weighted, "model": model, "train.dropout": 0.0})
    assert np.isfinite(server.round()["loss"])
    store = Store(server.job.store_path)
    view = server.job.view(store, 1, Cache(2**24))
    module = build(model["name"], view.features, CLASSES, 0, 0.0, {})
    found = module(all_nodes(view, "sum", 1)).embedding_NH
    np.testing.assert_allclose(found.detach(), dense_of(view, weights) @ view.x.numpy(), rtol=1e-5, atol=1e-5)
    other = configure({**weighted, "model": {"name": f"{tmp_path / 'other.py'}:Sums"}})
    with refused("model.name", says="other.py:Sums leaves out; "):
        require_weights_used(other, "files", True)


OWN = """
from types import SimpleNamespace
import numpy as np
import shoal

class Path(shoal.Dataset):
    def load(self, root):
        arrays = {"edge_index": np.array([[0, 1], [1, 2]]), "x": np.eye(3), "y": np.array([0, 1, 0])}
        return FORM(**arrays, edge_weight=np.array([0.5, 2]))
"""


@pytest.mark.parametrize("form", ["dict", "SimpleNamespace"])
def test_a_dataset_of_ones_own_may_give_weights(form: str, tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    file.write_text(OWN.replace("FORM", form))
    source = DataSource(f"{file}:Path")
    np.testing.assert_array_equal(load(source).edge_weight, [0.5, 0.5, 2, 2])
    file.write_text(file.read_text().replace("[0.5, 2]", "[0.5, -2]"))
    with refused(says="edge_weight: row 1 is -2.0; the weight of an edge is positive"):
        load(source)


def test_small_graphs_are_not_cut_out_of_a_weighted_one(weighted: Keys) -> None:
    source = DataSource("induced-node", base="files", path=weighted["data.path"], samples=2, smallest=2, largest=9)
    with refused("data.options.base", says="which induced-node leaves out"):
        load(source)
