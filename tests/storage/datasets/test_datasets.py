"""load and fingerprint of every dataset, several graphs joined to one, features that are given and made."""

import dataclasses
import json
import os
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
import torch
from support.errors import refused
from torch_geometric.data import Data
from torch_geometric.datasets import Amazon, Coauthor, Planetoid, Reddit
from torch_geometric.transforms import NormalizeFeatures

from shoal.storage.datasets.domains import domain_of_nodes, join_domains
from shoal.storage.datasets.features import features
from shoal.storage.datasets.features.feature_options import MadeFeatures
from shoal.storage.datasets.features.features import DENSE_NODES, made_features
from shoal.storage.datasets.readers import npz_graphs, planetoid
from shoal.storage.datasets.registry import fingerprint, load, record
from shoal.storage.datasets.sources.source import DataSource, data_root
from shoal.storage.graph.from_arrays import graph_from_arrays
from shoal.storage.graph.graph import Domain, Graph, clean_edges
from shoal.storage.options.dataset_names import DATASETS, INDUCED


def write_graph(folder: Path, x: np.ndarray) -> DataSource:
    edge_index = [[0, 1, 2], [1, 2, 3]]
    np.savez(folder / "g.npz", edge_index=edge_index, x=x, y=[0, 1, 0, 1])
    return DataSource("files", path=str(folder / "g.npz"))


def test_unknown_name_lists_the_known() -> None:
    with refused("data.dataset", says="did you mean 'cora'? unknown dataset 'coraa'; known are "):
        load(DataSource("coraa"))


@pytest.mark.exhaustive
@pytest.mark.usefixtures("offline")
@pytest.mark.parametrize("name", [name for name in DATASETS if name not in (*INDUCED, "files") and record(name).files])
def test_missing_file_offline_is_one_line(name: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (first, *_) = record(name).published_files(DataSource(name, root=str(tmp_path)))
    with refused(tmp_path / first, says="data.root or SHOAL_DATA to a folder that has"):
        load(DataSource(name.upper(), root=str(tmp_path), target=record(name).target, made=MadeFeatures("degree", 8)))
    assert capfd.readouterr() == ("", "")
    assert list(tmp_path.iterdir()) == []


def test_addresses_are_those_of_pyg() -> None:
    assert Planetoid.url == planetoid.URL
    assert {Amazon.url, Coauthor.url} == {npz_graphs.URL + "/"}
    assert Reddit.url == npz_graphs.REDDIT_URL


def test_data_root_of_key_variable_or_cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("SHOAL_DATA", str(tmp_path / "variable"))
    assert data_root("~/key") == tmp_path / "key"
    assert data_root(None) == tmp_path / "variable"
    monkeypatch.delenv("SHOAL_DATA")
    assert data_root(None) == tmp_path / ".cache/shoal"


def changed(options: DataSource) -> set[str]:
    """The fields whose change changes the fingerprint."""
    other = {
        "dataset": "cora", "root": "/r", "path": "/p", "scratch": "/s", "row_normalize": True, "blocks": 20,
        "homophily": 0.3, "signal": 0.3, "feature_dtype": "float16", "node_attributes": True, "degree_cap": 7,
        "base": "cora", "padding": "random", "shots": 9, "user_options": {"nodes": 9}, "title": "mine",
        "made": MadeFeatures("random"), "edge_weights": "drop", "edge_features": "drop", "beside": ("/f.npy",),
        "noted": ("/n.npy",), "target": "regression", "text": "abstract", "encoder": "mine.py:encode",
        "invalid": "drop",
    }  # fmt: skip
    found = set()
    for field in dataclasses.fields(options):
        value = other[field.name] if field.name in other else getattr(options, field.name) + 1
        if fingerprint(dataclasses.replace(options, **{field.name: value})) != fingerprint(options):
            found.add(field.name)
    return found


DEFINED_BY = {
    "digits": "neighbors",
    "proteins": "node_attributes",
    "collab": "degree_cap",
    "nci1": "",
    "pubmed": "",
    "sbm": "nodes classes features blocks degree homophily signal seed",
    "sbm-graphs": "graphs nodes classes features degree homophily signal seed",
    "induced-edge": "neighbors base samples shots width smallest largest padding seed",
    "ogbn-arxiv": "feature_dtype",
    "products-like": "scale homophily signal seed",
}


@pytest.mark.parametrize("name", DEFINED_BY)
def test_fingerprint_holds_what_defines_the_content_and_nothing_else(name: str) -> None:
    source = DataSource(name, base="digits") if name == "induced-edge" else DataSource(name)
    assert changed(source) == {"dataset", "row_normalize", "made", "target", *DEFINED_BY[name].split()}


def test_fingerprint_of_files_follows_the_files(tmp_path: Path) -> None:
    options = write_graph(tmp_path, np.ones((4, 3)))
    before = fingerprint(options)
    assert json.loads(json.dumps(before)) == before
    moved = tmp_path / "elsewhere" / "graph.npz"
    moved.parent.mkdir()
    shutil.copy(tmp_path / "g.npz", moved)
    assert fingerprint(dataclasses.replace(options, path=str(moved))) == before
    stat = (tmp_path / "g.npz").stat()
    write_graph(tmp_path, np.full((4, 3), 2.0))
    os.utime(tmp_path / "g.npz", ns=(stat.st_atime_ns, stat.st_mtime_ns))
    assert (tmp_path / "g.npz").stat().st_size == stat.st_size
    assert fingerprint(options) != before
    (tmp_path / "g.npz").unlink()
    with refused(tmp_path / "g.npz", says="not found"):
        fingerprint(options)


def test_import_loads_no_heavy_package() -> None:
    heavy = {"torch", "torch_geometric", "sklearn"}
    code = f"import sys, shoal.storage.datasets.registry; print({heavy} & set(sys.modules))"
    answer = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert answer.stdout == "set()\n"


def graph(name: str, edges: list[tuple[int, int]], x: Any, y: list[int], **arrays: Any) -> Graph:
    found = {"edge_index": np.array(edges).reshape(-1, 2).T, "x": x, "y": np.array(y), **arrays}
    return graph_from_arrays(name, found, {key: key for key in found})


FIRST = graph("first", [(0, 1), (1, 2)], np.array([[1.0, 0], [2, 0], [0, 3]]), [0, 1, -1])
SECOND = graph("second", [(0, 1)], np.array([[4.0, 5], [0, 6]]), [2, 0])


def test_nodes_of_the_second_follow_those_of_the_first() -> None:
    both = join_domains([FIRST, SECOND])
    assert both.domains == (Domain("first", 3), Domain("second", 2))
    assert (both.indptr.tolist(), both.indices.tolist()) == ([0, 1, 3, 4, 5, 6], [1, 0, 2, 1, 4, 3])
    assert both.indices.dtype == np.int32
    assert (both.y.tolist(), both.classes, both.name) == ([0, 1, -1, 2, 0], 3, "first+second")
    np.testing.assert_array_equal(both.x, [[1, 0], [2, 0], [0, 3], [4, 5], [0, 6]])
    assert join_domains([FIRST, replace(SECOND, synthetic=True)]).synthetic > both.synthetic
    assert (both.cleaning.entries_read, both.cleaning.reversed_added) == (3, 3)
    assert domain_of_nodes(both).tolist() == [0, 0, 0, 1, 1]


def test_columns_are_the_union_of_the_vocabularies() -> None:
    first = replace(FIRST, vocabulary=np.array(["rain", "mud"]))
    second = replace(SECOND, x=sp.csr_array(SECOND.x), vocabulary=np.array(["sun", "rain"]))
    both = join_domains([first, second])
    assert both.vocabulary.tolist() == ["mud", "rain", "sun"]
    np.testing.assert_array_equal(both.x.toarray(), [[0, 1, 0], [0, 2, 0], [3, 0, 0], [0, 5, 4], [0, 6, 0]])
    # The order in which graphs are named moves rows, and no column.
    turned = join_domains([second, first])
    np.testing.assert_array_equal(turned.x.toarray()[[2, 3, 4, 0, 1]], both.x.toarray())


def test_other_features_are_refused() -> None:
    wide = graph("wide", [(0, 1)], np.ones((2, 3)), [0, 1])
    with refused("data.dataset", says="found widths first 2, wide 3"):
        join_domains([FIRST, wide])
    # A vocabulary of one alone joins nothing.
    assert join_domains([replace(FIRST, vocabulary=np.array(["a", "b"])), SECOND]).vocabulary is None


def test_a_split_and_clients_are_kept_if_all_have_them() -> None:
    split = [replace(g, split=np.full(g.nodes, k, dtype=np.int8)) for k, g in enumerate((FIRST, SECOND), 1)]
    assert join_domains(split).split.tolist() == [1, 1, 1, 2, 2]
    assert join_domains([split[0], SECOND]).split is None
    own = [replace(g, assignment=np.arange(g.nodes, dtype=np.int32) % 2) for g in (FIRST, SECOND)]
    assert join_domains(own).assignment.tolist() == [0, 1, 0, 2, 3]
    assert join_domains([FIRST, own[1]]).assignment is None


def test_a_vocabulary_names_every_column_once() -> None:
    for vocabulary, says in ((np.array(["a", "a"]), "'a' is there twice"), (np.arange(2), "must be texts [2]")):
        with refused("vocabulary", says=says):
            graph("wrong", [], np.ones((2, 2)), [0, 1], vocabulary=vocabulary)


def test_a_graph_without_weights_weighs_one_beside_others() -> None:
    weighted = graph("first", [(0, 1), (1, 2)], FIRST.x, [0, 1, -1], edge_weight=np.array([0.5, 3.0]))
    both = join_domains([weighted, SECOND])
    assert (both.edge_weight.tolist(), both.edge_weight.dtype) == ([0.5, 0.5, 3, 3, 1, 1], np.float32)
    assert join_domains([FIRST, SECOND]).edge_weight is None


@pytest.fixture(params=[3, 1 << 22])
def block(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(features, "BLOCK_VALUES", request.param)


def words(rows: int = 50, columns: int = 40) -> np.ndarray:
    rng = np.random.default_rng(0)
    x = (rng.random((rows, columns)) < 0.2) * rng.integers(1, 9, (rows, columns))
    x[7] = 0
    return x.astype(np.float32)


@pytest.mark.usefixtures("block")
@pytest.mark.parametrize("sparse", [False, True])
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("rows", [[0], [31, 49], [49]])
def test_check_finite_names_the_first_bad_row(sparse: bool, value: float, rows: list[int]) -> None:
    x = words()
    features.check_finite(sp.csr_array(x) if sparse else x, "x.npy")
    x[rows, 17] = value
    with refused("x.npy", says=f"row {rows[0]} "):
        features.check_finite(sp.csr_array(x) if sparse else x, "x.npy")


@pytest.mark.usefixtures("block")
@pytest.mark.parametrize("sparse", [False, True])
def test_row_normalized_equals_pyg(sparse: bool) -> None:
    x = words()
    given = sp.csr_array(x) if sparse else x.copy()
    scaled = features.row_normalized(given, "x")
    assert (sp.issparse(scaled), scaled.dtype) == (sparse, np.float32)
    truth = NormalizeFeatures()(Data(x=torch.from_numpy(x.copy()))).x.numpy()
    np.testing.assert_allclose(scaled.toarray() if sparse else scaled, truth, rtol=1e-6)
    assert ((given.toarray() if sparse else given) == x).all()
    x[3, 3] = -1
    with refused("x"):
        features.row_normalized(sp.csr_array(x) if sparse else x, "x")


LIMIT = 1 << 30
# A star of three leaves, one more edge at a leaf, and a node alone.
EDGES = np.array([[0, 0, 0, 3], [1, 2, 3, 4]])


def made(kind: str, width: int = 4, seed: int = 0, edges: np.ndarray = EDGES, nodes: int = 6) -> np.ndarray:
    indptr, indices, _ = clean_edges(edges, nodes, "test")
    x = made_features(indptr, indices, MadeFeatures(kind, width, seed), LIMIT)  # type: ignore[arg-type]
    assert x.dtype == np.float32
    return x if isinstance(x, np.ndarray) else x.toarray()


def test_degrees_of_the_last_column_and_above_are_one() -> None:
    degrees = [3, 1, 1, 2, 1, 0]
    assert made("degree").argmax(axis=1).tolist() == degrees
    assert made("degree", 3).tolist() == [[min(d, 2) == k for k in range(3)] for d in degrees]


def test_random_numbers_follow_the_seed_and_are_standard_normal() -> None:
    x = made("random", 50, 3, nodes=4000)
    assert (x == made("random", 50, 3, nodes=4000)).all()
    assert (x != made("random", 50, 4, nodes=4000)).mean() > 0.99
    assert abs(x.mean()) < 0.01
    assert abs(x.std() - 1) < 0.01


@pytest.mark.parametrize("nodes", [40, DENSE_NODES + 1])
def test_eigenvectors_of_the_normalised_adjacency(nodes: int) -> None:
    rng = np.random.default_rng(1)
    edges = np.concatenate([rng.integers(nodes - 1, size=(2, 4 * nodes)), [range(nodes - 2), range(1, nodes - 1)]], 1)
    x = made("spectral", 5, edges=edges, nodes=nodes).astype(np.float64)
    adjacency = np.zeros((nodes, nodes))
    proper = edges[:, edges[0] != edges[1]]
    adjacency[proper[0], proper[1]] = adjacency[proper[1], proper[0]] = 1
    degree = adjacency.sum(axis=1)
    root = np.where(degree > 0, degree, 1) ** -0.5
    matrix = root[:, None] * adjacency * root
    values = np.sort(np.linalg.eigvalsh(matrix))[::-1][:5]
    assert values[0] == pytest.approx(1)
    np.testing.assert_allclose(matrix @ x, x * values, atol=1e-4)
    np.testing.assert_allclose(x.T @ x / nodes, np.eye(5), atol=1e-4)
    assert (x[np.abs(x).argmax(axis=0), range(5)] > 0).all()
    # The node without edges.
    np.testing.assert_allclose(x[-1], 0, atol=1e-5)


def test_one_column_a_node_and_what_is_too_wide_or_too_large() -> None:
    assert (made("one-hot") == np.eye(6)).all()
    with refused("data.features", says="20001 are more than 20000"):
        made("one-hot", nodes=20_001)
    with refused("data.features.width"):
        made("spectral", 7)
    with refused("data.features", says="take 96 bytes, the limit is 95"):
        made_features(np.zeros(7, dtype=np.int64), np.empty(0, np.int32), MadeFeatures("random", 4), 95)


def test_they_take_the_place_of_a_datasets_own() -> None:
    own = DataSource("sbm", nodes=40, classes=2)
    graph = load(dataclasses.replace(own, made=MadeFeatures("degree", 8)))
    assert graph.x.shape == (40, 8)
    assert (graph.x.toarray().argmax(axis=1) == np.minimum(np.diff(graph.indptr), 7)).all()
    cut = DataSource("induced-node", base="sbm", nodes=60, classes=2, smallest=5, largest=9, samples=4, width=6)
    assert load(dataclasses.replace(cut, made=MadeFeatures("random", 20))).features == 6
