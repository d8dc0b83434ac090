"""A graph whose edges have features, from its files to what clients train on, and what is refused of it."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from support.errors import refused

from shoal.algorithms.methods.registry.load import weighing_methods
from shoal.algorithms.models.inputs.neighbourhood import all_nodes
from shoal.engine.config.config import Config
from shoal.engine.preparing.checks import require_features_of_edges
from shoal.engine.preparing.prepare import prepare
from shoal.engine.rounds.server import Server
from shoal.engine.runs.dry_run import expected
from shoal.engine.runs.plan import RunPlan
from shoal.engine.runs.predict import open_graph, table_of
from shoal.engine.runs.pretrain import options_of, pretrain
from shoal.engine.runs.run import run
from shoal.engine.screen.tables import show_store
from shoal.storage.adapters import from_pyg, to_pyg
from shoal.storage.datasets.user.files import save_graph
from shoal.storage.shards.view import Cache, View
from shoal.storage.store.store import Store
from shoal.storage.store.verify import verify

Keys = Mapping[str, Any]
Start = Callable[..., Server]
Configure = Callable[..., Config]
# So many features of an edge, a function of its ends.
OF_EDGES = 2


def feature(sender: np.ndarray, receiver: np.ndarray) -> np.ndarray:
    """What an edge from one node to another has, by their numbers: 0 or 1 each."""
    return np.stack([(sender + 2 * receiver) % 3 == 0, sender > receiver], axis=-1).astype(np.float32)


@pytest.fixture(scope="session")
def of_kinds(tmp_path_factory: pytest.TempPathFactory, graphs: Mapping[str, Path]) -> dict[str, Any]:
    """Keys of the small federation whose edges have features, others each way."""
    from shutil import copytree

    folder = tmp_path_factory.mktemp("kinds")
    copytree(graphs["plain"], folder / "graph")
    edges = np.load(folder / "graph" / "edge_index.npy")
    both = np.unique(np.concatenate([edges, edges[::-1]], axis=1), axis=1)
    np.save(folder / "graph" / "edge_index.npy", both)
    np.save(folder / "graph" / "edge_attr.npy", feature(*both))
    return {"data.path": str(folder / "graph"), "data.store": str(folder / "store"), "model.name": "gine"}


def require_features(view: View) -> int:
    """Compares features of the edges of a view with those of their nodes; returns how many there are."""
    indptr, indices = view.csr
    receiver = view.node[np.repeat(np.arange(view.nodes), np.diff(indptr))]
    np.testing.assert_array_equal(view.edge_attr, feature(view.node[indices], receiver))
    return len(indices)


@pytest.mark.parametrize(
    "keys",
    [
        {},
        {"data.inductive": True},
        {"propagation.rows": "labelled", "model.name": "sgc"},
        {"data.sparsity.edges": 0.3},
        {"algorithm.name": "global"},
        {"task": "edge", "data.split": "stratified"},
    ],
    ids=str,
)
def test_parts_of_a_client_keep_features(keys: Keys, start: Start, of_kinds: Keys, tmp_path: Path) -> None:
    job = start({**of_kinds, "data.store": str(tmp_path / "store"), **keys}).job
    store = job.open_training(Store(job.store_path))
    assert store.manifest.edge_features == OF_EDGES
    assert verify(Store(job.store_path)) == verify(store) == []
    seen = sum(require_features(job.view(store, client, Cache(2**24))) for client in range(store.clients))
    assert seen > 50
    data = to_pyg(store.shard(0))
    assert data.edge_attr.shape == (data.edge_index.shape[1], OF_EDGES)


@pytest.mark.parametrize("model", ["gine", "rgcn"])
# FedGCN trains a GCN alone, FedIIH a DisenGCN.
@pytest.mark.parametrize("method", sorted({*weighing_methods("node")} - {"fedgcn", "fediih", "fedgm"}))
def test_methods_train_models_that_read_edges(method: str, model: str, start: Start, of_kinds: Keys) -> None:
    server = start({**of_kinds, "algorithm.name": method, "model.name": model})
    assert np.isfinite([server.round()["loss"] for _ in range(2)]).all()


def test_other_features_train_another_model(start: Start, of_kinds: Keys, tmp_path: Path) -> None:
    graph = from_pyg(to_pyg(prepared_graph(of_kinds)))
    assert graph.edge_attr is not None
    object.__setattr__(graph, "edge_attr", 1 - graph.edge_attr)
    other = {"data.path": str(save_graph(graph, tmp_path / "other")), "data.store": str(tmp_path / "store")}
    for model, reads in (("gine", True), ("gat", True), ("transformer", True), ("rgcn", True), ("gcn", False)):
        losses = [start({**of_kinds, "model.name": model, **keys}).round()["loss"] for keys in ({}, {}, other)]
        assert losses[0] == losses[1]
        assert (losses[0] != losses[2]) == reads, model


def prepared_graph(keys: Keys) -> Any:
    from shoal.storage.datasets.registry import load
    from shoal.storage.datasets.sources.source import DataSource

    return load(DataSource("files", path=keys["data.path"]))


@pytest.mark.parametrize(
    ("place", "says", "keys", "edge_features"),
    [
        ("model.name", "and those of dataset 'files' have none", {"model.name": "gine"}, 0),
        ("data.edge_features", "drop, and rgcn reads them", {"model.name": "rgcn", "data.edge_features": "drop"}, 0),
        ("algorithm.name", "gat reads features of edges, which those that fgssl makes have not",
         {"model.name": "gat", "algorithm.name": "fgssl"}, 2),
        ("model.name", "gine reads features", {"algorithm": {"name": "fml", "copilot": {"name": "gine"}}}, 0),
    ],
)  # fmt: skip
def test_refused_where_features_are_missing(
    place: str, says: str, keys: Keys, edge_features: int, configure: Configure
) -> None:
    config = configure(keys)
    with refused(place, says=says):
        require_features_of_edges(config, "files", edge_features)


def test_features_are_said_where_they_are(
    configure: Configure, of_kinds: Keys, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    config = configure({**of_kinds, "data.store": str(tmp_path / "store")})
    assert expected(RunPlan.of(config)).rows["edges"] == "2 features of edges, read by gine"
    store = prepare(config)
    assert expected(RunPlan.of(config)).rows["edges"] == "2 features of edges, read by gine"
    show_store(store.path, store.manifest)
    assert "edge features" in capsys.readouterr().out
    with refused("model.name", says="gine reads features of edges, and those of views have none"):
        pretrain(config, tmp_path / "gnn", options_of({"epochs": 1}), 2, "all")
    dropped = configure({**of_kinds, "model.name": "gcn", "data.edge_features": "drop", "data.store": None})
    assert prepare(dropped).manifest.edge_features == 0


def test_a_prompt_has_edges_without_features(graph_task: Keys) -> None:
    from shoal.algorithms.models.build import build

    for name in ("gine", "gat"):
        with refused("model.prompt", says=f"{name} reads features of edges, which those of a prompt have not"):
            build(name, 4, 2, 0, 0.0, {"prompt": "gpf"}, task="graph", edge_features=2)


def test_another_graph_is_predicted_by_its_edges(configure: Configure, of_kinds: Keys, tmp_path: Path) -> None:
    run_path = run(configure({**of_kinds, "rounds": 1, "run.root": str(tmp_path), "engine.backend": "local"}))
    graph = prepared_graph(of_kinds)
    scores = [
        table_of(open_graph(run_path, given, None), [None]) for given in (graph, to_pyg(graph), of_kinds["data.path"])
    ]
    assert scores[0] == scores[1]
    assert scores[0]["probability"] == scores[2]["probability"]
    bare = to_pyg(graph)
    del bare.edge_attr
    with refused("graph", says="expected 2 features an edge, as in "):
        open_graph(run_path, bare, None)


NODES = "id,label,kind,pages\na,0,book,1\nb,1,person,\nc,0,book,2\nd,1,person,\ne,0,book,3\nf,1,book,4\n"
EDGES = "source,target,relation\na,b,cites\nb,c,likes\nc,d,cites\nd,e,likes\ne,f,cites\n"


def test_columns_of_another_graph_are_those_of_the_run(
    configure: Configure, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def write(name: str, nodes: str = NODES, edges: str = EDGES) -> str:
        (tmp_path / name).mkdir()
        (tmp_path / name / "nodes.csv").write_text(nodes)
        (tmp_path / name / "edges.csv").write_text(edges)
        return str(tmp_path / name)

    keys = {"data.path": write("own"), "data.store": None, "data.dtype": "float32", "model.name": "rgcn", "rounds": 1}
    parts = {"partition.method": "random", "partition.clients": 1, "data.split": "per_client"}
    run_path = run(configure({**keys, **parts, "run.root": str(tmp_path / "runs"), "engine.backend": "local"}))

    def scores(path: str) -> Any:
        return table_of(open_graph(run_path, path, None), [None])["probability"]

    same = scores(keys["data.path"])
    # Relations and columns in another order, and one that no edge here is of.
    turned = write("turned", "pages,kind,label,id\n" + "".join(
        ",".join(line.split(",")[::-1]) + "\n" for line in NODES.splitlines()[1:]
    ))  # fmt: skip
    assert scores(turned) == same
    few = write("few", edges=EDGES.replace("likes", "cites"))
    assert scores(few) != same
    for name, nodes, edges, says in (
        ("more", NODES, EDGES.replace("likes", "hates"), "column 'relation hates' is none that the run had"),
        ("other", NODES.replace("pages", "price"), EDGES, "column 'price' is none that the run had"),
        ("fewer", "id,label,kind\n" + "".join(line.rpartition(",")[0] + "\n" for line in NODES.splitlines()[1:]), EDGES,
         "column 'pages' is missing, which the run had"),
    ):  # fmt: skip
        with refused(says=says):
            scores(write(name, nodes, edges))


MODEL = """
import torch
import shoal

class Kinds(shoal.Backbone):
    def __init__(self, features: int, edge_features: int):
        super().__init__(width=features)
        self.scale = torch.nn.Parameter(torch.ones(edge_features))

    def forward(self, x, edge_index, edge_attr):
        heard, hears = edge_index
        return torch.zeros_like(x).index_add(0, hears, (edge_attr @ self.scale)[:, None] * x[heard])
"""


def test_a_model_of_ones_own_may_ask_for_features(
    start: Start, of_kinds: Keys, configure: Configure, tmp_path: Path
) -> None:
    (tmp_path / "mine.py").write_text(MODEL)
    name = f"{tmp_path / 'mine.py'}:Kinds"
    server = start({**of_kinds, "model": {"name": name}, "train.dropout": 0.0})
    assert np.isfinite(server.round()["loss"])
    from shoal.algorithms.models.build import build

    store = Store(server.job.store_path)
    view = server.job.view(store, 1, Cache(2**24))
    module: Any = build(name, view.features, 4, 0, 0.0, {}, edge_features=OF_EDGES)
    found = module(all_nodes(view, "edges", 1)).embedding_NH
    receiver = np.repeat(np.arange(view.nodes), np.diff(view.csr[0]))
    dense = torch.zeros(view.nodes, view.nodes)
    dense[receiver, view.csr[1].astype(np.int64)] = torch.from_numpy(view.edge_attr.sum(1))  # type: ignore[union-attr]
    torch.testing.assert_close(found.detach(), dense @ view.x, rtol=1e-5, atol=1e-5)
    with refused("model.name", says="mine.py:Kinds reads features of edges, and those of dataset"):
        require_features_of_edges(configure({"model": {"name": name}}), "files", 0)
