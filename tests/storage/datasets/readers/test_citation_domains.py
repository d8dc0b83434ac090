"""ACM and DBLP in ACDNE's files: papers of two areas are dropped and counted, the others keep their order."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import scipy.io
import scipy.sparse as sp

from shoal.storage.datasets.readers.citation_domains import FILES
from shoal.storage.datasets.registry import load
from shoal.storage.datasets.sources.source import DataSource
from shoal.storage.errors import ShoalError


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Five papers in a ring, the third of two areas, the fifth of none; paper 1 cites itself."""
    ring = np.zeros((5, 5))
    for paper in range(5):
        ring[paper, (paper + 1) % 5] = ring[(paper + 1) % 5, paper] = 1
    ring[1, 1] = 1
    group = np.array([[1, 0, 0], [0, 0, 1], [1, 1, 0], [0, 1, 0], [0, 0, 0]])
    words = sp.csc_matrix(np.arange(20).reshape(5, 4) % 3 == 0, dtype=float)
    file = tmp_path / FILES["acmv9"]
    file.parent.mkdir()
    scipy.io.savemat(file, {"network": sp.csc_matrix(ring), "attrb": words, "group": group})
    return tmp_path


def test_papers_of_one_area_stay(root: Path) -> None:
    graph = load(DataSource("ACMv9", root=str(root)))
    assert graph.cleaning.nodes_dropped == 2
    assert graph.y.tolist() == [0, 2, 1]
    # 0-1 is left of the ring, with a loop at 1; papers 2 and 4 take the other edges with them.
    assert (graph.indptr.tolist(), graph.indices.tolist()) == ([0, 1, 2, 2], [1, 0])
    assert graph.cleaning.self_loops == 1
    np.testing.assert_array_equal(graph.x.toarray(), (np.arange(20).reshape(5, 4) % 3 == 0)[[0, 1, 3]])


@pytest.mark.parametrize("damage", ["cut", "another graph"])
def test_a_damaged_file_is_named(root: Path, damage: str) -> None:
    file = root / FILES["acmv9"]
    if damage == "cut":
        file.write_bytes(file.read_bytes()[:200])
    else:
        scipy.io.savemat(file, {"network": np.eye(4), "attrb": np.eye(5), "group": np.eye(5)})
    with pytest.raises(ShoalError, match=rf"^{file}: cannot be read .*; delete it"):
        load(DataSource("acmv9", root=str(root)))


@pytest.mark.parametrize(("name", "papers", "two"), [("acmv9", 9360, 581), ("dblpv7", 5484, 15)])
def test_published_counts(published_root: Callable[[str], str], name: str, papers: int, two: int) -> None:
    root = published_root(str(FILES[name]))
    graph = load(DataSource(name, root=root))
    arrays = scipy.io.loadmat(Path(root, FILES[name]))
    assert (arrays["group"].sum(1) == 2).sum() == two
    assert graph.cleaning.nodes_dropped == (arrays["group"].sum(1) != 1).sum()
    assert (graph.nodes, graph.features, graph.classes) == (papers - graph.cleaning.nodes_dropped, 6775, 5)
    kept = arrays["group"].sum(1) == 1
    network = sp.csr_array(arrays["network"])[kept][:, kept]
    assert graph.entries == network.nnz - np.count_nonzero(network.diagonal())
