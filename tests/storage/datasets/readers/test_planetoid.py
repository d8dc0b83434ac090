"""Cora and PubMed: published counts, and Cora entry by entry against PyG's dataset class."""

import pickle
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import scipy.sparse as sp
from support.errors import refused
from support.pyg_graphs import Trap, assert_equals_pyg
from torch_geometric.datasets import Planetoid

from shoal.storage.datasets.readers.planetoid import PARTS
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
