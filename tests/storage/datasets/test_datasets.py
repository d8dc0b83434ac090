"""load and fingerprint: names, data root, what defines a dataset, features checked for every dataset."""

import dataclasses
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from support.errors import refused

from shoal.storage.datasets.features.feature_options import MadeFeatures
from shoal.storage.datasets.registry import fingerprint, load, record
from shoal.storage.datasets.sources.source import DataSource, data_root
from shoal.storage.options.dataset_names import DATASETS


def write_graph(folder: Path, x: np.ndarray) -> DataSource:
    edge_index = [[0, 1, 2], [1, 2, 3]]
    np.savez(folder / "g.npz", edge_index=edge_index, x=x, y=[0, 1, 0, 1])
    return DataSource("files", path=str(folder / "g.npz"))


def test_unknown_name_lists_the_known() -> None:
    with refused("data.dataset", says="pyg:CLASS/NAME, or my_file.py:MyDataset; did you mean 'cora'?"):
        load(DataSource("coraa"))


@pytest.mark.exhaustive
@pytest.mark.usefixtures("offline")
@pytest.mark.parametrize("name", [name for name in DATASETS if record(name).files and not callable(record(name).files)])
def test_missing_file_offline_is_one_line(name: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (first, *_) = record(name).files  # type: ignore[misc]
    with refused(tmp_path / first, says="data.root or SHOAL_DATA to a folder that has"):
        load(DataSource(name.upper(), root=str(tmp_path)))
    assert capfd.readouterr() == ("", "")
    assert list(tmp_path.iterdir()) == []


def test_addresses_are_those_of_pyg() -> None:
    from torch_geometric.datasets import Amazon, Coauthor, Planetoid, Reddit

    from shoal.storage.datasets.readers import npz_graphs, planetoid

    assert Planetoid.url == planetoid.URL
    assert {Amazon.url, Coauthor.url} == {npz_graphs.URL + "/"}
    assert Reddit.url == npz_graphs.REDDIT_URL


def test_data_root_prefers_the_key_then_the_variable_then_the_cache(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("SHOAL_DATA", str(tmp_path / "variable"))
    assert data_root("~/key") == tmp_path / "key"
    assert data_root(None) == tmp_path / "variable"
    monkeypatch.delenv("SHOAL_DATA")
    assert data_root(None) == tmp_path / ".cache/shoal"


@pytest.mark.parametrize("row_normalize", [False, True])
def test_features_that_are_not_finite_are_refused(row_normalize: bool, tmp_path: Path) -> None:
    x = np.ones((4, 3), dtype=np.float32)
    x[2, 1] = np.nan
    options = dataclasses.replace(write_graph(tmp_path, x), row_normalize=row_normalize)
    with refused(str(tmp_path / "g.npz"), says="row 2 "):
        load(options)


def changed(options: DataSource) -> set[str]:
    """The fields whose change changes the fingerprint."""
    other = {
        "dataset": "cora", "root": "/r", "path": "/p", "scratch": "/s", "row_normalize": True, "blocks": 20,
        "homophily": 0.3, "signal": 0.3, "feature_dtype": "float16", "node_attributes": True, "degree_cap": 7,
        "base": "cora", "padding": "random", "shots": 9, "user_options": {"nodes": 9}, "title": "mine",
        "made": MadeFeatures("random"), "edge_weights": "drop",
    }  # fmt: skip
    found = set()
    for field in dataclasses.fields(options):
        value = other[field.name] if field.name in other else getattr(options, field.name) + 1
        if fingerprint(dataclasses.replace(options, **{field.name: value})) != fingerprint(options):
            found.add(field.name)
    return found


def test_fingerprint_holds_what_defines_the_content_and_nothing_else() -> None:
    assert changed(DataSource("digits")) == {"dataset", "row_normalize", "made", "neighbors"}
    assert changed(DataSource("proteins")) == {"dataset", "row_normalize", "made", "node_attributes"}
    assert changed(DataSource("collab")) == {"dataset", "row_normalize", "made", "degree_cap"}
    assert changed(DataSource("sbm-graphs")) == {
        "dataset", "row_normalize", "made", "graphs", "nodes", "classes", "features", "degree", "homophily", "signal",
        "seed",
    }  # fmt: skip
    assert changed(DataSource("induced-edge", base="digits")) == {
        "dataset", "row_normalize", "made", "neighbors", "base", "samples", "shots", "width", "smallest", "largest",
        "padding", "seed",
    }  # fmt: skip
    assert changed(DataSource("nci1")) == {"dataset", "row_normalize", "made"}
    assert changed(DataSource("pubmed")) == {"dataset", "row_normalize", "made"}
    assert changed(DataSource("sbm")) == {
        "dataset", "row_normalize", "made",
        "nodes", "classes", "features", "blocks", "degree", "homophily", "signal", "seed",
    }  # fmt: skip
    assert changed(DataSource("ogbn-arxiv")) == {"dataset", "row_normalize", "made", "feature_dtype"}
    assert changed(DataSource("products-like")) == {
        "dataset", "row_normalize", "made", "scale", "homophily", "signal", "seed"
    }  # fmt: skip


def test_fingerprint_of_files_follows_the_files(tmp_path: Path) -> None:
    options = write_graph(tmp_path, np.ones((4, 3)))
    before = fingerprint(options)
    assert json.loads(json.dumps(before)) == before
    moved = tmp_path / "elsewhere" / "graph.npz"
    moved.parent.mkdir()
    shutil.copy(tmp_path / "g.npz", moved)
    assert fingerprint(dataclasses.replace(options, path=str(moved))) == before
    stat = (tmp_path / "g.npz").stat()
    write_graph(tmp_path, np.full((4, 3), 2.0))
    os.utime(tmp_path / "g.npz", ns=(stat.st_atime_ns, stat.st_mtime_ns))
    assert (tmp_path / "g.npz").stat().st_size == stat.st_size
    assert fingerprint(options) != before
    (tmp_path / "g.npz").unlink()
    with refused(tmp_path / "g.npz", says="not found"):
        fingerprint(options)


def test_import_loads_no_heavy_package() -> None:
    heavy = {"torch", "torch_geometric", "sklearn"}
    code = f"import sys, shoal.storage.datasets.registry; print({heavy} & set(sys.modules))"
    answer = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert answer.stdout == "set()\n"
