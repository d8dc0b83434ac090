"""Amazon and Coauthor: published counts, Computers against PyG's reader, Physics sparse all the way."""

import tracemalloc
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import scipy.sparse as sp
from torch_geometric.io import read_npz

from shoal.storage.datasets.registry import load
from shoal.storage.datasets.sources.source import DataSource
from shoal.storage.errors import ShoalError

COMPUTERS = "amazon/Computers/raw/amazon_electronics_computers.npz"
PHYSICS = "coauthor/Physics/raw/ms_academic_phy.npz"


@pytest.mark.parametrize(
    ("file", "name", "counts", "share"),
    [
        (COMPUTERS, "Computers", (13752, 491722, 767, 10), 0.777),
        (PHYSICS, "Physics", (34493, 495924, 8415, 5), 0.931),
    ],
)
def test_published_counts(
    published_root: Callable[[str], str], file: str, name: str, counts: tuple[int, ...], share: float
) -> None:
    graph = load(DataSource(name, root=published_root(file)))
    assert graph.name == name.lower()
    assert (graph.nodes, graph.entries, graph.features, graph.classes) == counts
    sources = np.repeat(np.arange(graph.nodes), np.diff(graph.indptr))
    assert (graph.y[sources] == graph.y[graph.indices]).mean() == pytest.approx(share, abs=5e-4)
    assert graph.split is None


def test_computers_equals_pyg(published_root: Callable[[str], str]) -> None:
    root = published_root(COMPUTERS)
    graph = load(DataSource("computers", root=root))
    data = read_npz(str(Path(root, COMPUTERS)), to_undirected=True)
    assert (graph.x.toarray() == data.x.numpy()).all()
    assert (graph.y == data.y.numpy()).all()
    sources = np.repeat(np.arange(graph.nodes), np.diff(graph.indptr))
    keys = np.sort(data.edge_index[0].numpy() * graph.nodes + data.edge_index[1].numpy())
    assert np.array_equal(sources * graph.nodes + graph.indices, keys)


def test_physics_is_never_dense(published_root: Callable[[str], str]) -> None:
    root = published_root(PHYSICS)
    tracemalloc.start()
    graph = load(DataSource("physics", root=root, row_normalize=True))
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert isinstance(graph.x, sp.csr_array)
    assert graph.x.dtype == np.float32
    assert peak < 200e6


def test_physics_keeps_which_words_occur(published_root: Callable[[str], str]) -> None:
    root = published_root(PHYSICS)
    graph = load(DataSource("physics", root=root))
    with np.load(Path(root, PHYSICS)) as file:
        assert file["attr_data"].max() > 1
        assert graph.x.nnz == np.count_nonzero(file["attr_data"])
        first = np.sort(file["attr_indices"][: file["attr_indptr"][1]])
    assert np.array_equal(np.sort(graph.x.indices[: graph.x.indptr[1]]), first)
    assert (graph.x.data == 1).all()


def test_a_truncated_file_is_one_line(published_root: Callable[[str], str], tmp_path: Path) -> None:
    whole = Path(published_root(COMPUTERS), COMPUTERS).read_bytes()
    path = tmp_path / COMPUTERS
    path.parent.mkdir(parents=True)
    path.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(ShoalError, match=rf"^{path}: cannot be read .*; delete it"):
        load(DataSource("computers", root=str(tmp_path)))
