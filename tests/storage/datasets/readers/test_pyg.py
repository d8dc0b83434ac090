"""Small files in the published forms as PyG reads them, and `pyg:CLASS/NAME` over real files."""

import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.io
import scipy.sparse as sp
from support.errors import refused
from support.pyg_graphs import assert_equals_pyg, edge_set
from torch_geometric.datasets import Actor, Flickr, HeterophilousGraphDataset, KarateClub, LINKXDataset, WebKB

from shoal.storage.datasets.features.feature_options import MadeFeatures
from shoal.storage.datasets.readers.matlab_graphs import ARCHIVES, LINKX, LINKX_URL
from shoal.storage.datasets.readers.pyg import FLICKR, GEOM_GCN, HETEROPHILOUS, PUBLISHED
from shoal.storage.datasets.registry import fingerprint, labels_ahead, load, published_contents
from shoal.storage.datasets.sources.source import DataSource

PARTS = np.array([2, 1, 3, 1])
WORDS = {"cornell": ["1,0,0,1", "0,0,1,0", "0,1,1,1", "1,0,0,0"], "actor": ["0,3", "2", "1,2,3", "0"]}
MASKS = ("train", "val", "test")
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


def write_geom_gcn(root: Path, name: str, order: Sequence[int] = range(4), nodes: int = 4, splits: int = 10) -> None:
    folder = root / name / "raw"
    folder.mkdir(parents=True, exist_ok=True)
    words = WORDS["actor" if name == "actor" else "cornell"]
    lines = [f"{i}\t{words[i]}\t{i % 2}" for i in order]
    (folder / NODES).write_text("\n".join(["node_id\tfeature\tlabel", *lines]) + "\n")
    (folder / "out1_graph_edges.txt").write_text("node_id\tnode_id\n0\t1\n1\t0\n2\t3\n3\t3\n2\t0\n")
    for number in range(splits):
        parts = np.roll(PARTS, number)[:nodes]
        masks = {f"{key}_mask": (parts == part).astype(np.uint8) for part, key in enumerate(MASKS, 1)}
        np.savez(folder / f"{GEOM_GCN[name]}_split_0.6_0.2_{number}.npz", **masks)


def write_heterophilous(root: Path, name: str, **changes: Any) -> None:
    others = np.zeros((9, 3), dtype=bool)
    arrays = {f"{key}_masks": np.vstack([np.arange(3) == k, others]) for key, k in zip(MASKS, (2, 0, 1))}
    arrays |= {"node_labels": np.array([1, 0, 1]), "edges": np.array([[0, 1], [1, 2]])}
    arrays |= {"node_features": np.arange(6, dtype=np.float32).reshape(3, 2)} | changes
    path = root / PUBLISHED[name].files[0]
    path.parent.mkdir(parents=True)
    np.savez(path, **arrays)


@pytest.mark.parametrize("damaged", FLICKR)
def test_flickr_equals_pyg_and_damaged_files_are_named(damaged: str, tmp_path: Path) -> None:
    write_flickr(tmp_path)
    graph = load(DataSource("flickr", root=str(tmp_path)))
    assert not (tmp_path / "flickr/processed").exists()
    assert_equals_pyg(graph, Flickr(str(tmp_path / "flickr"))[0])
    assert (graph.name, graph.classes) == ("flickr", 4)
    path = tmp_path / "flickr/raw" / damaged
    path.write_bytes(b"<html>quota exceeded</html>")
    with refused(path, says="; delete it"):
        load(DataSource("flickr", root=str(tmp_path)))


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


OURS = {
    "pyg:Planetoid/Cora": ("planetoid/Cora/raw/ind.cora.allx", "cora"),
    "pyg:Amazon/Computers": ("amazon/Computers/raw/amazon_electronics_computers.npz", "computers"),
}


@pytest.mark.parametrize("name", OURS)
def test_pyg_equals_ours(published_root: Callable[[str], str], name: str) -> None:
    file, ours = OURS[name]
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
    graph = load(made)
    assert (graph.items, graph.features) == (1000, 8)


@pytest.mark.parametrize("folder", ["planetoid", "Planetoid", ""])
def test_files_are_found_in_the_folders_of_a_collection(
    published_root: Callable[[str], str], folder: str, tmp_path: Path
) -> None:
    raw = Path(published_root("planetoid/Cora/raw/ind.cora.allx"), "planetoid/Cora/raw")
    (tmp_path / folder / "Cora").mkdir(parents=True)
    (tmp_path / folder / "Cora/raw").symlink_to(raw)
    assert load(DataSource("pyg:Planetoid/Cora", root=str(tmp_path))).nodes == 2708


def test_missing_files_are_downloaded_as_their_class_does(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source, seen = DataSource("pyg:Actor", root=str(tmp_path)), []

    def download(self: Actor) -> None:
        seen.append(self.raw_dir)
        assert not Path(self.raw_dir).is_relative_to(tmp_path / "actor")
        write_geom_gcn(Path(self.root).parent / "published", "actor")
        for file in Path(self.root).parent.joinpath("published/actor/raw").iterdir():
            file.rename(Path(self.raw_dir, file.name))

    monkeypatch.setattr(Actor, "download", download)
    graph = load(source)
    assert (graph.nodes, len(seen)) == (4, 1)
    assert load(source).nodes == 4
    assert len(seen) == 1
    (tmp_path / f"actor/raw/{NODES}").unlink()
    monkeypatch.setattr(Actor, "download", lambda self: Path(self.raw_dir, "half").write_text("1"))
    with refused(tmp_path / f"actor/raw/{NODES}", says="cannot be downloaded (the download has no such file)"):
        load(source)


@pytest.mark.parametrize("graphs", [1, 3])
def test_features_of_edges_are_left_out_on_demand(graphs: int) -> None:
    options = {"num_graphs": graphs, "edge_dim": 3, "avg_num_nodes": 30, "num_channels": 4}
    source = DataSource("pyg:FakeDataset", user_options=options)
    assert load(source).edge_features == 3
    dropped = load(replace(source, edge_features="drop"))
    assert (dropped.features, dropped.edge_weight, dropped.edge_attr) == (4, None, None)
    # A store of before, without what edges have, is another than one with it.
    without_weights = replace(source, edge_weights="drop")
    assert load(without_weights).edge_features == 3
    assert fingerprint(without_weights)["edge_features"] == "keep"
    assert "edge_features" not in fingerprint(source)


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
        ("pyg:FakeHeteroDataset", {"task": "graph"}, "pyg:FakeHeteroDataset.y", "one kind of nodes has labels"),
        ("pyg:Flickr", {}, "/nowhere/flickr/raw/adj_full.npz", "not found"),
        ("pyg:Flickr", {"root": "mine"}, "/nowhere/mine/raw/adj_full.npz", "not found"),
    ],
)
@pytest.mark.usefixtures("offline")
def test_wrong_pyg_name_option_or_file_is_named(name: str, options: dict[str, Any], place: str, says: str) -> None:
    with refused(place, says=says):
        load(DataSource(name, root="/nowhere", user_options=options))


# Status, gender, major, second major, dormitory, year, school: of one student nothing but the status is known.
STUDENTS = np.array(
    [[1, 2, 80, 0, 33, 2008, 51], [1, 1, 80, 92, 33, 2006, 7], [3, 0, 0, 0, 0, 0, 0], [2, 2, 70, 0, 12, 2008, 51]]
)


def write_papers(root: Path) -> Path:
    """Five papers in a ring, the third of two areas, the fifth of none; paper 1 cites itself."""
    ring = np.zeros((5, 5))
    for paper in range(5):
        ring[paper, (paper + 1) % 5] = ring[(paper + 1) % 5, paper] = 1
    ring[1, 1] = 1
    group = np.array([[1, 0, 0], [0, 0, 1], [1, 1, 0], [0, 1, 0], [0, 0, 0]])
    words = sp.csc_matrix(np.arange(20).reshape(5, 4) % 3 == 0, dtype=float)
    file = root / ARCHIVES["acmv9"]
    file.parent.mkdir()
    scipy.io.savemat(file, {"network": sp.csc_matrix(ring), "attrb": words, "group": group})
    return file


def write_linkx(root: Path, name: str, **changes: Any) -> Path:
    path = root / name / "raw" / "data.mat"
    path.parent.mkdir(parents=True, exist_ok=True)
    friends = np.array([[0, 1, 1, 0], [1, 0, 0, 1], [1, 0, 0, 0], [0, 1, 0, 0]])
    arrays: dict[str, Any] = {"A": sp.csc_matrix(friends, dtype=np.float64), "local_info": STUDENTS.astype(np.int32)}
    if name == "genius":
        arrays = {
            "edge_index": np.array([[0, 1, 2], [1, 2, 3]]),
            "node_feat": np.arange(48, dtype=np.float64).reshape(4, 12) / 7,
            "label": np.array([[0, 1, 1, 0]]),
        }
    scipy.io.savemat(path, arrays | changes, do_compression=True)
    return path


def test_papers_of_one_area_stay(tmp_path: Path) -> None:
    write_papers(tmp_path)
    graph = load(DataSource("ACMv9", root=str(tmp_path)))
    assert (graph.cleaning.nodes_dropped, graph.y.tolist()) == (2, [0, 2, 1])
    # 0-1 is left of the ring, with a loop at 1; papers 2 and 4 take the other edges with them.
    assert (graph.indptr.tolist(), graph.indices.tolist()) == ([0, 1, 2, 2], [1, 0])
    assert graph.cleaning.self_loops == 1
    np.testing.assert_array_equal(graph.x.toarray(), (np.arange(20).reshape(5, 4) % 3 == 0)[[0, 1, 3]])


@pytest.mark.parametrize(("name", "papers", "two"), [("acmv9", 9360, 581), ("dblpv7", 5484, 15)])
def test_published_counts(published_root: Callable[[str], str], name: str, papers: int, two: int) -> None:
    root = published_root(str(ARCHIVES[name]))
    graph = load(DataSource(name, root=root))
    arrays = scipy.io.loadmat(Path(root, ARCHIVES[name]))
    kept = arrays["group"].sum(1) == 1
    assert (arrays["group"].sum(1) == 2).sum() == two
    assert graph.cleaning.nodes_dropped == (~kept).sum()
    assert (graph.nodes, graph.features, graph.classes) == (papers - graph.cleaning.nodes_dropped, 6775, 5)
    network = sp.csr_array(arrays["network"])[kept][:, kept]
    assert graph.entries == network.nnz - np.count_nonzero(network.diagonal())


@pytest.mark.parametrize("name", LINKX)
def test_reads_what_pyg_reads(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_linkx(tmp_path, name)
    # The splits of one of them are a pickle, which is not read.
    monkeypatch.setattr(LINKXDataset, "splits", {})
    graph = load(DataSource(name, root=str(tmp_path)))
    (data,) = LINKXDataset(str(tmp_path), name)
    assert_equals_pyg(graph, data)
    assert graph.y.tolist() == ([0, 1, 1, 0] if name == "genius" else [1, 0, -1, 1])
    assert (graph.name, graph.split, graph.classes) == (name, None, 2)
    assert LINKXDataset.datasets[name]["data.mat"] == f"{LINKX_URL}/{LINKX[name]}"
    # The folder of the collection is looked in, too.
    (tmp_path / "linkx").mkdir()
    (tmp_path / name).rename(tmp_path / "linkx" / name)
    assert_equals_pyg(load(DataSource(name, root=str(tmp_path))), data)
    (tmp_path / "linkx").rename(tmp_path / "other")
    with refused(tmp_path / name / "raw" / "data.mat", says=f"nor in {Path('linkx', name, 'raw')} of"):
        load(DataSource(name, root=str(tmp_path)))


def test_a_damaged_file_is_named(tmp_path: Path) -> None:
    papers = write_papers(tmp_path)
    cut = papers.read_bytes()[:200]
    scipy.io.savemat(papers, {"network": np.eye(4), "attrb": np.eye(5), "group": np.eye(5)})
    with refused(papers, says="a graph of 4 papers"):
        load(DataSource("acmv9", root=str(tmp_path)))
    papers.write_bytes(cut)
    with refused(papers):
        load(DataSource("acmv9", root=str(tmp_path)))
    students = write_linkx(tmp_path, "reed98", local_info=STUDENTS[:3])
    with refused(students, says="3 students in a graph of 4 by 4"):
        load(DataSource("reed98", root=str(tmp_path)))
    users = write_linkx(tmp_path, "genius", label=np.array([[0, 1, 1]]))
    with refused(f"{users} (y)"):
        load(DataSource("genius", root=str(tmp_path)))
