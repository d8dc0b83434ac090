from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Literal

import numpy as np
import pyarrow as pa
import pytest
from support.errors import refused

from shoal.storage.graph.gather import gathered
from shoal.storage.graph.graph import Graph
from shoal.storage.graph.propagation import hops
from shoal.storage.options.propagation import PropagationOptions
from shoal.storage.store import arrow_file
from shoal.storage.store.arrow_file import MappedFile, fixed_rows
from shoal.storage.store.bounds import Limits
from shoal.storage.store.hops import labelled_and_neighbours, only_labelled, open_hops, write_hops
from shoal.storage.store.shard import Shard, open_shard, write_shard
from shoal.storage.store.split import Split

LIMITS = Limits(nodes=25, features=3, classes=2)


@pytest.fixture
def shard(tmp_path: Path, make_graph: Callable[..., Graph]) -> Shard:
    graph = make_graph(3, 25, 0.2)
    one = np.zeros(25, dtype=np.int32)
    ((_, part, x),) = gathered(graph, one, np.diff(graph.indptr), [0], "float32", 1 << 30)
    write_shard(tmp_path / "shard.arrow", 0, part, graph.y, x)
    return open_shard(tmp_path / "shard.arrow", 0)


@pytest.mark.parametrize(("dtype", "close"), [("float32", 1e-5), ("float16", 2e-3)])
def test_columns_are_powers_of_the_dense_operator(tmp_path: Path, shard: Shard, dtype: str, close: float) -> None:
    write_hops(tmp_path / "hops.arrow", shard, PropagationOptions(3, 0.5, dtype))
    batch = pa.ipc.open_file(str(tmp_path / "hops.arrow")).get_batch(0)
    assert batch.schema.names == ["hop1", "hop2", "hop3"]
    with_loops = np.eye(25)
    for row in range(25):
        with_loops[row, shard.indices[shard.indptr[row] : shard.indptr[row + 1]]] = 1
    scale = np.diag(with_loops.sum(1) ** -0.5)
    expected = shard.x
    for name in batch.schema.names:
        expected = scale @ with_loops @ scale @ expected
        found = np.stack(batch.column(name).to_numpy(zero_copy_only=False))
        assert found.dtype == dtype
        np.testing.assert_allclose(found, expected, rtol=close, atol=close)


@pytest.mark.parametrize("share", [0.0, 0.1, 1.0])
def test_labelled_rows_keep_their_neighbours_and_the_hops_of_all(tmp_path: Path, shard: Shard, share: float) -> None:
    shard.label[:] = np.where(np.random.default_rng(0).random(25) < share, shard.label.clip(0), -1)
    dense = np.zeros((25, 25), dtype=bool)
    for row in range(25):
        dense[row, shard.indices[shard.indptr[row] : shard.indptr[row + 1]]] = True
    labelled = shard.label >= 0
    wanted = labelled | dense[labelled].any(0)
    np.testing.assert_array_equal(labelled_and_neighbours(shard), wanted)

    propagation = PropagationOptions(2, rows="labelled")
    record = write_hops(tmp_path / "few.arrow", shard, propagation)
    rows = np.flatnonzero(labelled).astype(np.int32)
    split = Split(rows[::2], rows[1::2], rows[:0])
    found, parts, further = only_labelled(MappedFile(tmp_path / "few.arrow", "hops", record), shard, split)
    assert set(found.node) == set(shard.node[wanted])
    row = np.array([np.flatnonzero(shard.node == node)[0] for node in found.node], dtype=np.int64)
    inside = np.zeros((len(row), len(row)), dtype=bool)
    for r in range(len(row)):
        inside[r, found.indices[found.indptr[r] : found.indptr[r + 1]]] = True
    np.testing.assert_array_equal(inside, dense[np.ix_(row, row)])
    np.testing.assert_array_equal(found.label, shard.label[row])
    for mine, all_rows in zip([found.x, *further], [shard.x, *hops(shard.indptr, shard.indices, shard.x, propagation)]):
        np.testing.assert_array_equal(mine, all_rows[row])
    for mine, given in zip((parts.train, parts.val, parts.test), (split.train, split.val, split.test)):
        assert (np.diff(mine) > 0).all()
        np.testing.assert_array_equal(np.sort(found.node[mine]), np.sort(shard.node[given]))


@pytest.mark.parametrize("rows", ["all", "labelled"])
def test_hops_of_another_kernel_or_shard(tmp_path: Path, shard: Shard, rows: Literal["all", "labelled"]) -> None:
    path, propagation = tmp_path / "hops.arrow", PropagationOptions(2, rows=rows)
    record = write_hops(path, shard, propagation)
    assert open_hops(path, 25, propagation, record, LIMITS).names[-2:] == ["hop1", "hop2"]
    for hops_, other in ((1, rows), (3, rows), (2, "all" if rows == "labelled" else "labelled")):
        with refused(path, says="columns "):
            open_hops(path, 25, PropagationOptions(hops_, rows=other), record, LIMITS)
    with refused(path, says=", 3] and not ["):
        open_hops(path, 25, propagation, record, replace(LIMITS, features=4))
    with refused(path, says="25 rows for a shard of 9" if rows == "all" else "a row lies outside 0 to 8"):
        open_hops(path, 9, propagation, record, LIMITS)


@pytest.mark.parametrize(
    ("row", "neighbors", "fault"),
    [
        ([0, 25], [1, 0], "a row lies outside 0 to 24"),
        ([-1, 0], [1, 0], "a row lies outside 0 to 24"),
        ([3, 3], [1, 0], "a row occurs twice"),
        ([0, 3], [2, 0], "a neighbour lies outside rows 0 to 1"),
    ],
)
def test_labelled_rows_out_of_bounds(tmp_path: Path, row: list[int], neighbors: list[int], fault: str) -> None:
    path, x = tmp_path / "hops.arrow", fixed_rows(np.ones((2, 3), dtype=np.float32))
    lists = pa.ListArray.from_arrays(pa.array([0, 1, 2], pa.int32()), pa.array(neighbors, pa.int32()))
    columns = {"row": pa.array(row), "neighbors": lists, "hop0": x, "hop1": x}
    record = arrow_file.write(path, "hops", columns)
    with refused(path, says="delete the file and run"):
        open_hops(path, 25, PropagationOptions(1, rows="labelled"), record, LIMITS)
