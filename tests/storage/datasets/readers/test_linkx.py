"""LINKX's graphs, from small files in the form of the published ones, beside PyG's reader of the same files."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.io
import scipy.sparse as sp
from torch_geometric.datasets import LINKXDataset

from shoal.storage.datasets.readers.linkx import FILES, URL, path_of
from shoal.storage.datasets.registry import load
from shoal.storage.datasets.sources.source import DataSource
from shoal.storage.errors import ShoalError

# Status, gender, major, second major, dormitory, year, school: of one student nothing but the status is known.
STUDENTS = np.array(
    [
        [1, 2, 80, 0, 33, 2008, 51],
        [1, 1, 80, 92, 33, 2006, 7],
        [3, 0, 0, 0, 0, 0, 0],
        [2, 2, 70, 0, 12, 2008, 51],
    ]
)


def write(root: Path, name: str, **changes: Any) -> Path:
    path = root / path_of(name)
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


@pytest.mark.parametrize("name", FILES)
def test_reads_what_pyg_reads(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path, name)
    # The splits of one of them are a pickle, which is not read.
    monkeypatch.setattr(LINKXDataset, "splits", {})
    graph = load(DataSource(name, root=str(tmp_path)))
    (data,) = LINKXDataset(str(tmp_path), name)
    edges = data.edge_index.numpy()
    both = edges if name != "genius" else np.concatenate([edges, edges[::-1]], axis=1)
    source = np.repeat(np.arange(4), np.diff(graph.indptr))
    assert sorted(zip(source, graph.indices)) == sorted(zip(*both))
    x = graph.x if isinstance(graph.x, np.ndarray) else graph.x.toarray()
    assert x.dtype == np.float32
    assert np.array_equal(x, data.x.numpy())
    assert np.array_equal(graph.y, data.y.numpy())
    assert graph.y.tolist() == ([0, 1, 1, 0] if name == "genius" else [1, 0, -1, 1])
    assert (graph.name, graph.split, graph.classes) == (name, None, 2)
    assert LINKXDataset.datasets[name]["data.mat"] == f"{URL}/{FILES[name]}"


def test_refuses_other_students(tmp_path: Path) -> None:
    path = write(tmp_path, "reed98", local_info=STUDENTS[:3])
    with pytest.raises(ShoalError, match=rf"^{path}: cannot be read \(ValueError: 3 students in a graph of 4 by 4\)"):
        load(DataSource("reed98", root=str(tmp_path)))
    path = write(tmp_path, "genius", label=np.array([[0, 1, 1]]))
    with pytest.raises(ShoalError, match=rf"^{path} \(y\): "):
        load(DataSource("genius", root=str(tmp_path)))
