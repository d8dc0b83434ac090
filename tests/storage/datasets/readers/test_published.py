"""Published files: read as PyG or their library reads them, with the published counts; damaged ones are named."""

import json
import pickle
import shutil
import tracemalloc
import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import scipy.sparse as sp
from sklearn.datasets import load_digits
from sklearn.neighbors import kneighbors_graph
from support.errors import refused
from support.pyg_graphs import Trap, assert_equals_pyg
from support.shards import adjacency, dense
from torch_geometric.datasets import Planetoid, Reddit, TUDataset
from torch_geometric.io import read_npz

from shoal.storage.datasets.features.feature_options import MadeFeatures
from shoal.storage.datasets.readers.planetoid import PARTS
from shoal.storage.datasets.readers.tu import NAMES, URL
from shoal.storage.datasets.readers.tu import paths as tu_paths
from shoal.storage.datasets.readers.twitch import FEATURES, paths
from shoal.storage.datasets.registry import fingerprint, load, published_contents
from shoal.storage.datasets.sources.source import DataSource
from shoal.storage.graph.graph import Graph

Root = Callable[[str], str]


def test_cora_equals_pyg(published_root: Root, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    root = published_root("planetoid/Cora/raw/ind.cora.allx")
    graph = load(DataSource("cora", root=root))
    assert capfd.readouterr() == ("", "")
    assert (graph.name, graph.nodes, graph.entries, graph.features, graph.classes) == ("cora", 2708, 10556, 1433, 7)
    assert sp.issparse(graph.x)
    assert graph.split is not None
    folder = tmp_path / "planetoid/Cora/raw"
    shutil.copytree(Path(root, "planetoid/Cora/raw"), folder)
    assert_equals_pyg(graph, Planetoid(str(tmp_path / "planetoid"), "Cora")[0])
    for content in (b"damaged", (folder / "ind.cora.ally").read_bytes(), b""):
        (folder / "ind.cora.allx").write_bytes(content)
        with refused(folder / "ind.cora.allx", says="not the published file"):
            load(DataSource("cora", root=str(tmp_path)))


def test_no_pickle_but_the_published_ones_is_opened(tmp_path: Path) -> None:
    folder = tmp_path / "planetoid/CiteSeer/raw"
    folder.mkdir(parents=True)
    for name in PARTS:
        (folder / f"ind.citeseer.{name}").write_bytes(pickle.dumps(Trap(tmp_path / "opened")))
    with refused(folder / "ind.citeseer.x", says="not the published file"):
        load(DataSource("citeseer", root=str(tmp_path)))
    assert not (tmp_path / "opened").exists()


COMPUTERS = "amazon/Computers/raw/amazon_electronics_computers.npz"
PHYSICS = "coauthor/Physics/raw/ms_academic_phy.npz"


def test_computers_equals_pyg(published_root: Root, tmp_path: Path) -> None:
    root = published_root(COMPUTERS)
    graph = load(DataSource("Computers", root=root))
    assert (graph.nodes, graph.entries, graph.features, graph.classes) == (13752, 491722, 767, 10)
    assert_equals_pyg(graph, read_npz(str(Path(root, COMPUTERS)), to_undirected=True))
    cut = tmp_path / COMPUTERS
    cut.parent.mkdir(parents=True)
    cut.write_bytes(Path(root, COMPUTERS).read_bytes()[:10_000])
    with refused(cut, says="; delete it"):
        load(DataSource("computers", root=str(tmp_path)))


def test_physics_is_never_dense_and_keeps_which_words_occur(published_root: Root) -> None:
    root = published_root(PHYSICS)
    tracemalloc.start()
    graph = load(DataSource("physics", root=root))
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert isinstance(graph.x, sp.csr_array)
    assert graph.x.dtype == np.float32
    assert peak < 200e6
    assert (graph.nodes, graph.entries, graph.features, graph.classes) == (34493, 495924, 8415, 5)
    assert graph.split is None
    with np.load(Path(root, PHYSICS)) as file:
        assert file["attr_data"].max() > 1
        assert graph.x.nnz == np.count_nonzero(file["attr_data"])
        first = np.sort(file["attr_indices"][: file["attr_indptr"][1]])
    assert np.array_equal(np.sort(graph.x.indices[: graph.x.indptr[1]]), first)
    assert (graph.x.data == 1).all()


@pytest.fixture
def reddit(tmp_path: Path) -> Path:
    """A made-up graph in the published files."""
    folder = tmp_path / "reddit" / "raw"
    folder.mkdir(parents=True)
    rng = np.random.default_rng(0)
    upper = np.triu(rng.random((30, 30)) < 0.2, 1)
    arrays = {"feature": rng.standard_normal((30, 6)), "label": rng.integers(5, size=30)}
    np.savez(folder / "reddit_data.npz", node_types=rng.integers(1, 4, 30), **arrays)
    sp.save_npz(folder / "reddit_graph.npz", sp.coo_matrix(upper | upper.T))
    return tmp_path


def test_reddit_equals_pyg(reddit: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    graph = load(DataSource("reddit", root=str(reddit)))
    theirs = tmp_path_factory.mktemp("pyg")
    shutil.copytree(reddit / "reddit/raw", theirs / "raw")
    assert graph.split is not None
    assert_equals_pyg(graph, Reddit(str(theirs))[0])
    for name in ("reddit_graph.npz", "reddit_data.npz"):
        path = reddit / "reddit/raw" / name
        path.write_bytes(path.read_bytes()[:300])
        with refused(path, says="; delete it"):
            load(DataSource("reddit", root=str(reddit)))


@pytest.mark.parametrize("k", [1, 8])
def test_digits_are_joined_to_the_nearest(k: int) -> None:
    graph = load(DataSource("Digits", neighbors=k))
    images, y = load_digits(return_X_y=True)
    assert (graph.name, graph.nodes, graph.features, graph.classes) == ("digits", 1797, 64, 10)
    assert (graph.x.dtype, graph.x.max(), graph.synthetic) == (np.float32, 1, False)
    assert (graph.x * 16 == images).all()
    assert (graph.y == y).all()
    farthest = kneighbors_graph(images, k, mode="distance").max(axis=1).toarray().ravel()
    edges = adjacency(graph)
    assert (edges - edges.T).nnz == 0
    rows, columns = edges.nonzero()
    distances = np.linalg.norm(images[rows] - images[columns], axis=1)
    # an edge is there because one end is among the k nearest of the other; ties change neither statement
    assert (distances <= np.maximum(farthest[rows], farthest[columns]) + 1e-9).all()
    near = np.bincount(rows, weights=distances <= farthest[rows] + 1e-9, minlength=graph.nodes)
    assert (near >= k).all()
    assert graph.cleaning.entries_read == 1797 * k
    for impossible in (0, 1797):
        with refused("data.neighbors"):
            load(DataSource("digits", neighbors=impossible))


TARGET = "id,days,mature,views,partner,new_id\n"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Four people: 0-1, 1-2 and 2-0 are friends; person 3 has neither friends nor features."""
    edges, features, target = (tmp_path / path for path in paths("twitch-pt"))
    edges.parent.mkdir(parents=True)
    edges.write_text("from,to\n0,1\n1,2\n2,0\n")
    features.write_text(json.dumps({"2": [5, 5, 3169], "0": [1], "1": []}))
    # Not in the order of new_id, and one of them twice.
    rows = ["77,1,True,9,False,2", "76,1,False,9,False,0", "75,1,True,9,False,1", "76,1,False,9,False,0"]
    target.write_text(TARGET + "\n".join([*rows, "70,1,False,9,False,3"]) + "\n")
    return tmp_path


def test_what_is_written_is_read(root: Path) -> None:
    graph = load(DataSource("twitch-pt", root=str(root)))
    expected = np.zeros((4, FEATURES))
    expected[2, [5, 3169]] = expected[0, 1] = 1
    np.testing.assert_array_equal(graph.x.toarray(), expected)
    assert (graph.y.tolist(), graph.indptr.tolist()) == ([0, 1, 1, 0], [0, 2, 4, 6, 6])
    assert graph.indices.tolist() == [1, 2, 0, 2, 0, 1]


@pytest.mark.parametrize(
    ("part", "text", "says"),
    [
        (2, TARGET + "1,1,True,9,False,1\n", "the 1 ids do not count from 0"),
        (2, TARGET + "1,1,True,9,False,0\n1,1,False,9,False,0\n", "new_id 0 has two labels"),
        (2, TARGET + "1,1,perhaps,9,False,0\n", "KeyError: 'perhaps'"),
        (1, '{"9": [1]}', "names a node beyond the 4"),
        (1, '{"0": [3170]}', "names a feature beyond the 3170"),
        (1, "{", "JSONDecodeError"),
        (0, "from,to\n0\n", "cannot be read"),
    ],
)
def test_a_file_of_something_else_is_named(root: Path, part: int, text: str, says: str) -> None:
    file = root / paths("twitch-pt")[part]
    file.write_text(text)
    with refused(file, says=says):
        load(DataSource("twitch-pt", root=str(root)))


OF_TWITCH = {
    "twitch-de": (9498, 2 * 153138, 5742),
    "twitch-en": (7126, 2 * 35324, 3888),
    "twitch-es": (4648, 2 * 59382, 1360),
    "twitch-fr": (6549, 2 * 112666, 2414),
    "twitch-pt": (1912, 2 * 31299, 661),
    "twitch-ru": (4385, 2 * 37304, 1075),
    "twitch-tw": (2772, 2 * 63462, 1088),
}


@pytest.mark.parametrize("name", OF_TWITCH)
def test_counts_of_twitch(published_root: Root, name: str) -> None:
    root = published_root(str(paths(name)[0]))
    graph = load(DataSource(name, root=root))
    assert (graph.nodes, graph.entries, int(graph.y.sum()), graph.features) == (*OF_TWITCH[name], FEATURES)
    listed = json.loads(Path(root, paths(name)[1]).read_text())
    for node in range(0, graph.nodes, 97):
        columns = graph.x.indices[graph.x.indptr[node] : graph.x.indptr[node + 1]]
        assert columns.tolist() == sorted(set(listed[str(node)]))


# Graphs of three nodes, one, and two, with a loop, a duplicate, and edges given one way; labels -1 and 1, 1.
RAW = {
    "A": "1, 2\n2, 1\n2, 3\n5, 6\n5, 6\n6, 6\n",
    "graph_indicator": "1\n1\n1\n2\n3\n3\n",
    "graph_labels": "1\n-1\n1\n",
    "node_labels": "2\n4\n2\n3\n4\n2\n",
    "node_attributes": " 0.5\n1.0\n-2\n0\n0\n3e1\n",
}
ONE_HOT = [[1, 0, 0], [0, 0, 1], [1, 0, 0], [0, 1, 0], [0, 0, 1], [1, 0, 0]]
DEGREES = [1, 2, 1, 0, 1, 1]


def write(root: Path, name: str, **changed: str) -> DataSource:
    for path in tu_paths(DataSource(name, root="/nowhere")):
        part = path.stem.removeprefix(f"{NAMES[name]}_")
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_text({**RAW, **changed}[part])
    return DataSource(name, root=str(root))


def assert_small(graph: Graph) -> None:
    assert graph.indptr.tolist() == [0, 1, 3, 4, 4, 5, 6]
    assert graph.indices.tolist() == [1, 0, 2, 1, 5, 4]
    assert (graph.graph_of.tolist(), graph.graph_of.dtype) == ([0, 0, 0, 1, 2, 2], np.int64)
    assert (graph.y.tolist(), graph.classes) == ([1, 0, 1], 2)


def test_labels_of_nodes_are_one_hot(tmp_path: Path) -> None:
    graph = load(write(tmp_path, "nci1"))
    assert_small(graph)
    assert dense(graph.x).tolist() == ONE_HOT
    assert graph.vocabulary.tolist() == [f"nci1 label 0.{label}" for label in (2, 3, 4)]
    assert (graph.cleaning.self_loops, graph.cleaning.duplicates, graph.cleaning.reversed_added) == (1, 1, 2)


def test_attributes_stand_before_labels_where_they_are_asked_for(tmp_path: Path) -> None:
    source = write(tmp_path, "proteins")
    assert dense(load(source).x).tolist() == ONE_HOT
    graph = load(DataSource("proteins", root=source.root, node_attributes=True))
    assert dense(graph.x).tolist() == [[a, *row] for a, row in zip([0.5, 1, -2, 0, 0, 30], ONE_HOT)]
    assert graph.vocabulary[0] == "proteins attribute 0"
    assert_small(graph)


@pytest.mark.parametrize(("cap", "width"), [(None, 3), (0, 1), (1, 2), (4, 5)])
def test_degrees_where_there_is_nothing_else(tmp_path: Path, cap: int | None, width: int) -> None:
    """Loops and duplicates are no neighbours."""
    source = write(tmp_path, "imdb-binary")
    graph = load(DataSource("imdb-binary", root=source.root, degree_cap=cap))
    assert_small(graph)
    assert dense(graph.x).tolist() == np.eye(width)[np.minimum(DEGREES, width - 1)].tolist()
    assert graph.vocabulary.tolist() == [f"degree {k}" for k in range(width)]


LAYOUTS = ("tu/MUTAG/raw", "tu/MUTAG", "tudataset/MUTAG/raw", "TUDataset/MUTAG/raw", "MUTAG/raw", "MUTAG")


def write_any(folder: Path, **texts: str) -> None:
    folder.mkdir(parents=True)
    for part, text in texts.items():
        (folder / f"MUTAG_{part}.txt").write_text(text)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_any_name_of_tu_is_read_from_either_layout(tmp_path: Path, layout: str) -> None:
    write_any(tmp_path / layout, **RAW, edge_labels="0\n0\n1\n2\n2\n3\n")
    source = DataSource("tu:MUTAG", root=str(tmp_path))
    graph = load(source)
    assert_small(graph)
    assert graph.name == "MUTAG"
    assert dense(graph.x).tolist() == ONE_HOT
    assert graph.edge_names == tuple(f"MUTAG edge label 0.{k}" for k in range(4))
    assert graph.edge_attr.sum(1).tolist() == [1.0] * graph.entries  # type: ignore[union-attr]
    assert set(published_contents(source)) == {f"{layout}/MUTAG_{part}.txt" for part in (*RAW, "edge_labels")}
    dropped = DataSource("tu:MUTAG", root=str(tmp_path), edge_features="drop")
    assert load(dropped).edge_attr is None
    assert fingerprint(dropped) != fingerprint(source)
    (tmp_path / layout / "MUTAG_edge_attributes.txt").write_text("0.5\n1\n")
    with refused(str(tmp_path / layout / "MUTAG_edge_attributes.txt"), says="2 rows for 6 edges"):
        load(source)


def test_an_archive_in_the_folder_is_unpacked(tmp_path: Path) -> None:
    (tmp_path / "tu").mkdir()
    with zipfile.ZipFile(tmp_path / "tu/MUTAG.zip", "w") as archive:
        for part, text in RAW.items():
            archive.writestr(f"MUTAG/MUTAG_{part}.txt", text)
    assert_small(load(DataSource("tu:MUTAG", root=str(tmp_path))))
    assert (tmp_path / "tu/MUTAG/raw/MUTAG_A.txt").is_file()


def test_attributes_are_features_where_there_are_no_labels(tmp_path: Path) -> None:
    write_any(tmp_path / "tu/MUTAG", **{part: text for part, text in RAW.items() if part != "node_labels"})
    graph = load(DataSource("tu:MUTAG", root=str(tmp_path)))
    assert dense(graph.x)[:, 0].tolist() == [0.5, 1, -2, 0, 0, 30]
    assert_small(graph)


def test_numbers_of_graphs_are_a_target(tmp_path: Path) -> None:
    numbers = {part: text for part, text in RAW.items() if part != "graph_labels"}
    write_any(tmp_path / "tu/MUTAG", **numbers, graph_attributes="0.5, 1\n-2, 3\n1e1, 0\n")
    graph = load(DataSource("tu:MUTAG", root=str(tmp_path), target="regression"))
    assert graph.target is not None
    assert graph.target.tolist() == [[0.5, 1], [-2, 3], [10, 0]]


@pytest.mark.usefixtures("offline")
def test_names_of_tu_without_files_say_where_they_are_expected(tmp_path: Path) -> None:
    with refused(tmp_path / "tu/AIDS/raw/AIDS_A.txt", says=f"TUDataset/AIDS, AIDS/raw, AIDS of {tmp_path}, and https"):
        load(DataSource("tu:AIDS", root=str(tmp_path)))
    with refused("target", says="is for classification, found multilabel"):
        load(DataSource("tu:AIDS", root=str(tmp_path), target="multilabel"))


TEXT = "3\n3 7\n0 1 1\n0 2 0 2\n5 1 1\n1 -2\n0 0\n2 7\n9 1 1\n9 2 0 1\n"


def zipped(root: Path, text: str = TEXT) -> Path:
    path = root / "tu_text" / "COLLAB.zip"
    path.parent.mkdir()
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("COLLAB/COLLAB.txt", text)
    return path


def test_the_text_of_dgcnn(tmp_path: Path) -> None:
    path = zipped(tmp_path)
    source = DataSource("collab", root=str(tmp_path))
    graph = load(source)
    assert_small(graph)
    assert dense(graph.x).tolist() == np.eye(3)[DEGREES].tolist()
    assert list(published_contents(source)) == ["tu_text/COLLAB.zip"]
    # TU's own files come first.
    write(tmp_path, "collab", graph_labels="1\n2\n3\n")
    assert (load(source).classes, len(published_contents(source))) == (3, 3)
    path.unlink()


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "ends before its last graph"),
        (TEXT + "1", "goes on after it"),
        (TEXT[:-3], "ends before its last graph"),
        ("1\n0 1\n", "ends before its last graph"),
        ("1\n1 1\n0 -1 0\n", "ends before its last graph"),
        ("1\n2 1\n0 1 2\n0 0\n", "a neighbour is no node of its graph"),
        ("1\n2 1\n0 1 -1\n0 0\n", "a neighbour is no node of its graph"),
        ("-3\n", "ends before its last graph"),
        ("1\n1 x\n0 0\n", "more than whole numbers"),
        ("1\n1 -\n0 0\n", ""),
    ],
)
def test_a_text_of_something_else_is_named(tmp_path: Path, text: str, says: str) -> None:
    path = zipped(tmp_path, text)
    with refused(path, says=says):
        load(DataSource("collab", root=str(tmp_path)))


def test_an_archive_of_something_else_is_named(tmp_path: Path) -> None:
    path = zipped(tmp_path)
    cut_off = path.read_bytes()[:-40]
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("IMDB/IMDB.txt", TEXT)
    with refused(path, says="no item named 'COLLAB/COLLAB.txt'"):
        load(DataSource("collab", root=str(tmp_path)))
    path.write_bytes(cut_off)
    with refused(path):
        load(DataSource("collab", root=str(tmp_path)))


@pytest.mark.parametrize(
    ("part", "text", "says"),
    [
        ("A", "1, 2\n4, 5\n", "an edge joins node 3 of graph 1 and node 4 of graph 2"),
        ("A", "1, 7\n", "edge_index names node 6"),
        ("A", "1, a\n", "no whole numbers"),
        ("A", "1, 2\n3\n", "cannot be read"),
        ("A", "", "cannot be read"),
        ("graph_indicator", "1\n1\n1\n2\n2\n4\n", "row 5 is 3; graphs are numbered from 0 without a gap"),
        ("graph_indicator", "1\n1\n1\n2\n3\n", "6 rows for 5 nodes"),
        ("graph_labels", "1\n2\n", "there are 3 graphs; one value a graph"),
        ("node_labels", "1\n2\n", "2 rows for 6 nodes"),
        ("node_labels", "1\n2\n1\n2\n1\n0.5\n", "no whole numbers"),
        ("node_labels", "1\n2\n1\n2\n1\n70000\n", "one-hot labels are fewer than 65536, found 1 to 70000"),
        ("node_attributes", "1\n2\n1\n2\n1\nnan\n", "NaN"),
        ("node_attributes", "1\n2\n1\n2\n1\nx\n", "no numbers"),
    ],
)
def test_a_file_of_other_graphs_is_named(tmp_path: Path, part: str, text: str, says: str) -> None:
    source = write(tmp_path, "proteins", **{part: text})
    with refused(says=says):
        load(DataSource("proteins", root=source.root, node_attributes=True))


COUNTS = {
    "nci1": (122747, 2 * 132753, [2053, 2057]),
    "proteins": (43471, 2 * 81044, [663, 450]),
    "imdb-binary": (19773, 2 * 96531, [500, 500]),
}


@pytest.mark.exhaustive(3)
@pytest.mark.parametrize("name", COUNTS)
def test_graphs_are_those_of_pyg(published_root: Callable[[str], str], name: str) -> None:
    root = published_root(str(tu_paths(DataSource(name, root="/nowhere"))[0]))
    graph = load(DataSource(name, root=root, node_attributes=True))
    assert (graph.nodes, graph.entries, np.bincount(graph.y).tolist()) == COUNTS[name]
    options = {"root": "tu", "use_node_attr": True}
    made = MadeFeatures("degree" if name == "imdb-binary" else "given", 200)
    theirs = load(DataSource(f"pyg:TUDataset/{NAMES[name]}", root=root, user_options=options, made=made))
    for field in ("indptr", "indices", "y", "graph_of"):
        np.testing.assert_array_equal(getattr(graph, field), getattr(theirs, field))
    ours = dense(graph.x)
    np.testing.assert_array_equal(ours, dense(theirs.x)[:, : ours.shape[1]])
    assert TUDataset.url == URL


def test_squirrel_has_the_published_numbers(published_root: Root, tmp_path: Path) -> None:
    root = published_root("musae/squirrel/squirrel_target.csv")
    graph = load(DataSource("squirrel", root=root, target="regression"))
    assert graph.target is not None
    assert (graph.nodes, graph.classes, graph.split) == (5201, 1, None)
    np.testing.assert_allclose(10.0 ** graph.target[[0, 1], 0], [3783, 31998], rtol=1e-6)
    np.testing.assert_allclose(10.0 ** graph.target[:, 0].astype(float).min(), 16, rtol=1e-5)
    columns_of = json.loads(Path(root, "musae/squirrel/squirrel_features.json").read_text())
    row = graph.x[[17]].toarray()[0]
    assert np.flatnonzero(row).tolist() == sorted(set(columns_of["17"]))
    edges = np.loadtxt(Path(root, "musae/squirrel/squirrel_edges.csv"), delimiter=",", skiprows=1, dtype=int)
    assert graph.entries == 2 * len({frozenset(pair) for pair in edges.tolist() if pair[0] != pair[1]})
    shutil.copytree(Path(root, "musae/squirrel"), tmp_path / "musae/squirrel")
    (tmp_path / "musae/squirrel/squirrel_target.csv").write_text("id,target\n0,0\n")
    with refused(tmp_path / "musae/squirrel/squirrel_target.csv", says="a page has no visits"):
        load(DataSource("squirrel", root=str(tmp_path), target="regression"))


def test_blogcatalog_has_the_published_groups(published_root: Root) -> None:
    root = published_root("blogcatalog/bc_labels.txt")
    made = MadeFeatures("degree", width=8)
    graph = load(DataSource("blogcatalog", root=root, target="multilabel", made=made))
    assert graph.target is not None
    assert (graph.nodes, graph.classes, graph.features) == (10312, 39, 8)
    groups = {int(node): set(map(int, others)) for node, *others in map(str.split, _lines(root, "labels"))}
    assert [set(np.flatnonzero(row).tolist()) for row in graph.target] == [groups[node] for node in range(10312)]
    pairs = {
        frozenset((int(node), int(i))) for node, *others in map(str.split, _lines(root, "adjlist")) for i in others
    }
    assert graph.entries == 2 * sum(len(pair) == 2 for pair in pairs)
    with refused("data.features", says="blogcatalog has none; set one-hot"):
        load(DataSource("blogcatalog", root=root, target="multilabel"))


def _lines(root: str, what: str) -> list[str]:
    return Path(root, f"blogcatalog/bc_{what}.txt").read_text().splitlines()
