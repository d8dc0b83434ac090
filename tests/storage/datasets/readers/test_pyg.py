"""PyG's arrays, from small files in the published form, and `pyg:CLASS/NAME` over real files."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
from torch_geometric.datasets import Actor, Flickr, HeterophilousGraphDataset, KarateClub, WebKB

from shoal.storage.datasets.features.feature_options import MadeFeatures
from shoal.storage.datasets.readers.pyg import FLICKR, GEOM_GCN, HETEROPHILOUS, PUBLISHED
from shoal.storage.datasets.registry import fingerprint, labels_ahead, load, published_contents
from shoal.storage.datasets.sources.source import DataSource
from shoal.storage.errors import ShoalError
from shoal.storage.graph.graph import Graph

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


def edges_of(graph: Graph) -> set[tuple[int, int]]:
    source = np.repeat(np.arange(graph.nodes), np.diff(graph.indptr))
    return set(zip(source.tolist(), graph.indices.tolist()))


def assert_equal(graph: Graph, data: Any) -> None:
    x = graph.x.toarray() if sp.issparse(graph.x) else graph.x
    assert x.dtype == np.float32
    assert np.array_equal(x, data.x.numpy())
    assert np.array_equal(graph.y, data.y.numpy())
    assert graph.split is not None
    for part, mask in enumerate((data.train_mask, data.val_mask, data.test_mask), 1):
        assert np.array_equal(graph.split == part, (mask if mask.dim() == 1 else mask[:, 0]).numpy())
    edges = {(a, b) for a, b in data.edge_index.t().tolist() if a != b}
    assert edges_of(graph) == edges | {(b, a) for a, b in edges}


def test_flickr_equals_pyg(tmp_path: Path) -> None:
    write_flickr(tmp_path)
    graph = load(DataSource("flickr", root=str(tmp_path)))
    assert not (tmp_path / "flickr/processed").exists()
    assert_equal(graph, Flickr(str(tmp_path / "flickr"))[0])
    assert (graph.name, graph.classes) == ("flickr", 4)


@pytest.mark.parametrize("name", GEOM_GCN)
def test_geom_gcn_equals_pyg_and_needs_one_split(name: str, tmp_path: Path) -> None:
    write_geom_gcn(tmp_path, name, splits=1)
    graph = load(DataSource(name, root=str(tmp_path)))
    write_geom_gcn(tmp_path, name)
    assert_equal(graph, (Actor(str(tmp_path / "actor")) if name == "actor" else WebKB(str(tmp_path), name))[0])
    assert graph.x.tolist() == [[1, 0, 0, 1], [0, 0, 1, 0], [0, 1, 1, 1], [1, 0, 0, 0]]
    assert graph.split is not None
    assert graph.split.tolist() == PARTS.tolist()
    assert (graph.name, edges_of(graph)) == (name, {(0, 1), (1, 0), (0, 2), (2, 0), (2, 3), (3, 2)})


@pytest.mark.parametrize("name", HETEROPHILOUS)
def test_heterophilous_equals_pyg(name: str, tmp_path: Path) -> None:
    write_heterophilous(tmp_path, name)
    graph = load(DataSource(name, root=str(tmp_path)))
    assert_equal(graph, HeterophilousGraphDataset(str(tmp_path), name)[0])
    assert graph.split is not None
    assert (graph.split.tolist(), graph.y.tolist(), graph.name) == ([2, 3, 1], [1, 0, 1], name)


@pytest.mark.parametrize("file", FLICKR)
def test_damaged_file_is_named(file: str, tmp_path: Path) -> None:
    write_flickr(tmp_path)
    path = tmp_path / "flickr/raw" / file
    path.write_bytes(b"<html>quota exceeded</html>")
    with pytest.raises(ShoalError, match=rf"^{path}: cannot be read .*; delete it"):
        load(DataSource("flickr", root=str(tmp_path)))


def test_wrong_values_name_the_files(tmp_path: Path) -> None:
    write_geom_gcn(tmp_path, "cornell", order=(0, 2, 1, 3))
    with pytest.raises(ShoalError, match=rf"^{tmp_path}/cornell/raw/{NODES}: .*nodes are not numbered in order"):
        load(DataSource("cornell", root=str(tmp_path)))
    write_geom_gcn(tmp_path, "cornell", nodes=3)
    with pytest.raises(ShoalError, match=rf"'cornell' in {tmp_path}/cornell/raw.train_mask: .* found bool \[3\]$"):
        load(DataSource("cornell", root=str(tmp_path)))
    write_heterophilous(tmp_path, "tolokers", node_labels=np.array([1, 0]))
    with pytest.raises(ShoalError, match=rf"'tolokers' in {tmp_path}/tolokers/raw.y: shape \[2\]"):
        load(DataSource("tolokers", root=str(tmp_path)))


@pytest.mark.parametrize(
    ("name", "file", "ours"),
    [
        ("pyg:Planetoid/Cora", "planetoid/Cora/raw/ind.cora.allx", "cora"),
        ("pyg:Amazon/Computers", "amazon/Computers/raw/amazon_electronics_computers.npz", "computers"),
        ("pyg:TUDataset/NCI1", "tu/NCI1/raw/NCI1_A.txt", "nci1"),
        ("pyg:TUDataset/PROTEINS", "tu/PROTEINS/raw/PROTEINS_A.txt", "proteins"),
    ],
)
def test_pyg_equals_ours(published_root: Callable[[str], str], name: str, file: str, ours: str) -> None:
    root = published_root(file)
    options = {"root": "tu"} if file.startswith("tu") else {}
    source = DataSource(name, root=root, user_options=options)
    graph, other = load(source), load(DataSource(ours, root=root))
    assert graph.name == name.removeprefix("pyg:").replace("/", "-")
    for found, expected in zip((graph, other), (other, graph)):
        assert np.array_equal(found.indptr, expected.indptr)
    assert np.array_equal(graph.indices, other.indices)
    assert np.array_equal(graph.y, other.y)
    for part in ("split", "graph_of"):
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
    with pytest.raises(ShoalError, match=r"IMDB-BINARY\[0\]\.x: missing"):
        load(source)
    made = DataSource(source.dataset, root=root, user_options=source.user_options, made=MadeFeatures("degree", width=8))
    assert (load(made).items, load(made).features) == (1000, 8)


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("pyg:Planetoid", {}, r"^data\.dataset: expected pyg:Planetoid/NAME, got 'pyg:Planetoid'$"),
        ("pyg:Flickr/Flickr", {}, r"^data\.dataset: expected pyg:Flickr, got"),
        ("pyg:Planetoidd/Cora", {}, r"no class Planetoidd; did you mean 'Planetoid'\?$"),
        ("pyg:Plane toid", {}, r"^data\.dataset: expected pyg:CLASS or pyg:CLASS/NAME, as pyg:Planetoid/Cora, got"),
        ("pyg:Planetoid/Cora", {"splitt": "full"}, r"^data\.options\.splitt: unknown; .* did you mean 'split'\?$"),
        ("pyg:Planetoid/Cora", {"num_val": "x"}, r"^data\.options\.num_val: "),
        ("pyg:Planetoid/Cora", {"root": "/x"}, r"^data\.options\.root: expected a folder below the data root"),
        ("pyg:WebKB/Oxford", {}, r"^pyg:WebKB/Oxford: cannot be read \(AssertionError"),
        ("pyg:Flickr", {}, r"^/nowhere/flickr/raw/adj_full\.npz: not found; .*data\.root"),
        ("pyg:Flickr", {"root": "mine"}, r"^/nowhere/mine/raw/adj_full\.npz: not found; .*data\.options\.root"),
    ],
)
def test_wrong_pyg_name_option_or_file_is_one_line(name: str, options: dict[str, Any], message: str) -> None:
    with pytest.raises(ShoalError, match=message) as caught:
        load(DataSource(name, root="/nowhere", user_options=options))
    assert "\n" not in str(caught.value)


def test_heterogeneous_pyg_dataset_is_refused() -> None:
    source = DataSource("pyg:FakeHeteroDataset", root="/nowhere")
    with pytest.raises(ShoalError, match=r"^pyg:FakeHeteroDataset: must be a torch_geometric Data, found HeteroData"):
        load(source)


def test_pyg_fingerprint_follows_name_and_options() -> None:
    one, same, other = (
        fingerprint(DataSource("pyg:Planetoid/Cora", root=root, user_options={"split": split}))
        for root, split in (("/a", "full"), ("/b", "full"), ("/a", "public"))
    )
    assert one == same != other
