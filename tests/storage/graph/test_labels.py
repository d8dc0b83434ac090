"""Labels as users write them: whichever way they come in, the same are one class and the missing ones none."""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import networkx as nx
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import scipy.sparse as sp
import torch
from pyarrow import csv
from support.errors import refused
from torch_geometric.data import Data

from shoal.storage.adapters import from_networkx, from_pyg
from shoal.storage.datasets.registry import load
from shoal.storage.datasets.sources.source import DataSource
from shoal.storage.datasets.user.files import save_graph
from shoal.storage.graph.graph import Graph
from shoal.storage.graph.labels import coded_labels, joined_labels

NAN = float("nan")
BIG = 2**53


def objects(*values: Any) -> np.ndarray:
    found = np.empty(len(values), dtype=object)
    found[:] = values
    return found


@pytest.mark.parametrize(
    ("given", "y", "names"),
    [
        ([1, 0, 2, -1], [1, 0, 2, -1], None),
        ([2, 4, 1, 2], [0, 1, 2, 0], "2 4 1"),
        ([900, -1, 5, 0], [0, -1, 1, 2], "900 5 0"),
        ([[3.0], [NAN], [1.0], [3.0]], [0, -1, 1, 0], "3 1"),
        ([True, False, True], [1, 0, 1], None),
        ([[0, 0, 1], [1, 0, 0], [0, 0, 0]], [0, 1, -1], "2 0"),
        (sp.csr_array([[0, 1.0], [1, 0]]), [1, 0], None),
        ([2**63 + 1, 2**63, 2**63 + 1], [1, 0, 1], f"{2**63} {2**63 + 1}"),
        ([3, 1, 4, 2], [2, 0, 3, 1], "1 2 3 4"),
        (["3", "1", "2", "NA"], [2, 0, 1, -1], "1 2 3"),
        (["0110", "110", "7", "007"], [1, 2, 3, 0], "007 0110 110 7"),
        (["1e2", "100", "3"], [1, 0, 2], "100 1e2 3"),
        ([str(BIG), str(BIG + 1), f"{BIG}.0"], [0, 1, 0], f"{BIG} {BIG + 1}"),
        ([" 1", "1.0", "3", "nan"], [0, 0, 1, -1], "1 3"),
        ([b"b", b"a", b""], [1, 0, -1], "a b"),
        (["a", "-1", "-1.0", "", "  ", "NaN", "nan", "NA", "null", "None", "<NA>", "b"], [0, *[-1] * 10, 1], "a b"),
        (objects("5", 5, 5.0, np.int64(5), torch.tensor(5), None, NAN, b"6"), [0] * 5 + [-1, -1, 1], "5 6"),
        (objects("a", 1, True, -1), [1, 0, 0, -1], "1 a"),
        (pa.array(["b", None, "a"]).dictionary_encode(), [1, -1, 0], "a b"),
        (pa.chunked_array([pa.array([text]).dictionary_encode() for text in "bab"]), [1, 0, 1], "a b"),
        (pa.array(["b", "a"], pa.string_view()), [1, 0], "a b"),
        (pa.array([BIG + 1, None, BIG]), [1, -1, 0], f"{BIG} {BIG + 1}"),
        (pa.chunked_array([pa.array([2.0, NAN]), pa.array([0.0, None])]), [0, -1, 1, -1], "2 0"),
        (pa.array([True, None, False]), [1, -1, 0], "false true"),
        (pa.nulls(2), [-1, -1], None),
        (np.empty(0), [], None),
    ],
)
def test_the_same_are_one_class(given: Any, y: list[int], names: str | None) -> None:
    found, called = coded_labels(np.array(given) if isinstance(given, list) else given, "here")
    assert (found.tolist(), found.dtype, called) == (y, np.int64, names and tuple(names.split()))


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ([1, 0.37], "row 1 is 0.37, a measured number"),
        (["1", "12.5"], "label 12.5 is a measured number"),
        (["0,37", "1"], "label 0,37 is a measured number"),
        (objects(0.5, None), "label 0.5 is a measured number"),
        ([1, np.inf], "row 1 is inf"),
        ([1.0, 2.0**60], "float64 is exact up to 9007199254740992"),
        (objects(2.0**60, None), "is exact up to"),
        ([0, -2], "row 1 is -2, which is no class"),
        (["0", "-2"], "label -2, which is no class"),
        (np.array([1, -1]).astype(np.uint32), "row 1 is 4294967295, which is -1 as uint32"),
        ([1, -1, 1], "labels are 1 and -1"),
        (["+1", "-1"], "labels are 1 and -1"),
        (["cat", "cat "], "labels 'cat' and 'cat ' differ in blanks"),
        ([[1, 1], [0, 1]], "row 0 is of several classes"),
        ([[0.2, 0.8]], "not all are 0 or 1"),
        (objects([1, 2], None), "[1, 2] is no label"),
        (pa.array([[1], [2]]), "found list"),
        ([1j, 2j], "found complex128"),
        ([str(number) + "a" for number in range(2000)], "2000 different labels of 2000 items"),
    ],
)
def test_refuses(given: Any, says: str) -> None:
    with refused("here", says=says):
        coded_labels(np.array(given) if isinstance(given, list) else given, "here")


@pytest.mark.parametrize(
    ("one", "other", "y", "classes", "names"),
    [
        ([0, 1], [0, 2], [0, 1, 0, 2], 3, None),
        ([1, 4], [9, 1], [0, 1, 2, 0], 3, "1 4 9"),
        (["b", "a"], ["c", "b"], [1, 0, 2, 1], 3, "a b c"),
        ([10, 9], [-1, -1], [1, 0, -1, -1], 2, "9 10"),
        ([0, 1], [1, 0], [0, 1, 1, 0], 2, None),
    ],
)
def test_equal_labels_of_two_graphs_are_one_class(one: Any, other: Any, y: Any, classes: int, names: str) -> None:
    coded = [coded_labels(np.array(given), "here") for given in (one, other)]
    counts = [int(found.max(initial=-1)) + 1 for found, _ in coded]
    together, count, called = joined_labels(*zip(*coded), counts, ["one", "other"])
    assert (np.concatenate(together).tolist(), count, called) == (y, classes, names and tuple(names.split()))


EDGES = np.array([[0, 1, 2], [1, 2, 3]])
X = np.arange(8, dtype=np.float32).reshape(4, 2)


def by_files(y: np.ndarray | None, folder: Path, labels: bool = True) -> Graph:
    for name, array in {"edge_index": EDGES, "x": X, "y": y}.items():
        if array is not None:
            np.save(folder / f"{name}.npy", array)
    return load(DataSource("files", path=str(folder), labels=labels))


def by_parquet(y: np.ndarray | None, folder: Path, labels: bool = True, kind: str = "parquet") -> Graph:
    write = pq.write_table if kind == "parquet" else csv.write_csv
    write(pa.table({"source": EDGES[0], "target": EDGES[1]}), folder / f"edges.{kind}")
    columns = {"id": range(4), "a": X[:, 0], "b": X[:, 1]} | ({} if y is None else {"label": y})
    write(pa.table(columns), folder / f"nodes.{kind}")
    return load(DataSource("files", path=str(folder), labels=labels))


by_csv = partial(by_parquet, kind="csv")


def by_pyg(y: np.ndarray | None, folder: Path, labels: bool = True) -> Graph:
    y = None if y is None else pa.array(y) if y.dtype.kind == "U" else torch.tensor(y)
    graph = from_pyg(Data(x=torch.tensor(X), edge_index=torch.tensor(EDGES), y=y))
    return load(DataSource("files", path=str(save_graph(graph, folder)), labels=labels))


def by_networkx(y: np.ndarray | None, folder: Path, labels: bool = True) -> Graph:
    graph = nx.Graph(EDGES.T.tolist())
    for node in graph:
        graph.nodes[node].update({"x": X[node]} if y is None else {"x": X[node], "label": y[node]})
    return load(DataSource("files", path=str(save_graph(from_networkx(graph, "x"), folder)), labels=labels))


WAYS_IN = pytest.mark.parametrize("way_in", [by_files, by_parquet, by_csv, by_pyg, by_networkx])


@WAYS_IN
@pytest.mark.parametrize(
    ("given", "y", "names"),
    [
        ([1, 4, -1, 1], [0, 1, -1, 0], ("1", "4")),
        ([0.0, 900.0, NAN, 5.0], [0, 1, -1, 2], ("0", "900", "5")),
        (["b", "NA", "a", "b"], [1, -1, 0, 1], ("a", "b")),
        ([0, 1, -1, 1], [0, 1, -1, 1], None),
    ],
)
def test_one_graph_whichever_way_it_comes_in(
    way_in: Callable[..., Graph], given: Any, y: Any, names: Any, tmp_path: Path
) -> None:
    graph = way_in(np.array(given), tmp_path)
    assert (graph.y.tolist(), graph.label_names, graph.classes) == (y, names, max(y) + 1)


@pytest.mark.parametrize(("given", "names"), [(["owl", "ant", "owl"], ("ant", "owl")), ([7, 3.0, 7], ("7", "3"))])
def test_labels_of_many_graphs(given: list[Any], names: tuple[str, ...]) -> None:
    edges = torch.empty(2, 0, dtype=torch.int64)
    graph = from_pyg([Data(x=torch.ones(1, 1), edge_index=edges, y=y) for y in given])
    assert ([names[number] for number in graph.y], graph.label_names) == (
        [str(y).removesuffix(".0") for y in given],
        names,
    )


@WAYS_IN
@pytest.mark.parametrize("y", [None, np.full(4, -1), np.array([""] * 4)])
def test_labels_may_be_missing_where_none_is_read(way_in: Callable[..., Graph], y: Any, tmp_path: Path) -> None:
    graph = way_in(y, tmp_path, labels=False)
    assert (graph.y.tolist(), graph.classes, graph.label_names, graph.nodes) == ([-1] * 4, 0, None, 4)
    assert np.array_equal(graph.x, X)
    with refused(says="label" if y is not None or way_in is not by_files else "not found"):
        way_in(y, tmp_path)
