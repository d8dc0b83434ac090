"""Flickr's layout: a made-up graph in the published files, read as PyG's dataset class reads it."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import scipy.sparse as sp
from torch_geometric.datasets import Flickr

from shoal.storage.datasets.registry import load
from shoal.storage.datasets.sources.source import DataSource
from shoal.storage.errors import ShoalError
from shoal.storage.options.split_codes import TEST, TRAIN, VAL


@pytest.fixture
def root(tmp_path: Path) -> Path:
    folder = tmp_path / "flickr" / "raw"
    folder.mkdir(parents=True)
    rng = np.random.default_rng(0)
    upper = np.triu(rng.random((30, 30)) < 0.2, 1)
    adjacency = sp.csr_matrix((upper | upper.T).astype(float))
    np.savez(
        folder / "adj_full.npz",
        data=adjacency.data, indices=adjacency.indices, indptr=adjacency.indptr, shape=adjacency.shape,
    )  # fmt: skip
    np.save(folder / "feats.npy", rng.standard_normal((30, 6)))
    # the published map is a JSON object in no order, and every node has a class
    (folder / "class_map.json").write_text(json.dumps({str(i): i % 4 for i in rng.permutation(30).tolist()}))
    parts = np.split(rng.permutation(30), [15, 22])
    roles = dict(zip(("tr", "va", "te"), map(np.ndarray.tolist, parts)))
    (folder / "role.json").write_text(json.dumps(roles))
    return tmp_path


def test_equals_pyg(root: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    graph = load(DataSource("flickr", root=str(root)))
    theirs = tmp_path_factory.mktemp("pyg")
    shutil.copytree(root / "flickr/raw", theirs / "raw")
    data = Flickr(str(theirs))[0]
    assert graph.x.dtype == np.float32
    assert (graph.x == data.x.numpy()).all()
    assert (graph.y == data.y.numpy()).all()
    assert graph.classes == 4
    for mask, part in ((data.train_mask, TRAIN), (data.val_mask, VAL), (data.test_mask, TEST)):
        assert ((graph.split == part) == mask.numpy()).all()
    sources = np.repeat(np.arange(graph.nodes), np.diff(graph.indptr))
    assert set(zip(sources.tolist(), graph.indices.tolist())) == set(zip(*data.edge_index.tolist()))


@pytest.mark.parametrize("name", ["adj_full.npz", "feats.npy", "class_map.json", "role.json"])
def test_a_damaged_file_is_named(root: Path, name: str) -> None:
    path = root / "flickr/raw" / name
    path.write_bytes(b"<html>quota exceeded</html>")
    with pytest.raises(ShoalError, match=rf"^{path}: cannot be read .*; delete it"):
        load(DataSource("flickr", root=str(root)))
