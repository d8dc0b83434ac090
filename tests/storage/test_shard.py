import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from storage import arrow_file
from storage.arrow_file import fixed_rows
from storage.bounds import Limits
from storage.errors import ShoalError
from storage.graph import Graph
from storage.induced import Induced, induced, kept_entries
from storage.shard import Shard, open_shard, write_shard

NODES = np.arange(0, 20, 2)


def part_of(graph: Graph) -> Induced:
    assignment = (np.arange(graph.nodes) % 2).astype(np.int32)
    kept = kept_entries(graph.indptr, graph.indices, assignment)
    return next(induced(graph.indptr, graph.indices, assignment, kept, [0]))


def without_edges(nodes: int) -> Induced:
    return Induced(np.arange(nodes), np.zeros(nodes + 1, dtype=np.int64), np.empty(0, dtype=np.int32))


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_round_trip(tmp_path: Path, make_graph: Callable[..., Graph], dtype: str) -> None:
    graph = make_graph(0, 20, 0.4)
    assert {-1, 0, 1} <= set(graph.y[NODES])
    part = part_of(graph)
    record = write_shard(tmp_path / "a.arrow", 7, part, graph.y, graph.x[part.node].astype(dtype))
    shard = open_shard(tmp_path / "a.arrow", 7, record)
    assert (shard.client, shard.nodes, shard.entries) == (7, 10, len(part.indices))
    np.testing.assert_array_equal(shard.node, part.node)
    np.testing.assert_array_equal(shard.label, graph.y[part.node])
    np.testing.assert_array_equal(shard.indptr, part.indptr)
    np.testing.assert_array_equal(shard.indices, part.indices)
    np.testing.assert_array_equal(shard.x, graph.x[part.node].astype(dtype))
    found = [a.dtype.name for a in (shard.node, shard.label, shard.indptr, shard.indices, shard.x)]
    assert found == ["int64", "int32", "int32", "int32", dtype]


def test_no_edges_and_one_node(tmp_path: Path) -> None:
    write_shard(tmp_path / "a.arrow", 0, without_edges(1), np.array([-1]), np.ones((1, 2), dtype=np.float32))
    shard = open_shard(tmp_path / "a.arrow", 0)
    assert (shard.nodes, shard.entries, shard.label.tolist(), shard.indptr.tolist()) == (1, 0, [-1], [0, 0])
    assert shard.indices.dtype == np.int32
    assert shard.x.tolist() == [[1.0, 1.0]]


def test_too_large_for_float16(tmp_path: Path) -> None:
    x = np.array([[1.0], [7e4]], dtype=np.float32)
    with np.errstate(over="ignore"):
        halves = x.astype(np.float16)
    with pytest.raises(ShoalError, match=r"^data\.dtype: float16 ends at 65504, but client 5 has .*; use float32$"):
        write_shard(tmp_path / "a.arrow", 5, without_edges(2), np.zeros(2, dtype=np.int64), halves)
    write_shard(tmp_path / "a.arrow", 5, without_edges(2), np.zeros(2, dtype=np.int64), x)


def test_too_many_entries_are_refused_by_client(tmp_path: Path) -> None:
    indices = np.broadcast_to(np.int32(0), 2**31)
    part = Induced(np.array([0]), np.array([0, 2**31]), indices)
    with pytest.raises(ShoalError, match=r"^client 5: 2147483648 adjacency entries, .* use more clients$"):
        write_shard(tmp_path / "a.arrow", 5, part, np.array([0]), np.ones((1, 1), dtype=np.float32))


def test_a_shard_without_features(tmp_path: Path) -> None:
    path = tmp_path / "a.arrow"
    arrow_file.write(path, "shard", {"node": fixed_rows(np.ones((2, 1)))})
    with pytest.raises(ShoalError, match=rf"^{path}: column 'neighbors' is missing; .*$"):
        open_shard(path, 0)


@pytest.mark.parametrize(
    ("changed", "fault"),
    [
        ({"indptr": [0, 2, 1, 2]}, "the row pointer decreases"),
        ({"indices": [1, 3]}, "a neighbour lies outside rows 0 to 2"),
        ({"indices": [-1, 0]}, "a neighbour lies outside rows 0 to 2"),
        ({"label": [0, 2, 1]}, "a label lies outside -1 to 1"),
        ({"label": [-2, 0, 1]}, "a label lies outside -1 to 1"),
        ({"node": [4, 10, 2]}, "a node id lies outside 0 to 9"),
        ({"node": [-1, 3, 2]}, "a node id lies outside 0 to 9"),
        ({"node": [4, 3, 4]}, "a node id occurs twice"),
        ({"x": np.ones((3, 3), dtype=np.float32)}, "x is [3, 3] and not [3, 2]"),
    ],
)
def test_numbers_out_of_bounds(tmp_path: Path, changed: dict[str, list[int]], fault: str) -> None:
    arrays = {"node": [4, 9, 2], "label": [-1, 1, 0], "indptr": [0, 1, 1, 2], "indices": [1, 0]}
    sound: dict[str, Any] = {"x": np.ones((3, 2), dtype=np.float32), **arrays}
    path, limits = tmp_path / "a.arrow", Limits(nodes=10, features=2, classes=2)

    def opened(node: Any, label: Any, indptr: Any, indices: Any, x: np.ndarray) -> Shard:
        lists = pa.ListArray.from_arrays(pa.array(indptr, pa.int32()), pa.array(indices, pa.int32()))
        columns = {"node": pa.array(node), "label": pa.array(label, pa.int32()), "neighbors": lists, "x": fixed_rows(x)}
        return open_shard(path, 0, arrow_file.write(path, "shard", columns), limits)

    assert opened(**sound).indices.tolist() == [1, 0]
    with pytest.raises(ShoalError, match=rf"^{path}: {re.escape(fault)}; .* delete the file and run .*$"):
        opened(**{**sound, **changed})


def test_content_is_compared_before_anything_is_used(tmp_path: Path) -> None:
    path, limits = tmp_path / "a.arrow", Limits(nodes=2, features=2, classes=2)
    record = write_shard(path, 0, without_edges(2), np.array([0, 1]), np.ones((2, 2), dtype=np.float32))
    other = write_shard(path, 0, without_edges(2), np.array([1, 0]), np.ones((2, 2), dtype=np.float32))
    assert record.bytes == other.bytes
    with pytest.raises(ShoalError, match=rf"^{path}: checksum does not match the manifest; .*$"):
        open_shard(path, 0, record, limits)
    assert open_shard(path, 0, other, limits).label.tolist() == [1, 0]
