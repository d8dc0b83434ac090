"""Cora and PubMed: published counts, and Cora entry by entry against PyG's dataset class."""

import pickle
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
from torch_geometric.datasets import Planetoid

from shoal.storage.datasets.readers.planetoid import FOLDERS, PARTS, SHA256
from shoal.storage.datasets.registry import load
from shoal.storage.datasets.sources.source import DataSource
from shoal.storage.errors import ShoalError
from shoal.storage.graph.graph import Graph
from shoal.storage.options.split_codes import TEST, TRAIN, VAL


class Trap:
    """Leaves a file behind when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return Path.touch, (self.path,)


def homophily(graph: Graph) -> float:
    sources = np.repeat(np.arange(graph.nodes), np.diff(graph.indptr))
    return float((graph.y[sources] == graph.y[graph.indices]).mean())


@pytest.mark.parametrize(
    ("name", "nodes", "entries", "features", "classes", "share"),
    [("Cora", 2708, 10556, 1433, 7, 0.810), ("PubMed", 19717, 88648, 500, 3, 0.802)],
)
def test_published_counts(
    published_root: Callable[[str], str],
    name: str, nodes: int, entries: int, features: int, classes: int, share: float,
) -> None:  # fmt: skip
    graph = load(DataSource(name, root=published_root(f"planetoid/{name}/raw/ind.{name.lower()}.allx")))
    assert graph.name == name.lower()
    assert (graph.nodes, graph.entries, graph.features, graph.classes) == (nodes, entries, features, classes)
    assert homophily(graph) == pytest.approx(share, abs=5e-4)
    assert graph.split is not None
    assert graph.split.dtype == np.int8
    assert [int((graph.split == part).sum()) for part in (TRAIN, VAL, TEST)] == [20 * classes, 500, 1000]


def test_cora_equals_pyg(
    published_root: Callable[[str], str], tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    root = published_root("planetoid/Cora/raw/ind.cora.allx")
    graph = load(DataSource("cora", root=root))
    assert capfd.readouterr() == ("", "")
    shutil.copytree(Path(root, "planetoid/Cora/raw"), tmp_path / "Cora/raw")
    data = Planetoid(str(tmp_path), "Cora")[0]

    assert sp.issparse(graph.x)
    assert (graph.x.toarray() == data.x.numpy()).all()
    assert (graph.y == data.y.numpy()).all()
    for mask, part in ((data.train_mask, TRAIN), (data.val_mask, VAL), (data.test_mask, TEST)):
        assert ((graph.split == part) == mask.numpy()).all()
    sources = np.repeat(np.arange(graph.nodes), np.diff(graph.indptr))
    assert set(zip(sources.tolist(), graph.indices.tolist())) == set(zip(*data.edge_index.tolist()))


def test_rows_sum_to_one_and_stay_sparse(published_root: Callable[[str], str]) -> None:
    root = published_root("planetoid/Cora/raw/ind.cora.allx")
    x = load(DataSource("cora", root=root, row_normalize=True)).x
    assert sp.issparse(x)
    np.testing.assert_allclose(x.sum(axis=1), 1, rtol=1e-5)


def test_a_damaged_file_is_one_line(published_root: Callable[[str], str], tmp_path: Path) -> None:
    root = published_root("planetoid/Cora/raw/ind.cora.allx")
    folder = tmp_path / "planetoid/Cora/raw"
    shutil.copytree(Path(root, "planetoid/Cora/raw"), folder)
    for content in (b"damaged", (folder / "ind.cora.ally").read_bytes(), b""):
        (folder / "ind.cora.allx").write_bytes(content)
        with pytest.raises(ShoalError, match=rf"^{folder}/ind\.cora\.allx: not the published file.*; delete it"):
            load(DataSource("cora", root=str(tmp_path)))


def test_no_pickle_but_the_published_ones_is_opened(tmp_path: Path) -> None:
    folder = tmp_path / "planetoid/CiteSeer/raw"
    folder.mkdir(parents=True)
    for name in PARTS:
        (folder / f"ind.citeseer.{name}").write_bytes(pickle.dumps(Trap(tmp_path / "opened")))
    with pytest.raises(ShoalError, match=rf"^{folder}/ind\.citeseer\.x: not the published file[^\n]*$"):
        load(DataSource("citeseer", root=str(tmp_path)))
    assert not (tmp_path / "opened").exists()


def test_every_file_has_its_digest() -> None:
    assert SHA256.keys() == {f"ind.{name}.{part}" for name in FOLDERS for part in PARTS}
    assert len(set(SHA256.values())) == len(SHA256)
