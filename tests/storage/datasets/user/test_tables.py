"""Tables of edges and nodes: ids and labels that are names, CSV and Parquet alike; every fault is one line."""

import gzip
import io
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from support.errors import refused

from shoal.storage.datasets.features.feature_options import MadeFeatures
from shoal.storage.datasets.registry import fingerprint, load, load_all
from shoal.storage.datasets.sources.source import DataSource
from shoal.storage.datasets.user.files import save_graph
from shoal.storage.errors import ShoalError
from shoal.storage.graph.graph import Graph

EDGES = "source,target\nann,bob\nbob,7\n7,ann\nzoe,7\nann,bob\n"
NODES = """id,height,label,split,weight,assignment
zoe,1.5,cat,Train,4,1
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
    assert graph.ids.to_pylist() == ["zoe", "ann", "7", "bob"]


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
    assert again.ids == graph.ids


def parts(folder: Path, name: str, text: str) -> None:
    """A table as Spark writes it."""
    (folder / name).mkdir()
    header, *rows = text.splitlines(keepends=True)
    for number, own in enumerate((rows[:2], [], rows[2:])):
        (folder / name / f"part-0000{number}.csv").write_text("".join([header, *own]))
    for other in ("_SUCCESS", ".part-00000.csv.crc", "part-00009.csv"):
        (folder / name / other).touch()


@pytest.mark.parametrize(
    ("first", "second", "classes", "names"),
    [
        ([0, 1], pa.nulls(2), [0, 1, -1, -1], None),
        (pa.nulls(2), [0, 1], [-1, -1, 0, 1], None),
        ([0, 1], ["1", ""], [0, 1, 1, -1], None),
        (pa.array([0, 1], pa.int8()), [1.0, None], [0, 1, 1, -1], None),
        # With a gap, classes are numbered as they first occur.
        (pa.array([3, 1], pa.uint16()), pa.array([1, -1], pa.int64()), [0, 1, 1, -1], ("3", "1")),
        ([0.0, 1.0], ["1", "0"], [0, 1, 1, 0], None),
        (["b", "a"], pa.array(["a", None]).dictionary_encode(), [1, 0, 0, -1], ("a", "b")),
        ([True, False], pa.nulls(2), [1, 0, -1, -1], ("false", "true")),
    ],
)
def test_labels_of_parts_of_other_types_are_those_of_one_file(
    tmp_path: Path, first: object, second: object, classes: list[int], names: tuple[str, ...] | None
) -> None:
    (tmp_path / "nodes.parquet").mkdir()
    for number, labels in enumerate((first, second)):
        part = pa.table({"id": [2 * number, 2 * number + 1], "label": labels, "f": [1.0, 2.0]})
        pq.write_table(part, tmp_path / "nodes.parquet" / f"part-{number}.parquet")
    pq.write_table(pa.table({"source": [0, 1, 2], "target": [1, 2, 3]}), tmp_path / "edges.parquet")
    graph = load(DataSource("files", path=str(tmp_path)))
    assert (graph.y.tolist(), graph.label_names) == (classes, names)


def test_labels_of_parts_that_are_no_labels_in_one_are_refused_with_both_types(tmp_path: Path) -> None:
    (tmp_path / "nodes.parquet").mkdir()
    for number, labels in enumerate(([0, 1], [[0], [1]])):
        part = pa.table({"id": [2 * number, 2 * number + 1], "label": labels, "f": [1.0, 2.0]})
        pq.write_table(part, tmp_path / "nodes.parquet" / f"part-{number}.parquet")
    pq.write_table(pa.table({"source": [0], "target": [1]}), tmp_path / "edges.parquet")
    with refused(tmp_path / "nodes.parquet" / "part-1.parquet", says="'label' is list<element: int64>, and in part-0"):
        load(DataSource("files", path=str(tmp_path)))


def spelled(text: str) -> bytes:
    """As Excel and hands write it."""
    header, _, rows = text.partition("\n")
    named = ",".join(f'" {name.upper() if name in ("id", "label", "source") else name}"' for name in header.split(","))
    return f"\ufeff{named}\n{rows}".replace("\n", "\r\n").encode()


WRITERS: dict[str, Callable[[Path, str, str], object]] = {
    "spelled": lambda folder, name, text: (folder / f"{name}.csv").write_bytes(spelled(text)),
    "semicolons": lambda folder, name, text: (folder / f"{name}.csv").write_text(text.replace(",", ";")),
    "bars": lambda folder, name, text: (folder / f"{name}.csv").write_text(text.replace(",", "|")),
    "tabs": lambda folder, name, text: (folder / f"{name}.tsv").write_text(text.replace(",", "\t")),
    "gzip": lambda folder, name, text: (folder / f"{name}.csv.gz").write_bytes(gzip.compress(text.encode())),
    "parts": lambda folder, name, text: parts(folder, f"{name}.csv", text),
}


@pytest.mark.parametrize("way", WRITERS)
def test_tables_written_in_other_ways_are_the_same_graph(way: str, tmp_path: Path) -> None:
    for name, text in (("edges", EDGES), ("nodes", NODES)):
        WRITERS[way](tmp_path, name, text)
    source = DataSource("files", path=str(tmp_path))
    assert_is_it(load(source))
    before = fingerprint(source)
    file = next(path for path in sorted(tmp_path.rglob("*"), reverse=True) if path.is_file() and path.stat().st_size)
    file.write_bytes(file.read_bytes() + b"\n")
    assert fingerprint(source) != before


def test_parts_of_parquet_and_columns_of_lists(tmp_path: Path) -> None:
    write(tmp_path)
    (tmp_path / "nodes.csv").unlink()
    folder = tmp_path / "nodes.parquet"
    folder.mkdir()
    x = np.arange(8, dtype=np.float32).reshape(4, 2)
    fixed = pa.FixedSizeListArray.from_arrays(pa.array(x.reshape(-1)), 2)
    ids = {"id": ["zoe", "ann", "7", "bob"], "label": [0, 1, 0, 1]}
    whole = pa.table({**ids, "e": x.tolist(), "f": fixed, "g": [True, False] * 2})
    for number, rows in enumerate((whole.slice(0, 3), whole.slice(3))):
        pq.write_table(rows, folder / f"part-{number}.parquet")
    graph = load(DataSource("files", path=str(tmp_path)))
    assert graph.vocabulary.tolist() == ["e[0]", "e[1]", "f[0]", "f[1]", "g"]
    np.testing.assert_array_equal(graph.x, np.column_stack([x, x, [1, 0, 1, 0]]))

    unequal = {"part-1.parquet": [[1.0, 2.0, 3.0]], "part-0.parquet": [[1.0, 2.0], [1.0], [1.0, 2.0]]}
    for part, values in unequal.items():
        rows = pq.read_table(folder / part)
        pq.write_table(rows.set_column(2, "e", pa.array(values)), folder / part)
        with refused(f"{folder}/{part}", says="column 'e'"):
            load(DataSource("files", path=str(tmp_path)))
    pq.write_table(whole.drop_columns("g"), folder / "part-1.parquet")
    with refused(f"{folder}/part-1.parquet", says="column 'g' is in only one"):
        load(DataSource("files", path=str(tmp_path)))
    for name in ("split=train", "_delta_log"):
        (folder / name).mkdir()
        with refused(str(folder / name) if "=" in name else str(folder)):
            load(DataSource("files", path=str(tmp_path)))


@pytest.mark.parametrize("name", ["", "Unnamed: 0", "__index_level_0__"])
def test_a_column_without_a_name_is_left_out(name: str, tmp_path: Path) -> None:
    lines = NODES.splitlines()
    rows = [f"{row},{line}" for row, line in enumerate(lines[1:])]
    graph = load(write(tmp_path, nodes="\n".join([f"{name},{lines[0]}", *rows])))
    assert_is_it(graph)
    assert graph.notes == (f"{tmp_path}/nodes.csv: column {name!r} has no name and is left out",)
    write(tmp_path, "source,target\n7,7\n", f"{name},{lines[0]}\nfr,7,1,dog,1,1,1\n")
    with refused(f"{tmp_path}/nodes.csv", says="name it"):
        load(DataSource("files", path=str(tmp_path)))


@pytest.mark.parametrize("name", ["", "Unnamed: 0", "__index_level_0__"])
def test_a_column_of_edges_without_a_name_is_left_out(name: str, tmp_path: Path) -> None:
    lines = EDGES.splitlines()
    rows = [f"{row},{line}" for row, line in enumerate(lines[1:])]
    graph = load(write(tmp_path, edges="\n".join([f"{name},{lines[0]}", *rows])))
    assert_is_it(graph)
    assert graph.notes == (f"{tmp_path}/edges.csv: column {name!r} has no name and is left out",)
    write(tmp_path, edges=f"{name},source,target\nfriends,ann,7\n")
    with refused(f"{tmp_path}/edges.csv", says="name it, or take it out"):
        load(DataSource("files", path=str(tmp_path)))


def test_pandas_with_its_index_is_the_same_graph(tmp_path: Path) -> None:
    for name, text in (("edges", EDGES), ("nodes", NODES)):
        pd.read_csv(io.StringIO(text), dtype=str).to_csv(tmp_path / f"{name}.csv")
    graph = load(DataSource("files", path=str(tmp_path)))
    assert_is_it(graph)
    assert len(graph.notes) == 2


@pytest.mark.parametrize("separator", [",", ";", "\t"])
@pytest.mark.parametrize(
    "ends", [("src", "dst"), ("u", "v"), ("from", "to"), ("From_Node", "To_Node"), ("node1", "node2")]
)
def test_other_names_of_ends_are_asked_about(ends: tuple[str, str], separator: str, tmp_path: Path) -> None:
    edges = EDGES.replace("source,target", ",".join(ends)).replace(",", separator)
    says = f"did you mean 'source' and 'target' by {ends[0]!r} and {ends[1]!r}? rename them; no column 'source' and no"
    with refused(f"{tmp_path}/edges.csv", says=says):
        load(write(tmp_path, edges))
    with refused(f"{tmp_path}/edges.csv", says=f"did you mean 'target' by {ends[1]!r}? rename it; no column 'target'"):
        load(write(tmp_path, edges.replace(ends[0], "source", 1)))


def test_other_names_of_ids_and_labels_are_asked_about(tmp_path: Path) -> None:
    nodes = NODES.replace("id,height,label", "node_id,height,y")
    says = "did you mean 'id' and 'label' by 'node_id' and 'y'? rename them; no column 'id' and no column 'label'; "
    with refused(f"{tmp_path}/nodes.csv", says=says):
        load(write(tmp_path, nodes=nodes))


def test_all_faults_of_both_tables_are_one_error(tmp_path: Path) -> None:
    nodes = NODES.replace("weight", "client").replace("1.5", "tall").replace("none", "later").replace("bob,", "ann,")
    edges = "source,target,weight,type\nann,eve,1,a\nmax,7,far,b\nmax,7,near,b\n"
    # Ends of edges are looked up among ids that are there twice, too.
    faults = (
        "(1) nodes.csv: column 'client' means a client and is no feature; write its number as column 'assignment', or "
        "rename it; (2) nodes.csv: column 'height' is a feature and must be numbers; row 0 is 'tall': name a "
        "column of texts in data.options.text, or take the column out; (3) nodes.csv: id 'ann' is there twice; one "
        "row a node; "
        "(4) nodes.csv: split 'later'; it is train, val or test, or nothing; (5) edges.csv: did you mean 'relation' by "
        "'type'? rename it, or take it out; (6) edges.csv: source of row 1 is 'max', which is the id of no node (1 of "
        "2 such rows); (7) edges.csv: target of row 0 is 'eve', which is the id of no node; and 1 more"
    )
    with refused(tmp_path, says=f": 8 faults: {faults}"):
        load(write(tmp_path, edges, nodes))
    says = (
        "4 faults: (1) edges.csv: did you mean 'relation' by 'type'? rename it, or take it out; "
        "(2) edges.csv: source of row 1 is 'max', which is the id of no node (1 of 2 such rows); "
        "(3) edges.csv: target of row 0 is 'eve', which is the id of no node; "
        "(4) edges.csv: column 'weight' is what an edge weighs and must be numbers; row 1"
    )
    with refused(tmp_path, says=says):
        load(write(tmp_path, edges))
    # A table that cannot be read at all hides no fault of the other.
    with refused(tmp_path, says=": 2 faults: (1) nodes.csv: cannot be read"):
        load(write(tmp_path, "src,dst\n1,2\n", ""))
    # A line holds some of very many.
    columns = ",".join(["id,label", *(f"f{number}" for number in range(30))])
    rows = ",".join(["7,1", *["wrong"] * 30])
    with pytest.raises(ShoalError, match=r"30 faults: \(1\) .*; \(2\) .*; and (\d+) more$") as caught:
        load(write(tmp_path, "source,target\n7,7\n", f"{columns}\n{rows}\n"))
    assert caught.value.line.count("'wrong'") == 30 - int(caught.value.line.split()[-2])


@pytest.mark.parametrize(
    "name", ["train_mask", "Val Mask", "testMask", "client", "Domain", "graph_id", "node_id", "index", "level_0", "y"]
)
def test_a_name_that_means_something_else_is_no_feature(name: str, tmp_path: Path) -> None:
    with refused(f"{tmp_path}/nodes.csv", says=f"column '{name}' means"):
        load(write(tmp_path, nodes=NODES.replace("height", name)))


def test_what_only_numbers_the_rows_is_noted(tmp_path: Path) -> None:
    rows = [f"{90 - 3 * n},{n % 2},{n + 5},{90 - 3 * n},{n % 7}" for n in range(20)]
    graph = load(write(tmp_path, "source,target\n90,87\n", "\n".join(["id,label,number,again,size", *rows])))
    assert [note.rpartition(": column ")[2].partition(";")[0] for note in graph.notes] == [
        "'number' counts the rows",
        "'again' repeats the ids",
    ]
    assert graph.ids.to_pylist() == [90 - 3 * n for n in range(20)]


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
        ("source,end of it\n7,7\n", NODES, "edges.csv", ": no column 'target'; it needs source and target, found "),
        ("source,target\n7,7\n", "id,x\n7,1\n", "nodes.csv", "no column 'label'"),
        ("source,target,weight\n7,ann,\n", NODES, "edges.csv", "row 0 has no value"),
        ("source,target,weight\n7,ann,far\n", NODES, "edges.csv", "row 0 is 'far'"),
        ("source,target,weight\n7,ann,2\nann,7,3\n", NODES, "edges.csv (weight)", "weighs 2 and 3"),
        ("source,target,type\n7,ann,friend\n", NODES, "edges.csv", "did you mean 'relation' by 'type'?"),
        ("source,target,w\n7,ann,1\n", NODES, "edges.csv", "did you mean 'weight' by 'w'? rename it"),
        ("7,8\n", NODES, "edges.csv", "add a header"),
        ("source,target\n7,ann\nbob,eve\n", NODES, "edges.csv", "target of row 1 is 'eve'"),
        ("source,target\n7,\n", NODES, "edges.csv", "target of row 0 is None"),
        (EDGES, NODES + "bob,1,ape,1,1,1\n", "nodes.csv", "id 'bob' is there twice"),
        (EDGES, NODES + ",1,ape,1,1,1\n", "nodes.csv", "row 4 has no id"),
        (EDGES, NODES.replace("1.5", ""), "nodes.csv", "'height' is a feature and must be numbers; row 0 has no value"),
        (EDGES, NODES.replace("1.5", "tall"), "nodes.csv", "feature and must be numbers; row 0 is 'tall'"),
        (EDGES, NODES.replace("1.5", "nan"), "nodes.csv", "row 0 is 'nan'"),
        (EDGES, NODES.replace("1.5", "True"), "nodes.csv", "row 0 is 'True'"),
        (EDGES, NODES.replace("1.5", "2024-01-31"), "nodes.csv", "row 0 is '2024-01-31'"),
        (EDGES, NODES.replace(",", ";").replace("1.5", "1,5"), "nodes.csv", "row 0 is '1,5': write decimals"),
        (EDGES, NODES.replace("none", "later"), "nodes.csv", "split 'later'"),
        (EDGES, NODES.replace("4,1", "4,one"), "nodes.csv", "column assignment is"),
        (EDGES, "id,label,a, a\n7,1,1,1\n", "nodes.csv", "column 'a' is there twice"),
        (EDGES, "id,label,ID\n7,1,1\n", "nodes.csv", "column 'id' is there twice"),
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
    with refused(tmp_path / "edges.csv", says="is one table"):
        load(DataSource("files", path=str(tmp_path / "edges.csv")))
    (tmp_path / "edges.csv").rename(tmp_path / "edges.xlsx")
    with refused(tmp_path / "edges.xlsx"):
        load(source)
    (tmp_path / "edges.xlsx").rename(tmp_path / "edges.csv")
    for name in ("nodes.csv", "nodes.parquet"):
        (tmp_path / name).unlink()
    with refused(tmp_path, says="edges.csv, but no nodes"):
        load(source)
