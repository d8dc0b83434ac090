"""A user's own graph: both layouts bring back what was written; every fault is one line that names the file."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
import torch
from support.errors import refused
from support.pyg_graphs import Trap
from support.shards import dense

from shoal.storage.datasets.registry import fingerprint, load
from shoal.storage.datasets.sources.source import DataSource
from shoal.storage.datasets.user.files import save_graph
from shoal.storage.datasets.user.unread import Unread
from shoal.storage.graph.graph import Graph

LAYOUTS = ("npz", "folder")


def arrays(**changes: Any) -> dict[str, np.ndarray]:
    """A square 0-1-2-3 with every array there may be."""
    given = {
        "edge_index": np.array([[0, 1, 2, 3], [1, 2, 3, 0]]),
        "x": np.arange(8, dtype=np.float32).reshape(4, 2),
        "y": np.array([0, 1, -1, 2]),
        "split": np.array([1, 2, 0, 3], dtype=np.int8),
        "assignment": np.array([0, 0, 1, 1]),
    } | changes
    return {name: np.asarray(value) for name, value in given.items() if value is not None}


def write(folder: Path, layout: str, **changes: Any) -> DataSource:
    if layout == "npz":
        np.savez(folder / "mine.npz", **arrays(**changes))
        return DataSource("files", path=str(folder / "mine.npz"))
    for name, array in arrays(**changes).items():
        np.save(folder / f"{name}.npy", array)
    return DataSource("files", path=str(folder))


def assert_square(graph: Graph) -> None:
    assert graph.indptr.tolist() == [0, 2, 4, 6, 8]
    assert (graph.indices.tolist(), graph.y.tolist()) == ([1, 3, 0, 2, 1, 3, 0, 2], [0, 1, -1, 2])
    assert (graph.name, graph.classes, graph.y.dtype, graph.synthetic) == ("files", 3, np.int64, False)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_brings_back_what_was_written(layout: str, tmp_path: Path) -> None:
    graph = load(write(tmp_path, layout, ids=[11, 2, 3, 4]))
    assert_square(graph)
    assert graph.ids.to_pylist() == [11, 2, 3, 4]
    assert graph.x.tolist() == [[0, 1], [2, 3], [4, 5], [6, 7]]
    assert (graph.split.tolist(), graph.split.dtype) == ([1, 2, 0, 3], np.int8)
    assert (graph.assignment.tolist(), graph.assignment.dtype) == ([0, 0, 1, 1], np.int32)
    assert graph.cleaning.reversed_added == 4
    # Features of a folder stay on the disk.
    assert isinstance(graph.x, np.memmap) == (layout == "folder")


@pytest.mark.parametrize("fmt", ["csr", "csc", "coo"])
def test_sparse_features_of_a_folder(fmt: str, tmp_path: Path) -> None:
    options = write(tmp_path, "folder", x=None)
    x = np.array([[0, 1.5], [2, 0], [0, 0], [0, 3]])
    sp.save_npz(tmp_path / "x.npz", sp.coo_array(x).asformat(fmt))
    graph = load(options)
    assert_square(graph)
    assert (graph.x.format, graph.x.dtype) == ("csr", np.float32)
    assert (graph.x.toarray() == x).all()


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("dtype", ["float64", ">f4", "uint8", "bool", "float16"])
def test_type_of_features(layout: str, dtype: str, tmp_path: Path) -> None:
    x = arrays()["x"].astype(dtype)
    graph = load(write(tmp_path, layout, x=x))
    assert graph.x.dtype == np.dtype("float16" if dtype == "float16" else "float32")
    assert (graph.x == x).all()


@pytest.mark.parametrize("y", [[0.0, 1.0, np.nan, 2.0], [[0], [1], [-1], [2]], np.array([0, 1, -1, 2], np.int8)])
def test_labels_as_floats_column_or_bytes(y: Any, tmp_path: Path) -> None:
    assert_square(load(write(tmp_path, "npz", y=y)))


def many(**changes: Any) -> dict[str, Any]:
    """The nodes of the square as three graphs, 0-1, 2 and 3, with a label, a part and a client each."""
    own = {"edge_index": [[0], [1]], "graph": [0, 0, 1, 2], "y": [1, -1, 0]}
    return own | {"split": [1, 0, 3], "assignment": [1, 0, 1]} | changes


@pytest.mark.parametrize(
    ("array", "value", "says"),
    [
        ("edge_index", [[0, 4], [1, 2]], "names node 4"),
        ("x", [1.0, 2.0, 3.0, 4.0], "[N, F], found float64 [4]"),
        ("x", np.empty((4, 0)), "[N, F]"),
        ("x", [["a"], ["b"], ["c"], ["d"]], "must be numbers"),
        ("y", [0, 1, 2], "shape [3], but x has 4 rows"),
        (
            "y",
            [[0, 1], [1, 0], [1, 1], [0, 0]],
            "y is [4, 2], row 2 is of several classes; give one class each, or set target to multilabel",
        ),
        ("y", ["a", "b", "a"], "shape [3], but x has 4 rows"),
        ("split", [1, 2, 3], "shape [3]"),
        ("split", [1, 2, 0, 4], "row 3 is 4, not in 0..3"),
        ("split", [1, -1, 0, 2], "row 1 is -1"),
        ("assignment", [0, 1], "shape [2]"),
        ("assignment", [0, 1, -1, 1], "row 2 is -1"),
        ("assignment", [0, 1, 2**40, 1], f"row 2 is {2**40}"),
    ],
)
def test_refuses(array: str, value: Any, says: str, tmp_path: Path) -> None:
    with refused(f"{tmp_path}/mine.npz ({array})", says=says):
        load(write(tmp_path, "npz", **{array: value}))


@pytest.mark.parametrize(
    ("array", "value", "says"),
    [
        ("graph", [0, 0, 1], "shape [3], but x has 4 rows; one graph a node"),
        ("graph", [[0], [0], [1], [2]], "shape [4, 1]"),
        ("graph", [1, 1, 2, 3], "row 0 is 1; graphs are numbered from 0 without a gap"),
        ("graph", [0, 0, 2, 3], "row 2 is 2; graphs are numbered from 0 without a gap"),
        ("graph", [0, 1, 0, 2], "row 2 is 0; graphs are numbered"),
        ("graph", [0, 0, -1, 2], "row 2 is -1"),
        ("graph", [0, 0.5, 1, 2], "row 1 is 0.5, not an integer"),
        ("y", [1, 0, 0, 1], "shape [4], but there are 3 graphs; one value a graph"),
        ("split", [1, 2, 3, 3], "shape [4], but there are 3 graphs; one value a graph"),
        ("assignment", [0, 1], "shape [2], but there are 3 graphs; one value a graph"),
        ("y", [-1, -1, -1], "no graph has a label"),
        ("edge_index", [[0, 1], [1, 2]], "an edge joins node 1 of graph 0 and node 2 of graph 1"),
    ],
)
def test_many_graphs_are_refused(array: str, value: Any, says: str, tmp_path: Path) -> None:
    with refused(f"{tmp_path}/mine.npz ({array})", says=says):
        load(write(tmp_path, "npz", **many(**{array: value})))


@pytest.mark.parametrize("row_normalize", [False, True])
@pytest.mark.parametrize("value", [np.nan, np.inf, 1e300])
def test_refuses_features_that_are_not_finite_in_float32(value: float, row_normalize: bool, tmp_path: Path) -> None:
    x = arrays()["x"].astype(np.float64)
    x[3, 0] = value
    with refused(f"{tmp_path}/x.npy", says="row 3 "):
        load(replace(write(tmp_path, "folder", x=x), row_normalize=row_normalize))
    (tmp_path / "x.npy").unlink()
    sp.save_npz(tmp_path / "x.npz", sp.csr_array(x))
    with refused(f"{tmp_path}/x.npz", says="row 3 "):
        load(DataSource("files", path=str(tmp_path)))


def test_refuses_sparse_features_whose_columns_do_not_exist_and_features_given_twice(tmp_path: Path) -> None:
    options = write(tmp_path, "folder")
    x = sp.csr_array(np.eye(4))
    x.indices[2] = 99
    sp.save_npz(tmp_path / "x.npz", x)
    with refused(tmp_path / "x.npz", says="keep one"):
        load(options)
    (tmp_path / "x.npy").unlink()
    with refused(tmp_path / "x.npz", says="cannot be read"):
        load(options)


@pytest.mark.parametrize("array", ["edge_index", "x", "y"])
def test_refuses_an_array_that_is_not_there(array: str, tmp_path: Path) -> None:
    with refused(tmp_path / "mine.npz", says=f"no array {array}"):
        load(write(tmp_path, "npz", **{array: None}))
    with refused(tmp_path / f"{array}.npy", says="not found"):
        load(write(tmp_path, "folder", **{array: None}))


@pytest.mark.parametrize(
    ("array", "says"),
    [("edge_time", "edge_attr"), ("train_mask", "from split"), ("client", "assignment"), ("node_type", "HeteroData")],
)
def test_arrays_that_would_be_lost_are_refused(array: str, says: str, tmp_path: Path) -> None:
    for layout, place in (("npz", f"{tmp_path}/mine.npz ({array})"), ("folder", f"{tmp_path}/{array}.npy")):
        with refused(place, says=says):
            load(write(tmp_path, layout, **{array: [0, 1, 2, 3]}))
        # Where a store is there already, no graph is read: its identity refuses.
        with refused(place):
            fingerprint(write(tmp_path, layout, **{array: [0, 1, 2, 3]}))


def test_files_that_are_not_read_are_named(tmp_path: Path) -> None:
    options = write(tmp_path, "folder", notes=[1, 2], client=[0, 1, 0, 1])
    options = replace(options, beside=(str(tmp_path / "client.npy"),))
    with pytest.warns(Unread, match="not read: [^ ]*notes.npy$"):
        assert_square(load(options))
    (tmp_path / "edges.csv").write_text("source,target\n")
    (tmp_path / "nodes.csv").write_text("id,label,x\n0,1,2\n")
    with refused(tmp_path / "edge_index.npy", says="tables are read alone"):
        load(options)


@pytest.mark.parametrize("array", ["edge_index", "x", "y", "split", "assignment"])
def test_never_unpickles(array: str, tmp_path: Path) -> None:
    objects = np.array([Trap(tmp_path / "opened"), 1, 2, 3], dtype=object)
    for layout, file in (("npz", "mine.npz"), ("folder", f"{array}.npy")):
        with refused(tmp_path / file, says="objects"):
            load(write(tmp_path, layout, **{array: objects}))
    assert not (tmp_path / "opened").exists()


@pytest.mark.parametrize("name", ["graph.pt", "graph.graphml", "graph.txt", "graph"])
def test_other_files_are_refused_with_what_is_read(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    torch.save({"x": torch.ones(2)}, path) if name == "graph.pt" else path.write_text("0 1\n1 2\n")
    for look in (load, fingerprint):
        with refused(path, says="is no .npz file; data.path is one, or a folder of .npy arrays "):
            look(DataSource("files", path=str(path)))


@pytest.mark.parametrize("left", [0, 5, 100, -3])
@pytest.mark.parametrize(("layout", "name"), [("npz", "mine.npz"), ("folder", "x.npy"), ("folder", "y.npy")])
def test_refuses_a_truncated_file(layout: str, name: str, left: int, tmp_path: Path) -> None:
    options = write(tmp_path, layout)
    path = tmp_path / name
    path.write_bytes(path.read_bytes()[:left])
    with refused(path, says="cannot be read"):
        load(options)


def test_refuses_what_is_no_graph_and_no_path(tmp_path: Path) -> None:
    options = write(tmp_path, "npz")
    with (tmp_path / "mine.npz").open("wb") as file:
        np.save(file, np.eye(3))
    with refused(tmp_path / "mine.npz", says="not an .npz"):
        load(options)
    with refused("data.path", says="not set"):
        load(DataSource("files"))
    with refused(tmp_path / "nothing", says="not found"):
        load(DataSource("files", path=str(tmp_path / "nothing")))


def test_saved_graph_takes_the_place_of_another(tmp_path: Path) -> None:
    """Nothing of the old one is left, though the new one maps its features; a folder may be written onto itself."""
    options = write(tmp_path, "folder")
    graph = load(options)
    sparse = replace(graph, x=sp.csr_array(graph.x), split=None, assignment=None, synthetic=True)
    save_graph(sparse, tmp_path)
    again = load(options)
    assert sp.issparse(again.x)
    assert (again.split, again.assignment, again.synthetic) == (None, None, True)
    save_graph(graph, tmp_path)
    assert_square(load(options))
    save_graph(load(options), tmp_path)
    assert_square(load(options))


def test_half_saved_graph_is_none(tmp_path: Path) -> None:
    """The disk takes no split.npy: a folder lies there."""
    options = write(tmp_path, "folder")
    graph = load(options)
    (tmp_path / "SYNTHETIC.json").write_text("{")
    with refused(tmp_path / "SYNTHETIC.json"):
        load(options)
    (tmp_path / "split.npy").unlink()
    (tmp_path / "split.npy.unfinished").mkdir()
    with refused(tmp_path / "split.npy", says="cannot be written"):
        save_graph(graph, tmp_path)
    with refused(tmp_path / "edge_index.npy", says="not found"):
        load(options)
    (tmp_path / "file").touch()
    with refused(tmp_path / "file", says="cannot be written"):
        save_graph(graph, tmp_path / "file")


@pytest.mark.parametrize("layout", LAYOUTS)
def test_the_order_of_bytes_and_axes_is_not_the_graph(layout: str, tmp_path: Path) -> None:
    turned = {name: np.asfortranarray(array.astype(array.dtype.newbyteorder(">"))) for name, array in arrays().items()}
    graph = load(write(tmp_path, layout, **turned))
    assert_square(graph)
    assert graph.x.tolist() == [[0, 1], [2, 3], [4, 5], [6, 7]]


@pytest.mark.parametrize("layout", LAYOUTS)
def test_many_graphs(layout: str, tmp_path: Path) -> None:
    graph = load(write(tmp_path, layout, **many()))
    assert (graph.graph_of.tolist(), graph.graph_of.dtype) == ([0, 0, 1, 2], np.int64)
    assert (graph.nodes, graph.items, graph.entries, graph.classes) == (4, 3, 2, 2)
    assert (graph.y.tolist(), graph.split.tolist(), graph.assignment.tolist()) == ([1, -1, 0], [1, 0, 3], [1, 0, 1])
    # Sparse features have as many rows as nodes, and not as labels.
    for made in (graph, replace(graph, x=sp.csr_array(graph.x))):
        again = load(DataSource("files", path=str(save_graph(made, tmp_path / "again"))))
        assert sp.issparse(again.x) == sp.issparse(made.x)
        np.testing.assert_array_equal(dense(again.x), graph.x)
        for field in ("indptr", "indices", "y", "split", "assignment", "graph_of"):
            np.testing.assert_array_equal(getattr(again, field), getattr(graph, field))
