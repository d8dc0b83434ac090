"""Tables of edges and nodes: ids and labels that are names, CSV and Parquet alike; every fault is one line."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from support.errors import refused

from shoal.storage.datasets.features.feature_options import MadeFeatures
from shoal.storage.datasets.registry import fingerprint, load, load_all
from shoal.storage.datasets.sources.source import DataSource
from shoal.storage.datasets.user.files import save_graph
from shoal.storage.graph.graph import Graph

EDGES = "source,target\nann,bob\nbob,7\n7,ann\nzoe,7\nann,bob\n"
NODES = """id,height,label,split,weight,assignment
zoe,1.5,cat,train,4,1
ann,2,,none,5,0
7,-3,dog,validation,6,0
bob,0,ape,3,7,1
"""


def write(folder: Path, edges: str = EDGES, nodes: str = NODES) -> DataSource:
    (folder / "edges.csv").write_text(edges)
    (folder / "nodes.csv").write_text(nodes)
    return DataSource("files", path=str(folder))


def assert_is_it(graph: Graph) -> None:
    # zoe 0, ann 1, 7 is 2, bob 3; ape 0, cat 1, dog 2.
    assert graph.indptr.tolist() == [0, 1, 3, 6, 8]
    assert (graph.indices.tolist(), graph.cleaning.duplicates) == ([2, 2, 3, 0, 1, 3, 1, 2], 1)
    assert (graph.y.tolist(), graph.classes, graph.label_names) == ([1, -1, 2, 0], 3, ("ape", "cat", "dog"))
    assert (graph.x.tolist(), graph.x.dtype) == ([[1.5, 4], [2, 5], [-3, 6], [0, 7]], np.float32)
    assert graph.vocabulary.tolist() == ["height", "weight"]
    assert (graph.split.tolist(), graph.assignment.tolist()) == ([1, 0, 2, 3], [1, 0, 0, 1])


def test_parquet_and_categories(tmp_path: Path) -> None:
    ends = {"source": ["ann", "bob", "7", "zoe", "ann"], "target": ["bob", "7", "ann", "7", "bob"]}
    pq.write_table(pa.table(ends), tmp_path / "edges.parquet", row_group_size=2)
    columns = {
        "id": ["zoe", "ann", "7", "bob"],
        "height": pa.array([1.5, 2, -3, 0]),
        "label": pa.array(["cat", None, "dog", "ape"]).dictionary_encode(),
        "split": pa.array([1, 0, 2, 3], pa.int8()),
        "weight": pa.array([4, 5, 6, 7], pa.int32()),
        "assignment": pa.array([1, 0, 0, 1]),
    }
    pq.write_table(pa.table(columns), tmp_path / "nodes.parquet")
    assert_is_it(load(DataSource("files", path=str(tmp_path))))


def test_csv_is_read_saved_and_read_again(tmp_path: Path) -> None:
    graph = load(write(tmp_path))
    assert_is_it(graph)
    again = load(DataSource("files", path=str(save_graph(graph, tmp_path / "saved"))))
    assert (again.label_names, again.y.tolist()) == (("ape", "cat", "dog"), [1, -1, 2, 0])
    assert again.x.tolist() == [[1.5, 4], [2, 5], [-3, 6], [0, 7]]


def test_equal_names_of_several_graphs_are_one_class(tmp_path: Path) -> None:
    sources = []
    for name, labels in (("one", "ba"), ("two", "ca")):
        (tmp_path / name).mkdir()
        nodes = f"id,label,a\n0,{labels[0]},1\n1,{labels[1]},2\n2,,3\n"
        sources.append(write(tmp_path / name, "source,target\n0,1\n", nodes))
    graph = load_all(sources)
    assert (graph.label_names, graph.classes) == (("a", "b", "c"), 3)
    assert graph.y.tolist() == [1, 0, -1, 2, 0, -1]
    write(tmp_path / "two", "source,target\n0,1\n", "id,label,a\n0,0,1\n1,1,1\n")
    with refused("data.dataset"):
        load_all(sources)


def test_features_may_be_missing_where_they_are_made(tmp_path: Path) -> None:
    plain = write(tmp_path, "source,target\n0,1\n1,2\n", "id,label\n0,0\n1,1\n2,0\n")
    with refused(f"{tmp_path}/nodes.csv"):
        load(plain)
    made = DataSource("files", path=str(tmp_path), made=MadeFeatures("degree", 3), title="mine")
    assert (load(made).x.toarray().tolist(), load(made).name) == ([[0, 1, 0], [0, 0, 1], [0, 1, 0]], "mine")
    assert fingerprint(made)["made_features"] == {"kind": "degree", "width": 3}
    assert fingerprint(made)["files"] == fingerprint(plain)["files"]


def test_weights_of_edges(tmp_path: Path) -> None:
    weights = [0.5, 2, 3, 4, 0.5]
    rows = zip(EDGES.splitlines()[1:], weights, strict=True)
    kept = write(tmp_path, "\n".join(["source,target,weight", *(f"{row},{weight}" for row, weight in rows)]))
    graph = load(kept)
    assert_is_it(graph)
    # zoe-7; ann-7, ann-bob; 7-zoe, 7-ann, 7-bob; bob-ann, bob-7.
    assert graph.edge_weight.tolist() == [4, 3, 0.5, 4, 3, 2, 0.5, 2]
    dropped = replace(kept, edge_weights="drop")
    assert load(dropped).edge_weight is None
    assert fingerprint(dropped) == fingerprint(kept) | {"edge_weights": "drop"}

    folder = save_graph(graph, tmp_path / "arrays")
    arrays = {path.stem: np.load(path) for path in folder.glob("*.npy")}
    np.savez(tmp_path / "graph.npz", **arrays)
    for path in (folder, tmp_path / "graph.npz"):
        again = load(DataSource("files", path=str(path)))
        np.testing.assert_array_equal(again.edge_weight, graph.edge_weight)
        assert load(DataSource("files", path=str(path), edge_weights="drop")).edge_weight is None
        assert "edge_weight" in " ".join(fingerprint(DataSource("files", path=str(path)))["files"])
    np.save(folder / "edge_weight.npy", arrays["edge_weight"][1:])
    with refused(f"{folder}/edge_weight.npy"):
        load(DataSource("files", path=str(folder)))


@pytest.mark.parametrize(
    ("edges", "nodes", "place", "says"),
    [
        ("source,to\n7,7\n", NODES, "edges.csv", "no column 'target'"),
        (EDGES, "id,x\n7,1\n", "nodes.csv", "no column 'label'"),
        ("source,target,weight\n7,ann,\n", NODES, "edges.csv", "no value in some row"),
        ("source,target,weight\n7,ann,far\n", NODES, "edges.csv", "invalid value 'far'"),
        ("source,target,weight\n7,ann,2\nann,7,3\n", NODES, "edges.csv (weight)", "weighs 2 and 3"),
        ("source,target,time\n7,ann,2\n", NODES, "edges.csv", "column 'time' would not be used"),
        ("source,target\n7,ann\nbob,eve\n", NODES, "edges.csv", "target of row 1 is 'eve'"),
        ("source,target\n7,\n", NODES, "edges.csv", "target of row 0 is None"),
        (EDGES, NODES + "bob,1,ape,1,1,1\n", "nodes.csv", "id 'bob' is there twice"),
        (EDGES, NODES + ",1,ape,1,1,1\n", "nodes.csv", "row 4 has no id"),
        (EDGES, NODES.replace("1.5", ""), "nodes.csv", "'height' is a feature and has no value in some row"),
        (EDGES, NODES.replace("1.5", "tall"), "nodes.csv", "invalid value 'tall'"),
        (EDGES, NODES.replace("1.5", "nan"), "nodes.csv", "row 0 of the features has NaN"),
        (EDGES, NODES.replace("none", "later"), "nodes.csv", "split 'later'"),
        (EDGES, NODES.replace("4,1", "4,one"), "nodes.csv", "column assignment is"),
        (EDGES, "id,label,a,a\n7,1,1,1\n", "nodes.csv", "column 'a' is there twice"),
        (EDGES, "id,label,a\n", "nodes.csv", "no row"),
        (EDGES, "", "nodes.csv", "cannot be read"),
        ("source,target\n", "id,label,a\n7,,1\n", "nodes.csv (label)", "no node has a label"),
    ],
)
def test_refuses(edges: str, nodes: str, place: str, says: str, tmp_path: Path) -> None:
    with refused(f"{tmp_path}/{place}", says=says):
        load(write(tmp_path, edges, nodes))


def test_two_tables_of_a_kind_and_one_alone_are_refused(tmp_path: Path) -> None:
    source = write(tmp_path)
    (tmp_path / "nodes.parquet").touch()
    with refused(tmp_path / "nodes.csv"):
        load(source)
    for name in ("nodes.csv", "nodes.parquet"):
        (tmp_path / name).unlink()
    with refused(tmp_path, says="edges.csv, but no nodes"):
        load(source)
