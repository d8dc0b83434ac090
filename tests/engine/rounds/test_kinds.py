"""A graph with kinds from its file to a prediction: HGT, HAN, hops a relation, and what is refused."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from support.errors import refused
from torch_geometric.data import HeteroData

from shoal.algorithms.methods.registry.load import weighing_methods
from shoal.engine.config.config import Config
from shoal.engine.preparing.checks import require_fitting_data, require_kinds_kept
from shoal.engine.preparing.prepare import prepare
from shoal.engine.rounds.server import Server
from shoal.engine.runs.dry_run import expected
from shoal.engine.runs.export import export
from shoal.engine.runs.plan import RunPlan
from shoal.engine.runs.predict import open_graph, table_of
from shoal.engine.runs.run import run
from shoal.storage.adapters import from_pyg
from shoal.storage.datasets.user.files import save_graph
from shoal.storage.store.manifest import read_manifest
from shoal.storage.store.store import Store
from shoal.storage.store.verify import verify

Keys = Mapping[str, Any]
Start = Callable[..., Server]
Configure = Callable[..., Config]
BOOKS, PEOPLE, SHOPS = 60, 25, 3
PATHS = [["book", "person", "book"], ["book", "book"]]
MODELS: dict[str, dict[str, Any]] = {
    "hgt": {"model": {"name": "hgt", "hidden": 8, "heads": 2}},
    "han": {"model": {"name": "han", "hidden": 8, "heads": 2, "metapaths": PATHS}},
    "sign": {"model": {"name": "sign", "hidden": 8}, "propagation.hops": 2, "propagation.relations": True},
    "gamlp": {"model": {"name": "gamlp", "hidden": 8}, "propagation.hops": 2, "propagation.relations": True},
}
every_model = pytest.mark.parametrize("name", MODELS)


def library(seed: int = 0, unused: bool = True) -> HeteroData:
    """Books with classes, people with features, shops without; a relation has numbers, another one no edge."""
    rng, data = np.random.default_rng(seed), HeteroData()
    y = rng.integers(2, size=BOOKS)
    data["book"].x = torch.from_numpy(rng.standard_normal((BOOKS, 4)).astype(np.float32) + y[:, None])
    data["book"].y = torch.from_numpy(y)
    data["person"].x = torch.from_numpy(rng.standard_normal((PEOPLE, 3)).astype(np.float32))
    data["shop"].num_nodes = SHOPS
    # No node is of this kind.
    data["city"].num_nodes = 0
    for source, name, target, counts in (
        ("person", "wrote", "book", (PEOPLE, BOOKS)), ("book", "cites", "book", (BOOKS, BOOKS)),
        ("shop", "sells", "book", (SHOPS, BOOKS)),
    ):  # fmt: skip
        pairs = np.unique(np.stack([rng.integers(count, size=90) for count in counts]), axis=1)
        data[source, name, target].edge_index = torch.from_numpy(pairs)
    data["person", "wrote", "book"].edge_attr = torch.from_numpy(
        rng.random((data["person", "wrote", "book"].edge_index.shape[1], 2)).astype(np.float32)
    )
    if unused:
        data["person", "lives in", "city"].edge_index = torch.zeros(2, 0, dtype=torch.int64)
    return data


@pytest.fixture(scope="session")
def of_library(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    folder = tmp_path_factory.mktemp("library")
    save_graph(from_pyg(library()), folder / "graph")
    data = {"data.path": str(folder / "graph"), "data.store": str(folder / "store"), "data.split": "per_client"}
    return {**data, "partition.method": "random", "partition.clients": 3, "rounds": 2, "data.dtype": "float32"}


@every_model
# FedGCN trains a GCN alone; Fed-PUB and class means read powers of one propagation, FGGP models that pass messages,
# FedGM both, with weights of edges.
@pytest.mark.parametrize("method", sorted({*weighing_methods("node")} - {"fedgcn", "fedgm"}))
@pytest.mark.exhaustive
def test_methods_train_models_of_kinds(method: str, name: str, start: Start, of_library: Keys) -> None:
    keys = {**of_library, **MODELS[name], "algorithm.name": method}
    if "propagation.relations" in keys and method in ("fedpub", "class_means", "fedgkc", "fedkd", "fml"):
        with refused("propagation.relations"):
            start(keys)
        return
    server = start(keys)
    assert np.isfinite([server.round()["loss"] for _ in range(2)]).all()


@every_model
def test_kinds_of_a_store_are_those_of_the_graph(name: str, configure: Configure, of_library: Keys) -> None:
    config = configure({**of_library, **MODELS[name]})
    store = prepare(config)
    manifest, graph = store.manifest, from_pyg(library())
    assert manifest.kinds is not None
    assert manifest.kinds[0] == ["book", "person", "shop", "city"]
    assert [graph.vocabulary[column] for column in manifest.kinds[1]] == [f"kind {k}" for k in manifest.kinds[0]]  # type: ignore[index]
    # Relations both ways, citations the same way both ways, and one without an edge, behind which numbers stand.
    assert (manifest.relations, manifest.edge_features) == (6, 8)
    assert graph.edge_names is not None
    assert graph.edge_names[-3:] == ("person lives in city", "person wrote book[0]", "person wrote book[1]")
    assert verify(store) == []
    says = "whose kinds hops are of" if "propagation.relations" in MODELS[name] else f"read by {name}"
    assert says in expected(RunPlan.of(config)).rows["edges"]


@every_model
def test_a_run_is_exported_and_predicts(name: str, configure: Configure, of_library: Keys, tmp_path: Path) -> None:
    keys = {**of_library, **MODELS[name], "run.root": str(tmp_path), "engine.backend": "local"}
    path = run(configure(keys))
    assert (export(path) / "predictions.arrow").exists()
    scores = table_of(open_graph(path, from_pyg(library()), None), [None])["probability"]
    # An unused relation may be missing in a graph that is predicted.
    assert table_of(open_graph(path, from_pyg(library(unused=False)), None), [None])["probability"] == scores
    other = table_of(open_graph(path, from_pyg(library(1)), None), [None])["probability"]
    assert other != scores


@pytest.mark.parametrize("keep", ["labelled", "none"])
def test_hops_a_relation_are_computed_to_the_same_bits(keep: str, start: Start, of_library: Keys) -> None:
    losses = []
    for more in ({}, {"propagation.keep": keep}):
        server = start({**of_library, **MODELS["sign"], **more})
        losses.append([server.round()["loss"] for _ in range(2)])
    assert losses[0] == losses[1]


def test_relations_are_told_apart(start: Start, of_library: Keys) -> None:
    plain = {key: value for key, value in MODELS["sign"].items() if key != "propagation.relations"}
    of_relations, of_all = (start({**of_library, **keys}) for keys in (MODELS["sign"], plain))
    store = Store(of_relations.job.store_path)
    assert of_relations.job.hops == 2 * store.manifest.relations
    shard, _, hops = store.data(of_relations.job.split, of_relations.job.propagation, 0)
    assert len(hops) == of_relations.job.hops
    assert of_all.job.hops == 2
    # The unused relation, the last one, brings nothing.
    last = store.manifest.relations - 1
    found = [hop if isinstance(hop, np.ndarray) else hop.toarray() for hop in hops]
    assert not found[last].any()
    assert found[0].shape == (shard.nodes, store.manifest.features)
    assert of_relations.round()["loss"] != of_all.round()["loss"]


@pytest.mark.parametrize(
    ("place", "says", "keys"),
    [
        ("propagation.relations", "edges of dataset 'files' have no kinds",
         {"model.name": "sign", "propagation.relations": True}),
        ("model.name", "hgt reads features of edges, and those of dataset 'files' have none", {"model.name": "hgt"}),
        ("model.name", "han reads features of edges, and those of dataset 'files' have none", {"model.name": "han"}),
    ],
)  # fmt: skip
def test_models_of_kinds_need_kinds(place: str, says: str, keys: Keys, configure: Configure) -> None:
    config = configure(keys)
    with refused(place, says=says):
        require_fitting_data(config, "files", "node", 2, False, 0)


@pytest.mark.parametrize(
    ("keys", "says"),
    [
        ({"model.name": "gcn"}, "gamlp or sign"),
        ({"model.name": "sgc"}, "gamlp or sign"),
        ({"model.name": "sign", "propagation.hops": 0}, "above 0"),
        ({"model.name": "sign", "algorithm.name": "fedpub"}, "other than"),
    ],
)
def test_relations_without_effect_are_refused(keys: Keys, says: str, configure: Configure) -> None:
    with refused("propagation.relations", says=says):
        configure({"propagation.relations": True, **keys})


def test_hops_a_relation_are_of_no_weighted_edges(configure: Configure) -> None:
    config = configure({"model.name": "sign", "propagation.relations": True})
    with refused("propagation.relations", says="leave out weights of edges"):
        require_fitting_data(config, "files", "node", 2, True, 2)


def test_old_stores_do_not_say_kinds(configure: Configure, of_library: Keys, tmp_path: Path) -> None:
    config = configure({**of_library, **MODELS["hgt"], "data.store": str(tmp_path / "store")})
    store = prepare(config)
    replace(store.manifest, kinds=None).write(store.path)
    with refused(str(store.path), says="did not keep the kinds of nodes that hgt reads"):
        require_kinds_kept(config, store.path, read_manifest(store.path))
    with refused(str(store.path), says="made by an older Shoal"):
        prepare(config)
    assert prepare(configure({**of_library, "model.name": "rgcn", "data.store": str(tmp_path / "store")}))
