"""Published files: read as PyG or their library reads them, with the published counts; damaged ones are named."""

import json
import pickle
import shutil
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import scipy.sparse as sp
from sklearn.datasets import load_digits
from sklearn.neighbors import kneighbors_graph
from support.errors import refused
from support.pyg_graphs import Trap, assert_equals_pyg
from support.shards import adjacency
from torch_geometric.datasets import Planetoid, Reddit
from torch_geometric.io import read_npz

from shoal.storage.datasets.readers.planetoid import PARTS
from shoal.storage.datasets.readers.twitch import FEATURES, paths
from shoal.storage.datasets.registry import load
from shoal.storage.datasets.sources.source import DataSource


def test_cora_equals_pyg(
    published_root: Callable[[str], str], tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    root = published_root("planetoid/Cora/raw/ind.cora.allx")
    graph = load(DataSource("cora", root=root))
    assert capfd.readouterr() == ("", "")
    shutil.copytree(Path(root, "planetoid/Cora/raw"), tmp_path / "Cora/raw")
    data = Planetoid(str(tmp_path), "Cora")[0]

    assert (graph.name, graph.nodes, graph.entries, graph.features, graph.classes) == ("cora", 2708, 10556, 1433, 7)
    assert sp.issparse(graph.x)
    assert graph.split is not None
    assert_equals_pyg(graph, data)


def test_a_damaged_file_is_one_line(published_root: Callable[[str], str], tmp_path: Path) -> None:
    root = published_root("planetoid/Cora/raw/ind.cora.allx")
    folder = tmp_path / "planetoid/Cora/raw"
    shutil.copytree(Path(root, "planetoid/Cora/raw"), folder)
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


def test_computers_equals_pyg(published_root: Callable[[str], str]) -> None:
    root = published_root(COMPUTERS)
    graph = load(DataSource("Computers", root=root))
    assert (graph.nodes, graph.entries, graph.features, graph.classes) == (13752, 491722, 767, 10)
    data = read_npz(str(Path(root, COMPUTERS)), to_undirected=True)
    assert_equals_pyg(graph, data)


def test_physics_is_never_dense_and_keeps_which_words_occur(published_root: Callable[[str], str]) -> None:
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


def test_a_truncated_archive_is_named(published_root: Callable[[str], str], tmp_path: Path) -> None:
    whole = Path(published_root(COMPUTERS), COMPUTERS).read_bytes()
    path = tmp_path / COMPUTERS
    path.parent.mkdir(parents=True)
    path.write_bytes(whole[: len(whole) // 2])
    with refused(path, says="; delete it"):
        load(DataSource("computers", root=str(tmp_path)))


@pytest.fixture
def reddit(tmp_path: Path) -> Path:
    """A made-up graph in the published files."""
    folder = tmp_path / "reddit" / "raw"
    folder.mkdir(parents=True)
    rng = np.random.default_rng(0)
    upper = np.triu(rng.random((30, 30)) < 0.2, 1)
    np.savez(
        folder / "reddit_data.npz",
        feature=rng.standard_normal((30, 6)),
        label=rng.integers(5, size=30),
        node_types=rng.integers(1, 4, 30),
    )
    sp.save_npz(folder / "reddit_graph.npz", sp.coo_matrix(upper | upper.T))
    return tmp_path


def test_reddit_equals_pyg(reddit: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    graph = load(DataSource("reddit", root=str(reddit)))
    theirs = tmp_path_factory.mktemp("pyg")
    shutil.copytree(reddit / "reddit/raw", theirs / "raw")
    data = Reddit(str(theirs))[0]
    assert graph.split is not None
    assert_equals_pyg(graph, data)


@pytest.mark.parametrize("name", ["reddit_data.npz", "reddit_graph.npz"])
def test_a_damaged_file_of_reddit_is_named(reddit: Path, name: str) -> None:
    path = reddit / "reddit/raw" / name
    path.write_bytes(path.read_bytes()[:300])
    with refused(path, says="; delete it"):
        load(DataSource("reddit", root=str(reddit)))


def test_images_and_labels() -> None:
    graph = load(DataSource("Digits"))
    images, y = load_digits(return_X_y=True)
    assert (graph.name, graph.nodes, graph.features, graph.classes) == ("digits", 1797, 64, 10)
    assert graph.x.dtype == np.float32
    assert (graph.x * 16 == images).all()
    assert graph.x.max() == 1
    assert (graph.y == y).all()
    assert not graph.synthetic


@pytest.mark.parametrize("k", [1, 8])
def test_neighbours_are_the_nearest(k: int) -> None:
    graph = load(DataSource("digits", neighbors=k))
    images, _ = load_digits(return_X_y=True)
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


@pytest.mark.parametrize("k", [0, 1797])
def test_refuses_impossible_neighbours(k: int) -> None:
    with refused("data.neighbors"):
        load(DataSource("digits", neighbors=k))


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
    assert graph.y.tolist() == [0, 1, 1, 0]
    assert graph.indptr.tolist() == [0, 2, 4, 6, 6]
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


@pytest.mark.parametrize(
    ("name", "nodes", "edges", "true"),
    [
        ("twitch-de", 9498, 153138, 5742),
        ("twitch-en", 7126, 35324, 3888),
        ("twitch-es", 4648, 59382, 1360),
        ("twitch-fr", 6549, 112666, 2414),
        ("twitch-pt", 1912, 31299, 661),
        ("twitch-ru", 4385, 37304, 1075),
        ("twitch-tw", 2772, 63462, 1088),
    ],
)
def test_counts_of_twitch(published_root: Callable[[str], str], name: str, nodes: int, edges: int, true: int) -> None:
    root = published_root(str(paths(name)[0]))
    graph = load(DataSource(name, root=root))
    assert (graph.nodes, graph.entries, graph.features, int(graph.y.sum())) == (nodes, 2 * edges, FEATURES, true)
    listed = json.loads(Path(root, paths(name)[1]).read_text())
    for node in range(0, nodes, 97):
        columns = graph.x.indices[graph.x.indptr[node] : graph.x.indptr[node + 1]]
        assert columns.tolist() == sorted(set(listed[str(node)]))
