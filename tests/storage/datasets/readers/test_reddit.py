"""Reddit's layout: a made-up graph in the published files, read as PyG's dataset class reads it."""

import shutil
from pathlib import Path

import numpy as np
import pytest
import scipy.sparse as sp
from torch_geometric.datasets import Reddit

from shoal.storage.datasets.registry import load
from shoal.storage.datasets.sources.source import DataSource
from shoal.storage.errors import ShoalError
from shoal.storage.options.split_codes import TEST, TRAIN, VAL


@pytest.fixture
def root(tmp_path: Path) -> Path:
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


def test_equals_pyg(root: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    graph = load(DataSource("reddit", root=str(root)))
    theirs = tmp_path_factory.mktemp("pyg")
    shutil.copytree(root / "reddit/raw", theirs / "raw")
    data = Reddit(str(theirs))[0]
    assert graph.x.dtype == np.float32
    assert (graph.x == data.x.numpy()).all()
    assert (graph.y == data.y.numpy()).all()
    for mask, part in ((data.train_mask, TRAIN), (data.val_mask, VAL), (data.test_mask, TEST)):
        assert ((graph.split == part) == mask.numpy()).all()
    sources = np.repeat(np.arange(graph.nodes), np.diff(graph.indptr))
    assert set(zip(sources.tolist(), graph.indices.tolist())) == set(zip(*data.edge_index.tolist()))


@pytest.mark.parametrize("name", ["reddit_data.npz", "reddit_graph.npz"])
def test_a_damaged_file_is_named(root: Path, name: str) -> None:
    path = root / "reddit/raw" / name
    path.write_bytes(path.read_bytes()[:300])
    with pytest.raises(ShoalError, match=rf"^{path}: cannot be read .*; delete it"):
        load(DataSource("reddit", root=str(root)))
