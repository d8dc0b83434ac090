"""ACM, DBLP and LINKX's graphs, from small files in the form of the published ones."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.io
import scipy.sparse as sp
from support.errors import refused
from support.pyg_graphs import assert_equals_pyg
from torch_geometric.datasets import LINKXDataset

from shoal.storage.datasets.readers.matlab_graphs import ARCHIVES, LINKX, LINKX_URL, linkx_path
from shoal.storage.datasets.registry import load
from shoal.storage.datasets.sources.source import DataSource

# Status, gender, major, second major, dormitory, year, school: of one student nothing but the status is known.
STUDENTS = np.array(
    [[1, 2, 80, 0, 33, 2008, 51], [1, 1, 80, 92, 33, 2006, 7], [3, 0, 0, 0, 0, 0, 0], [2, 2, 70, 0, 12, 2008, 51]]
)


def write_papers(root: Path) -> Path:
    """Five papers in a ring, the third of two areas, the fifth of none; paper 1 cites itself."""
    ring = np.zeros((5, 5))
    for paper in range(5):
        ring[paper, (paper + 1) % 5] = ring[(paper + 1) % 5, paper] = 1
    ring[1, 1] = 1
    group = np.array([[1, 0, 0], [0, 0, 1], [1, 1, 0], [0, 1, 0], [0, 0, 0]])
    words = sp.csc_matrix(np.arange(20).reshape(5, 4) % 3 == 0, dtype=float)
    file = root / ARCHIVES["acmv9"]
    file.parent.mkdir()
    scipy.io.savemat(file, {"network": sp.csc_matrix(ring), "attrb": words, "group": group})
    return file


def write_linkx(root: Path, name: str, **changes: Any) -> Path:
    path = root / linkx_path(name)
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


def test_papers_of_one_area_stay(tmp_path: Path) -> None:
    write_papers(tmp_path)
    graph = load(DataSource("ACMv9", root=str(tmp_path)))
    assert graph.cleaning.nodes_dropped == 2
    assert graph.y.tolist() == [0, 2, 1]
    # 0-1 is left of the ring, with a loop at 1; papers 2 and 4 take the other edges with them.
    assert (graph.indptr.tolist(), graph.indices.tolist()) == ([0, 1, 2, 2], [1, 0])
    assert graph.cleaning.self_loops == 1
    np.testing.assert_array_equal(graph.x.toarray(), (np.arange(20).reshape(5, 4) % 3 == 0)[[0, 1, 3]])


@pytest.mark.parametrize(("name", "papers", "two"), [("acmv9", 9360, 581), ("dblpv7", 5484, 15)])
def test_published_counts(published_root: Callable[[str], str], name: str, papers: int, two: int) -> None:
    root = published_root(str(ARCHIVES[name]))
    graph = load(DataSource(name, root=root))
    arrays = scipy.io.loadmat(Path(root, ARCHIVES[name]))
    kept = arrays["group"].sum(1) == 1
    assert (arrays["group"].sum(1) == 2).sum() == two
    assert graph.cleaning.nodes_dropped == (~kept).sum()
    assert (graph.nodes, graph.features, graph.classes) == (papers - graph.cleaning.nodes_dropped, 6775, 5)
    network = sp.csr_array(arrays["network"])[kept][:, kept]
    assert graph.entries == network.nnz - np.count_nonzero(network.diagonal())


@pytest.mark.parametrize("name", LINKX)
def test_reads_what_pyg_reads(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_linkx(tmp_path, name)
    # The splits of one of them are a pickle, which is not read.
    monkeypatch.setattr(LINKXDataset, "splits", {})
    graph = load(DataSource(name, root=str(tmp_path)))
    (data,) = LINKXDataset(str(tmp_path), name)
    assert_equals_pyg(graph, data)
    assert graph.y.tolist() == ([0, 1, 1, 0] if name == "genius" else [1, 0, -1, 1])
    assert (graph.name, graph.split, graph.classes) == (name, None, 2)
    assert LINKXDataset.datasets[name]["data.mat"] == f"{LINKX_URL}/{LINKX[name]}"


def test_a_damaged_file_is_named(tmp_path: Path) -> None:
    papers = write_papers(tmp_path)
    cut = papers.read_bytes()[:200]
    scipy.io.savemat(papers, {"network": np.eye(4), "attrb": np.eye(5), "group": np.eye(5)})
    with refused(papers, says="a graph of 4 papers"):
        load(DataSource("acmv9", root=str(tmp_path)))
    papers.write_bytes(cut)
    with refused(papers):
        load(DataSource("acmv9", root=str(tmp_path)))
    students = write_linkx(tmp_path, "reed98", local_info=STUDENTS[:3])
    with refused(students, says="3 students in a graph of 4 by 4"):
        load(DataSource("reed98", root=str(tmp_path)))
    users = write_linkx(tmp_path, "genius", label=np.array([[0, 1, 1]]))
    with refused(f"{users} (y)"):
        load(DataSource("genius", root=str(tmp_path)))
