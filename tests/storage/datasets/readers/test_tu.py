"""TU's published layout and DGCNN's text: made-up graphs read back, PyG's own reader, published counts, wrong files."""

import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
from support.errors import refused

from shoal.storage.datasets.features.feature_options import MadeFeatures
from shoal.storage.datasets.readers.tu import NAMES, URL, paths
from shoal.storage.datasets.registry import load, published_contents
from shoal.storage.datasets.sources.source import DataSource
from shoal.storage.graph.graph import Graph

# Graphs of three nodes, one, and two, with a loop, a duplicate, and edges given one way; labels -1 and 1, 1.
RAW = {
    "A": "1, 2\n2, 1\n2, 3\n5, 6\n5, 6\n6, 6\n",
    "graph_indicator": "1\n1\n1\n2\n3\n3\n",
    "graph_labels": "1\n-1\n1\n",
    "node_labels": "2\n4\n2\n3\n4\n2\n",
    "node_attributes": " 0.5\n1.0\n-2\n0\n0\n3e1\n",
}
ONE_HOT = [[1, 0, 0], [0, 0, 1], [1, 0, 0], [0, 1, 0], [0, 0, 1], [1, 0, 0]]
DEGREES = [1, 2, 1, 0, 1, 1]


def write(root: Path, name: str, **changed: str) -> DataSource:
    for path in paths(DataSource(name, root="/nowhere")):
        part = path.stem.removeprefix(f"{NAMES[name]}_")
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_text({**RAW, **changed}[part])
    return DataSource(name, root=str(root))


def dense(x: Any) -> Any:
    return x.toarray() if sp.issparse(x) else x


def assert_small(graph: Graph) -> None:
    assert graph.indptr.tolist() == [0, 1, 3, 4, 4, 5, 6]
    assert graph.indices.tolist() == [1, 0, 2, 1, 5, 4]
    assert (graph.graph_of.tolist(), graph.graph_of.dtype) == ([0, 0, 0, 1, 2, 2], np.int64)
    assert (graph.y.tolist(), graph.classes) == ([1, 0, 1], 2)


def test_labels_of_nodes_are_one_hot(tmp_path: Path) -> None:
    graph = load(write(tmp_path, "nci1"))
    assert_small(graph)
    assert dense(graph.x).tolist() == ONE_HOT
    assert graph.vocabulary.tolist() == [f"nci1 label 0.{label}" for label in (2, 3, 4)]
    assert (graph.cleaning.self_loops, graph.cleaning.duplicates, graph.cleaning.reversed_added) == (1, 1, 2)


def test_attributes_stand_before_labels_where_they_are_asked_for(tmp_path: Path) -> None:
    source = write(tmp_path, "proteins")
    assert dense(load(source).x).tolist() == ONE_HOT
    graph = load(DataSource("proteins", root=source.root, node_attributes=True))
    assert dense(graph.x).tolist() == [[a, *row] for a, row in zip([0.5, 1, -2, 0, 0, 30], ONE_HOT)]
    assert graph.vocabulary[0] == "proteins attribute 0"
    assert_small(graph)


@pytest.mark.parametrize(("cap", "width"), [(None, 3), (0, 1), (1, 2), (4, 5)])
def test_degrees_where_there_is_nothing_else(tmp_path: Path, cap: int | None, width: int) -> None:
    """Loops and duplicates are no neighbours."""
    source = write(tmp_path, "imdb-binary")
    graph = load(DataSource("imdb-binary", root=source.root, degree_cap=cap))
    assert_small(graph)
    assert dense(graph.x).tolist() == np.eye(width)[np.minimum(DEGREES, width - 1)].tolist()
    assert graph.vocabulary.tolist() == [f"degree {k}" for k in range(width)]


TEXT = "3\n3 7\n0 1 1\n0 2 0 2\n5 1 1\n1 -2\n0 0\n2 7\n9 1 1\n9 2 0 1\n"


def zipped(root: Path, text: str = TEXT) -> Path:
    path = root / "tu_text" / "COLLAB.zip"
    path.parent.mkdir()
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("COLLAB/COLLAB.txt", text)
    return path


def test_the_text_of_dgcnn(tmp_path: Path) -> None:
    path = zipped(tmp_path)
    source = DataSource("collab", root=str(tmp_path))
    graph = load(source)
    assert_small(graph)
    assert dense(graph.x).tolist() == np.eye(3)[DEGREES].tolist()
    assert list(published_contents(source)) == ["tu_text/COLLAB.zip"]
    # TU's own files come first.
    write(tmp_path, "collab", graph_labels="1\n2\n3\n")
    assert load(source).classes == 3
    assert len(published_contents(source)) == 3
    path.unlink()


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "ends before its last graph"),
        (TEXT + "1", "goes on after it"),
        (TEXT[:-3], "ends before its last graph"),
        ("1\n0 1\n", "ends before its last graph"),
        ("1\n1 1\n0 -1 0\n", "ends before its last graph"),
        ("1\n2 1\n0 1 2\n0 0\n", "a neighbour is no node of its graph"),
        ("1\n2 1\n0 1 -1\n0 0\n", "a neighbour is no node of its graph"),
        ("-3\n", "ends before its last graph"),
        ("1\n1 x\n0 0\n", "more than whole numbers"),
        ("1\n1 -\n0 0\n", ""),
    ],
)
def test_a_text_of_something_else_is_named(tmp_path: Path, text: str, says: str) -> None:
    path = zipped(tmp_path, text)
    with refused(path, says=says):
        load(DataSource("collab", root=str(tmp_path)))


def test_an_archive_of_something_else_is_named(tmp_path: Path) -> None:
    path = zipped(tmp_path)
    cut_off = path.read_bytes()[:-40]
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("IMDB/IMDB.txt", TEXT)
    with refused(path, says="no item named 'COLLAB/COLLAB.txt'"):
        load(DataSource("collab", root=str(tmp_path)))
    path.write_bytes(cut_off)
    with refused(path):
        load(DataSource("collab", root=str(tmp_path)))


@pytest.mark.parametrize(
    ("part", "text", "says"),
    [
        ("A", "1, 2\n4, 5\n", "an edge joins node 3 of graph 1 and node 4 of graph 2"),
        ("A", "1, 7\n", "edge_index names node 6"),
        ("A", "0, 1\n", "edge_index names node -1"),
        ("A", "1, a\n", "no whole numbers"),
        ("A", "1, 2\n3\n", "cannot be read"),
        ("A", "", "cannot be read"),
        ("graph_indicator", "1\n1\n1\n2\n2\n4\n", "row 5 is 3; graphs are numbered from 0 without a gap"),
        ("graph_indicator", "1\n1\n1\n2\n3\n2\n", "row 5 is 1; graphs are numbered from 0 without a gap"),
        ("graph_indicator", "1\n1\n1\n2\n3\n", "6 rows for 5 nodes"),
        ("graph_labels", "1\n2\n", "there are 3 graphs; one value a graph"),
        ("node_labels", "1\n2\n", "2 rows for 6 nodes"),
        ("node_labels", "1\n2\n1\n2\n1\n0.5\n", "no whole numbers"),
        ("node_labels", "1\n2\n1\n2\n1\n70000\n", "one-hot labels are fewer than 65536, found 1 to 70000"),
        ("node_attributes", "1\n2\n1\n2\n1\nnan\n", "NaN"),
        ("node_attributes", "1\n2\n1\n2\n1\nx\n", "no numbers"),
    ],
)
def test_a_file_of_something_else_is_named(tmp_path: Path, part: str, text: str, says: str) -> None:
    source = write(tmp_path, "proteins", **{part: text})
    with refused(says=says):
        load(DataSource("proteins", root=source.root, node_attributes=True))


@pytest.mark.exhaustive(3)
@pytest.mark.parametrize(
    ("name", "nodes", "edges", "labels"),
    [
        ("nci1", 122747, 132753, [2053, 2057]),
        ("proteins", 43471, 81044, [663, 450]),
        ("imdb-binary", 19773, 96531, [500, 500]),
    ],
)
def test_graphs_are_those_of_pyg(
    published_root: Callable[[str], str], name: str, nodes: int, edges: int, labels: list[int]
) -> None:
    from torch_geometric.datasets import TUDataset

    root = published_root(str(paths(DataSource(name, root="/nowhere"))[0]))
    graph = load(DataSource(name, root=root, node_attributes=True))
    assert (graph.nodes, graph.entries, np.bincount(graph.y).tolist()) == (nodes, 2 * edges, labels)
    options = {"root": "tu", "use_node_attr": True}
    made = MadeFeatures("degree" if name == "imdb-binary" else "given", 200)
    theirs = load(DataSource(f"pyg:TUDataset/{NAMES[name]}", root=root, user_options=options, made=made))
    for field in ("indptr", "indices", "y", "graph_of"):
        np.testing.assert_array_equal(getattr(graph, field), getattr(theirs, field))
    ours = dense(graph.x)
    np.testing.assert_array_equal(ours, dense(theirs.x)[:, : ours.shape[1]])
    assert TUDataset.url == URL
