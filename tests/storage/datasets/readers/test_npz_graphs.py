"""Amazon and Coauthor: Computers against PyG's reader, Physics sparse all the way; Reddit in its published layout."""

import shutil
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import scipy.sparse as sp
from support.errors import refused
from support.pyg_graphs import assert_equals_pyg
from torch_geometric.datasets import Reddit
from torch_geometric.io import read_npz

from shoal.storage.datasets.registry import load
from shoal.storage.datasets.sources.source import DataSource

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


def test_a_truncated_file_is_named(published_root: Callable[[str], str], tmp_path: Path) -> None:
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
