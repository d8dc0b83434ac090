"""Shards of nodes, of graphs and of pairs: what is written comes back, numbers out of bounds are refused."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from support.errors import refused
from support.induced_parts import part_of

from shoal.storage.graph.graph import Graph, clean_edges
from shoal.storage.graph.induced import Induced, induce, kept_entries
from shoal.storage.graph.pairs import Pairs
from shoal.storage.shards import arrow_file
from shoal.storage.shards.arrow_file import fixed_rows
from shoal.storage.shards.bounds import Limits
from shoal.storage.shards.hops import training_graph
from shoal.storage.shards.shard import Shard, bounds_of, open_shard, shard_columns, write_shard
from shoal.storage.shards.split import Split
from shoal.storage.shards.view import Cache, View

NODES = np.arange(0, 20, 2)


def without_edges(nodes: int) -> Induced:
    return Induced(np.arange(nodes), np.zeros(nodes + 1, dtype=np.int64), np.empty(0, dtype=np.int32))


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_round_trip(tmp_path: Path, make_graph: Callable[..., Graph], dtype: str) -> None:
    graph = make_graph(0, 20, 0.4)
    assert {-1, 0, 1} <= set(graph.y[NODES])
    part = part_of(graph, NODES)
    record = write_shard(tmp_path / "a.arrow", 7, part, graph.y, graph.x[part.node].astype(dtype))
    shard = open_shard(tmp_path / "a.arrow", 7, record)
    assert (shard.client, shard.nodes, shard.entries, shard.items) == (7, 10, len(part.indices), 10)
    assert shard.graph is None
    assert shard.item is shard.node
    assert shard.item_label is shard.label
    with pytest.raises(ValueError, match="its items are nodes"):
        _ = shard.graph_ptr
    given = part.node, graph.y[part.node], part.indptr, part.indices, graph.x[part.node].astype(dtype)
    found = shard.node, shard.label, shard.indptr, shard.indices, shard.x
    for mine, truth in zip(found, given):
        np.testing.assert_array_equal(mine, truth)
    assert [array.dtype.name for array in found] == ["int64", "int32", "int32", "int32", dtype]


def test_what_no_shard_holds(tmp_path: Path) -> None:
    path, x = tmp_path / "a.arrow", np.array([[1.0], [7e4]], dtype=np.float32)
    with np.errstate(over="ignore"):
        halves = x.astype(np.float16)
    with refused("data.dtype", says="client 5"):
        write_shard(path, 5, without_edges(2), np.zeros(2, dtype=np.int64), halves)
    write_shard(path, 5, without_edges(2), np.zeros(2, dtype=np.int64), x)
    assert open_shard(path, 5).indices.dtype == np.int32
    part = Induced(np.array([0]), np.array([0, 2**31]), np.broadcast_to(np.int32(0), 2**31))
    with refused(says="client 5: 2147483648 adjacency entries"):
        write_shard(path, 5, part, np.array([0]), np.ones((1, 1), dtype=np.float32))
    # Graphs that are not in order.
    with pytest.raises(AssertionError):
        write_shard(path, 0, without_edges(2), np.zeros(2), x, np.array([1, 0]))


# Graphs of 3, 1 and 2 nodes; the first is an edge and a node apart, the second has no label.
GRAPHS, LABELS = np.array([0, 0, 0, 1, 2, 2]), np.array([1, -1, 0])


def test_targets_of_graphs_lie_once_a_graph(tmp_path: Path) -> None:
    indptr, indices, _ = clean_edges(np.array([[0, 4], [2, 5]]), 6, "test")
    kept = kept_entries(indptr, indices, np.zeros(6, dtype=np.int32))
    part = next(induce(indptr, indices, np.zeros(6, dtype=np.int32), kept, [0]))
    x, target = np.ones((6, 1), np.float32), np.array([[1, 2], [np.nan, np.nan], [3, np.nan]], dtype=np.float32)
    limits = Limits(nodes=6, features=1, classes=2, graphs=3, targets=2)
    label = np.array([0, 0, 0, -1, 0, 0])
    record = write_shard(tmp_path / "a", 0, part, label, x, GRAPHS, target=target)
    np.testing.assert_array_equal(open_shard(tmp_path / "a", 0, record, limits).target, target)
    # Six rows have three times two numbers.
    (column,) = arrow_file.MappedFile(tmp_path / "a", "shard").lists_of_rows("target")[1:]
    assert column.size == 6
    # A store from before, with the targets of its graph at each row.
    columns = shard_columns(0, part, label, x, GRAPHS)
    arrow_file.write(tmp_path / "b", "shard", {**columns, "target": fixed_rows(target[GRAPHS[part.node]])})
    np.testing.assert_array_equal(open_shard(tmp_path / "b", 0, None, limits).target, target)
    wrong = pa.ListArray.from_arrays(pa.array([0, 0, 1, 2, 3, 3, 3], pa.int32()), fixed_rows(target))
    arrow_file.write(tmp_path / "c", "shard", {**columns, "target": wrong})
    with refused(tmp_path / "c", says="the targets do not fit the graphs"):
        open_shard(tmp_path / "c", 0)


def test_a_shard_of_graphs(tmp_path: Path) -> None:
    indptr, indices, _ = clean_edges(np.array([[0, 4], [2, 5]]), 6, "test")
    kept = kept_entries(indptr, indices, np.zeros(6, dtype=np.int32))
    part = next(induce(indptr, indices, np.zeros(6, dtype=np.int32), kept, [0]))
    x = np.arange(6, dtype=np.float32)[:, None]
    record = write_shard(tmp_path / "a.arrow", 3, part, LABELS[GRAPHS], x[part.node], GRAPHS)
    shard = open_shard(tmp_path / "a.arrow", 3, record, Limits(nodes=6, features=1, classes=2, graphs=3))
    assert shard.node.tolist() == [0, 2, 1, 3, 4, 5]
    assert (shard.graph.tolist(), shard.graph.dtype) == ([0, 0, 0, 1, 2, 2], np.int64)
    assert (shard.items, shard.graph_ptr.tolist(), shard.graph_ptr.dtype) == (3, [0, 3, 4, 6], np.int64)
    assert shard.item.tolist() == [0, 1, 2]
    assert (shard.item_label.tolist(), shard.item_label.dtype) == ([1, -1, 0], np.int32)
    assert shard.label.tolist() == [1, 1, 1, -1, 0, 0]


def test_weights_of_edges_out_of_bounds(tmp_path: Path) -> None:
    part = Induced(np.array([1, 5, 7]), np.array([0, 1, 3, 4]), np.array([1, 0, 2, 1], dtype=np.int32))
    weight = np.array([2.5, 2.5, 0.5, 0.5], dtype=np.float32)
    path, x = tmp_path / "a.arrow", np.ones((3, 2), dtype=np.float32)
    limits = Limits(nodes=10, features=2, classes=2, weighted=True)

    def opened(given: Any, limits: Limits | None = limits) -> Shard:
        record = write_shard(path, 0, part, np.zeros(10, dtype=np.int64), x, edge_weight=given)
        return open_shard(path, 0, record, limits)

    found = opened(weight).edge_weight
    assert (found.tolist(), found.dtype) == (weight.tolist(), np.float32)
    assert opened(None, None).edge_weight is None
    for factors in ([1, 1, 0, 1], [1, 1, 1, -1], [np.inf, 1, 1, 1], [np.nan, 1, 1, 1]):
        with refused(path, says="the weight of an edge is not positive and finite"):
            opened((weight * factors).astype(np.float32))
    with refused(path, says="its edges have no weights"):
        opened(None)
    with refused(path, says="its edges have weights"):
        opened(weight, replace(limits, weighted=False))
    # Weights of other rows, or of another type, are not even mapped.
    lists = {
        "neighbors": pa.ListArray.from_arrays(pa.array([0, 1, 3, 4], pa.int32()), pa.array([1, 0, 2, 1], pa.int32())),
        "node": pa.array(part.node),
        "label": pa.array([0, 0, 0], pa.int32()),
        "x": fixed_rows(x),
    }
    for starts, kind in (([0, 2, 3, 4], pa.float32()), ([0, 1, 3, 4], pa.float64())):
        weights = pa.ListArray.from_arrays(pa.array(starts, pa.int32()), pa.array(weight.tolist(), kind))
        arrow_file.write(path, "shard", {**lists, "weights": weights})
        with refused(path, says="the weights do not fit the neighbours"):
            open_shard(path, 0)


@pytest.mark.parametrize(
    ("changed", "graphs", "fault"),
    [
        ({"indptr": [0, 2, 1, 1, 2]}, None, "the row pointer decreases"),
        ({"indices": [1, 4]}, None, "a neighbour lies outside rows 0 to 3"),
        ({"indices": [-1, 0]}, None, "a neighbour lies outside rows 0 to 3"),
        ({"label": [0, 2, 1, 1]}, None, "a label lies outside -1 to 1"),
        ({"label": [-2, 0, 1, 1]}, None, "a label lies outside -1 to 1"),
        ({"node": [4, 10, 2, 1]}, None, "a node id lies outside 0 to 9"),
        ({"node": [-1, 3, 2, 1]}, None, "a node id lies outside 0 to 9"),
        ({"node": [4, 3, 4, 1]}, None, "a node id occurs twice"),
        ({"x": np.ones((4, 3), dtype=np.float32)}, None, "x is [4, 3] and not [4, 2]"),
        ({"graph": [3, 4, 4, 9]}, 9, "a graph lies outside 0 to 8"),
        ({"graph": [-1, 4, 4, 8]}, 9, "a graph lies outside 0 to 8"),
        ({"graph": [4, 3, 3, 8]}, 9, "rows of one graph are not behind one another"),
        ({"graph": [3, 4, 4, 4]}, 9, "a graph has two labels"),
        ({"graph": [3, 3, 4, 8]}, 9, "a graph has two labels"),
        ({"graph": [3, 4, 5, 8]}, 9, "an edge joins two graphs"),
        ({"graph": [3, 4, 4, 8], "label": [1, 0, 1, 1]}, 9, "a graph has two labels"),
        ({}, 9, "its items are nodes"),
        ({"graph": [3, 4, 4, 8]}, None, "its items are graphs"),
    ],
)
def test_numbers_out_of_bounds(tmp_path: Path, changed: dict[str, Any], graphs: int | None, fault: str) -> None:
    """Rows 1 and 2 are joined; graphs are 3 of one node, 4 of two that are joined, 8 of one."""
    path = tmp_path / "a.arrow"
    arrays = {"node": [1, 2, 5, 7], "label": [1, 0, 0, 1], "indptr": [0, 0, 1, 2, 2], "indices": [2, 1]}
    sound: dict[str, Any] = {"x": np.ones((4, 2), dtype=np.float32), "graph": None, **arrays}

    def opened(node: Any, label: Any, indptr: Any, indices: Any, x: np.ndarray, graph: Any) -> Shard:
        lists = pa.ListArray.from_arrays(pa.array(indptr, pa.int32()), pa.array(indices, pa.int32()))
        columns = {"node": pa.array(node), "label": pa.array(label, pa.int32()), "neighbors": lists, "x": fixed_rows(x)}
        columns |= {} if graph is None else {"graph": pa.array(graph, pa.int64())}
        limits = Limits(nodes=10, features=2, classes=2, graphs=graphs)
        return open_shard(path, 0, arrow_file.write(path, "shard", columns), limits)

    if graphs is None:
        assert opened(**sound).indices.tolist() == [2, 1]
    else:
        assert opened(**{**sound, "graph": [3, 4, 4, 8]}).item.tolist() == [3, 4, 8]
    with refused(path, says=fault):
        opened(**{**sound, **changed})


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 10_000), nodes=st.integers(1, 25), density=st.floats(0, 0.5), share=st.floats(0, 1))
def test_as_if_the_client_had_no_other_node(
    make_graph: Callable[..., Graph], seed: int, nodes: int, density: float, share: float
) -> None:
    graph = make_graph(seed, nodes, density)
    part = np.random.default_rng(seed).choice(3, size=nodes)
    own = part_of(graph, np.flatnonzero(part < 2))
    label, x = np.zeros(len(own.node), dtype=np.int32), np.zeros((len(own.node), 1), dtype=np.float32)
    shard = Shard(0, own.node, label, own.indptr.astype(np.int32), own.indices, x)
    train = np.flatnonzero(part[shard.node] == 0).astype(np.int32)
    found, row = training_graph(shard, train)
    alone = part_of(graph, np.flatnonzero(part == 0))
    np.testing.assert_array_equal(shard.node[row], found.node)
    for name in ("node", "indptr", "indices"):
        np.testing.assert_array_equal(getattr(found, name), getattr(alone, name))
    assert (found.indptr.dtype, found.indices.dtype, row.dtype) == (np.int64, np.int32, np.int64)


# Rows 0-1-2 are joined, 1-3 was held out, 0-3 and 2-3 have no edge.
SOUND: dict[str, Any] = {
    "starts": [0, 2, 4, 5, 5],
    "partner": [1, 3, 2, 3, 3],
    "label": [1, 0, 1, 1, 0],
    "part": [1, 3, 1, 2, 2],
}
NODE = np.array([10, 4, 7, 2])
INDPTR, INDICES = np.array([0, 1, 3, 4, 4]), np.array([1, 0, 2, 1])
LIMITS = Limits(nodes=20, features=2, classes=2, pairs=True)


def pairs_of(starts: Sequence[int], partner: Sequence[int], label: Sequence[int], part: Sequence[int]) -> Pairs:
    starts, partner = np.array(starts, np.int32), np.array(partner, np.int32)
    return Pairs(starts, partner, np.array(label, np.int8), np.array(part, np.int8))


def written(path: Path) -> Path:
    x = np.arange(8, dtype=np.float32).reshape(4, 2)
    write_shard(path, 3, Induced(NODE, INDPTR, INDICES), np.full(20, -1), x, pairs=pairs_of(**SOUND))
    return path


def test_pairs_come_back(tmp_path: Path) -> None:
    shard = open_shard(written(tmp_path / "a.arrow"), 3, limits=LIMITS)
    assert shard.pairs.ends.tolist() == [[0, 1], [0, 3], [1, 2], [1, 3], [2, 3]]
    assert shard.pairs.held_out.tolist() == [False, False, False, True, False]
    assert (shard.nodes, shard.items, shard.entries, shard.kind) == (4, 5, 4, "pairs")
    assert (shard.item_label.tolist(), shard.item_label.dtype) == ([1, 0, 1, 1, 0], np.int32)
    assert [shard.first_row_of(item) for item in range(5)] == [0, 0, 1, 1, 2]
    for read in (lambda: shard.item, lambda: shard.graph_ptr):
        with pytest.raises(ValueError, match=r"^client 3: its items are pairs"):
            read()


def test_no_pairs(tmp_path: Path) -> None:
    part = Induced(np.arange(2), np.zeros(3, dtype=np.int64), np.empty(0, dtype=np.int32))
    none = pairs_of([0, 0, 0], [], [], [])
    write_shard(tmp_path / "a.arrow", 0, part, np.full(2, -1), np.ones((2, 2), dtype=np.float32), pairs=none)
    shard = open_shard(tmp_path / "a.arrow", 0, limits=LIMITS)
    assert (shard.items, shard.item_label.tolist()) == (0, [])


PAIRS_OUT_OF_BOUNDS: dict[str, list[dict[str, list[int]]]] = {
    "the row pointer does not fit the pairs": [
        {"starts": starts} for starts in ([0, 2, 1, 5, 5], [0, 2, 4, 4, 4], [1, 2, 4, 5, 5])
    ],
    "a row of a pair lies outside 0 to 3": [{"partner": [1, 4, 2, 3, 3]}, {"partner": [-1, 3, 2, 3, 3]}],
    "a pair is neither an edge nor none": [{"label": [1, 2, 1, 1, 0]}],
    "a pair is in none of three parts": [{"part": [1, 0, 1, 2, 2]}, {"part": [1, 4, 1, 2, 2]}],
    "pairs are not in ascending order": [
        {"partner": partner} for partner in ([3, 1, 2, 3, 3], [1, 1, 2, 3, 3], [1, 3, 2, 3, 2], [1, 3, 2, 3, 1])
    ],
    "a pair that is held out is joined by an edge, or a training edge is missing": [
        *({"part": part} for part in ([2, 3, 1, 2, 2], [1, 3, 1, 1, 2])),
        {"label": [0, 0, 1, 1, 0]},
    ],
}


@pytest.mark.parametrize("fault", PAIRS_OUT_OF_BOUNDS)
def test_pairs_out_of_bounds(tmp_path: Path, fault: str) -> None:
    shard = open_shard(written(tmp_path / "a.arrow"), 3)
    for changed in PAIRS_OUT_OF_BOUNDS[fault]:
        assert bounds_of(replace(shard, pairs=pairs_of(**{**SOUND, **changed})), LIMITS) == [fault]


def test_bounds_are_compared_when_a_file_is_first_read(tmp_path: Path) -> None:
    x, wrong = np.ones((4, 2), dtype=np.float32), pairs_of(**{**SOUND, "part": [2, 3, 1, 2, 2]})
    path = tmp_path / "a.arrow"
    write_shard(path, 3, Induced(NODE, INDPTR, INDICES), np.full(20, -1), x, pairs=wrong)
    with refused(path, says="a pair that is held out is joined by an edge"):
        open_shard(path, 3, limits=LIMITS)
    shard = open_shard(written(path), 3)
    assert bounds_of(shard, replace(LIMITS, pairs=False)) == ["its items are pairs"]
    assert bounds_of(replace(shard, pairs=None), LIMITS) == ["its items are nodes"]
    assert bounds_of(shard, LIMITS) == []


@pytest.fixture(params=["graphs", "pairs"])
def view(request: pytest.FixtureRequest, tmp_path: Path) -> View:
    """Of graphs 2, 5 and 6, of two, one and three nodes, or of the pairs above; only the last graph trains."""
    if request.param == "graphs":
        graph = np.array([2, 2, 5, 6, 6, 6])
        label = np.array([1, 1, 0, 2, 2, 2], dtype=np.int32)
        indptr, indices = np.array([0, 1, 2, 2, 3, 4, 4], dtype=np.int32), np.array([1, 0, 4, 3], dtype=np.int32)
        x = np.arange(12, dtype=np.float32).reshape(6, 2)
        shard, train = Shard(3, np.arange(10, 16), label, indptr, indices, x, graph), [2]
    else:
        shard, train = open_shard(written(tmp_path / "a.arrow"), 3), [2, 4]
    split = Split(*(np.array(rows, dtype=np.int32) for rows in (train, [], [0, 1])))
    return View("test", shard, split, [], 3, Cache(2**20))


def test_items_of_a_view(view: View) -> None:
    if view.pairs is None:
        assert (view.nodes, view.items, view.graph_ptr.tolist()) == (6, 3, [0, 2, 3, 6])
        assert (view.label.tolist(), view.train_label.tolist()) == ([1, 0, 2], [2])
        assert view.rows_of(torch.tensor([2, 0])).tolist() == [3, 4, 5, 0, 1]
    else:
        assert (view.nodes, view.items, view.graph_ptr, view.pairs.dtype) == (4, 5, None, torch.int64)
        assert view.pairs.tolist() == [[0, 1], [0, 3], [1, 2], [1, 3], [2, 3]]
        assert (view.label.tolist(), view.train_label.tolist()) == ([1, 0, 1, 1, 0], [1, 0])
        assert view.rows_of(torch.tensor([3, 0])).tolist() == [1, 3, 0, 1]
        assert view.csr[1].tolist() == [1, 0, 2, 1]
    assert view.rows_of(view.val).tolist() == []
    view.touch([0], training=True, edges=True)


def test_what_is_written_is_seen(view: View) -> None:
    assert view.written() is None
    items = view.graph_ptr if view.pairs is None else view.pairs
    items.add_(1)
    assert view.written() == ("graph_ptr" if view.pairs is None else "pairs")


def test_rows_behind_torchs_back_are_those_of_a_training_item(view: View) -> None:
    x = view.x
    assert view.written() is None
    x.numpy()[0] = 7
    assert view.written() is None
    x.numpy()[3 if view.pairs is None else 1] = 7
    assert view.written() == "x"
