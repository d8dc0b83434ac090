"""PyG's arrays, from small files in the published form, and `pyg:CLASS/NAME` over real files."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
from support.errors import refused
from support.pyg_graphs import assert_equals_pyg, edge_set
from torch_geometric.datasets import Actor, Flickr, HeterophilousGraphDataset, KarateClub, WebKB

from shoal.storage.datasets.features.feature_options import MadeFeatures
from shoal.storage.datasets.readers.pyg import FLICKR, GEOM_GCN, HETEROPHILOUS, PUBLISHED
from shoal.storage.datasets.registry import labels_ahead, load, published_contents
from shoal.storage.datasets.sources.source import DataSource

PARTS = np.array([2, 1, 3, 1])
WORDS = {"cornell": ["1,0,0,1", "0,0,1,0", "0,1,1,1", "1,0,0,0"], "actor": ["0,3", "2", "1,2,3", "0"]}
NODES = "out1_node_feature_label.txt"


def write_flickr(root: Path) -> None:
    folder = root / "flickr/raw"
    folder.mkdir(parents=True)
    rng = np.random.default_rng(0)
    upper = np.triu(rng.random((30, 30)) < 0.2, 1)
    sp.save_npz(folder / "adj_full.npz", sp.csr_matrix((upper | upper.T).astype(float)))
    np.save(folder / "feats.npy", rng.standard_normal((30, 6)))
    # The published map is a JSON object in no order.
    (folder / "class_map.json").write_text(json.dumps({str(i): i % 4 for i in rng.permutation(30).tolist()}))
    parts = np.split(rng.permutation(30), [15, 22])
    (folder / "role.json").write_text(json.dumps(dict(zip(("tr", "va", "te"), map(np.ndarray.tolist, parts)))))


def write_geom_gcn(
    root: Path, name: str, order: tuple[int, ...] = (0, 1, 2, 3), nodes: int = 4, splits: int = 10
) -> None:
    folder = root / name / "raw"
    folder.mkdir(parents=True, exist_ok=True)
    words = WORDS["actor" if name == "actor" else "cornell"]
    lines = [f"{i}\t{words[i]}\t{i % 2}" for i in order]
    (folder / NODES).write_text("\n".join(["node_id\tfeature\tlabel", *lines]) + "\n")
    (folder / "out1_graph_edges.txt").write_text("node_id\tnode_id\n0\t1\n1\t0\n2\t3\n3\t3\n2\t0\n")
    for number in range(splits):
        parts = np.roll(PARTS, number)[:nodes]
        masks: dict[str, Any] = {
            f"{key}_mask": (parts == part).astype(np.uint8) for part, key in enumerate(("train", "val", "test"), 1)
        }
        np.savez(folder / f"{GEOM_GCN[name]}_split_0.6_0.2_{number}.npz", **masks)


def write_heterophilous(root: Path, name: str, **changes: Any) -> None:
    others = np.zeros((9, 3), dtype=bool)
    masks = {
        f"{key}_masks": np.vstack([np.arange(3) == k, others]) for key, k in zip(("train", "val", "test"), (2, 0, 1))
    }
    arrays = {
        "node_features": np.arange(6, dtype=np.float32).reshape(3, 2),
        "node_labels": np.array([1, 0, 1]),
        "edges": np.array([[0, 1], [1, 2]]),
        **masks,
    } | changes
    path = root / PUBLISHED[name].files[0]
    path.parent.mkdir(parents=True)
    np.savez(path, **arrays)


def test_flickr_equals_pyg(tmp_path: Path) -> None:
    write_flickr(tmp_path)
    graph = load(DataSource("flickr", root=str(tmp_path)))
    assert not (tmp_path / "flickr/processed").exists()
    assert_equals_pyg(graph, Flickr(str(tmp_path / "flickr"))[0])
    assert (graph.name, graph.classes) == ("flickr", 4)


@pytest.mark.parametrize("name", GEOM_GCN)
def test_geom_gcn_equals_pyg_and_needs_one_split(name: str, tmp_path: Path) -> None:
    write_geom_gcn(tmp_path, name, splits=1)
    graph = load(DataSource(name, root=str(tmp_path)))
    write_geom_gcn(tmp_path, name)
    assert_equals_pyg(graph, (Actor(str(tmp_path / "actor")) if name == "actor" else WebKB(str(tmp_path), name))[0])
    assert graph.x.tolist() == [[1, 0, 0, 1], [0, 0, 1, 0], [0, 1, 1, 1], [1, 0, 0, 0]]
    assert graph.split.tolist() == PARTS.tolist()
    assert (graph.name, edge_set(graph)) == (name, {(0, 1), (1, 0), (0, 2), (2, 0), (2, 3), (3, 2)})


@pytest.mark.parametrize("name", HETEROPHILOUS)
def test_heterophilous_equals_pyg(name: str, tmp_path: Path) -> None:
    write_heterophilous(tmp_path, name)
    graph = load(DataSource(name, root=str(tmp_path)))
    assert_equals_pyg(graph, HeterophilousGraphDataset(str(tmp_path), name)[0])
    assert (graph.split.tolist(), graph.y.tolist(), graph.name) == ([2, 3, 1], [1, 0, 1], name)


@pytest.mark.parametrize("file", FLICKR)
def test_damaged_file_is_named(file: str, tmp_path: Path) -> None:
    write_flickr(tmp_path)
    path = tmp_path / "flickr/raw" / file
    path.write_bytes(b"<html>quota exceeded</html>")
    with refused(path, says="; delete it"):
        load(DataSource("flickr", root=str(tmp_path)))


def test_wrong_values_name_the_files(tmp_path: Path) -> None:
    write_geom_gcn(tmp_path, "cornell", order=(0, 2, 1, 3))
    with refused(tmp_path / f"cornell/raw/{NODES}", says="nodes are not numbered in order"):
        load(DataSource("cornell", root=str(tmp_path)))
    write_geom_gcn(tmp_path, "cornell", nodes=3)
    with refused(f"dataset 'cornell' in {tmp_path}/cornell/raw.train_mask"):
        load(DataSource("cornell", root=str(tmp_path)))
    write_heterophilous(tmp_path, "tolokers", node_labels=np.array([1, 0]))
    with refused(f"dataset 'tolokers' in {tmp_path}/tolokers/raw.y"):
        load(DataSource("tolokers", root=str(tmp_path)))


@pytest.mark.parametrize(
    ("name", "file", "ours"),
    [
        ("pyg:Planetoid/Cora", "planetoid/Cora/raw/ind.cora.allx", "cora"),
        ("pyg:Amazon/Computers", "amazon/Computers/raw/amazon_electronics_computers.npz", "computers"),
    ],
)
def test_pyg_equals_ours(published_root: Callable[[str], str], name: str, file: str, ours: str) -> None:
    root = published_root(file)
    source = DataSource(name, root=root)
    graph, other = load(source), load(DataSource(ours, root=root))
    assert graph.name == name.removeprefix("pyg:").replace("/", "-")
    for part in ("indptr", "indices", "y", "split"):
        assert np.array_equal(getattr(graph, part), getattr(other, part))
    x, expected_x = (each.x.toarray() if sp.issparse(each.x) else each.x for each in (graph, other))
    assert np.array_equal(x, expected_x)
    assert file in published_contents(source) or "planetoid" in file
    assert labels_ahead(source) is None


def test_pyg_without_files_is_made(tmp_path: Path) -> None:
    source = DataSource("pyg:KarateClub", root=str(tmp_path))
    graph, data = load(source), KarateClub()[0]
    assert (graph.nodes, graph.entries, graph.classes) == (34, 156, 4)
    assert np.array_equal(graph.y, data.y.numpy())
    assert published_contents(source) == {}
    assert list(tmp_path.iterdir()) == []


def test_pyg_without_features_takes_made_ones(published_root: Callable[[str], str]) -> None:
    root = published_root("tu/IMDB-BINARY/raw/IMDB-BINARY_A.txt")
    source = DataSource("pyg:TUDataset/IMDB-BINARY", root=root, user_options={"root": "tu"})
    with refused("pyg:TUDataset/IMDB-BINARY[0].x"):
        load(source)
    made = DataSource(source.dataset, root=root, user_options=source.user_options, made=MadeFeatures("degree", width=8))
    assert (load(made).items, load(made).features) == (1000, 8)


@pytest.mark.parametrize(
    ("name", "options", "place", "says"),
    [
        ("pyg:Planetoid", {}, "data.dataset", "expected pyg:Planetoid/NAME, got"),
        ("pyg:Flickr/Flickr", {}, "data.dataset", "expected pyg:Flickr, got"),
        ("pyg:Planetoidd/Cora", {}, "data.dataset", "did you mean 'Planetoid'?"),
        ("pyg:Plane toid", {}, "data.dataset", "expected pyg:CLASS or pyg:CLASS/NAME"),
        ("pyg:Planetoid/Cora", {"splitt": "full"}, "data.options.splitt", "did you mean 'split'?"),
        ("pyg:Planetoid/Cora", {"num_val": "x"}, "data.options.num_val", ""),
        ("pyg:Planetoid/Cora", {"root": "/x"}, "data.options.root", ""),
        ("pyg:WebKB/Oxford", {}, "pyg:WebKB/Oxford", "AssertionError"),
        ("pyg:FakeHeteroDataset", {}, "pyg:FakeHeteroDataset", "found HeteroData"),
        ("pyg:Flickr", {}, "/nowhere/flickr/raw/adj_full.npz", "not found"),
        ("pyg:Flickr", {"root": "mine"}, "/nowhere/mine/raw/adj_full.npz", "not found"),
    ],
)
def test_wrong_pyg_name_option_or_file_is_named(name: str, options: dict[str, Any], place: str, says: str) -> None:
    with refused(place, says=says):
        load(DataSource(name, root="/nowhere", user_options=options))
