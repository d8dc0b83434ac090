import tracemalloc
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest
import scipy.sparse as sp
from support.errors import refused

from shoal.storage.errors import ShoalError
from shoal.storage.graph.gather import ROWS_A_BLOCK, gathered
from shoal.storage.graph.graph import Graph
from shoal.storage.graph.induced import induced, kept_entries
from shoal.storage.graph.rows import CsrRows
from shoal.storage.store.bounds import check_rows

Gathered = dict[int, tuple[np.ndarray, np.ndarray]]


def of(
    graph: Graph, assignment: np.ndarray, clients: list[int], dtype: str = "float32", limit: int = 1 << 30
) -> Gathered:
    kept = kept_entries(graph.indptr, graph.indices, assignment)
    found = gathered(graph, assignment, kept, clients, dtype, limit)
    return {client: (part.node, x) for client, part, x in found}


@pytest.mark.parametrize("layout", ["dense", "sparse"])
@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_features_of_every_kind(
    tmp_path: Path, make_graph: Callable[..., Graph], dtype: str, layout: Literal["dense", "sparse"]
) -> None:
    graph = make_graph(1, 40, 0.2, features=5)
    x = np.maximum(graph.x, 0)
    np.save(tmp_path / "x.npy", x)
    csr = sp.csr_array(x)
    backwards = np.concatenate([np.arange(low, high)[::-1] for low, high in zip(csr.indptr[:-1], csr.indptr[1:])])
    unsorted = sp.csr_array((csr.data[backwards], csr.indices[backwards], csr.indptr), csr.shape)
    assert not unsorted.has_sorted_indices
    assignment = np.random.default_rng(0).integers(0, 3, 40).astype(np.int32)
    kept = kept_entries(graph.indptr, graph.indices, assignment)
    for kind in (x, x.astype(np.float16), csr, unsorted, np.load(tmp_path / "x.npy", mmap_mode="r")):
        found = list(gathered(replace(graph, x=kind), assignment, kept, [2, 0], dtype, 1 << 30, layout))
        assert [client for client, _, _ in found] == [2, 0]
        for client, part, rows in found:
            np.testing.assert_array_equal(np.sort(part.node), np.flatnonzero(assignment == client))
            assert isinstance(rows, CsrRows) == (layout == "sparse")
            if isinstance(rows, CsrRows):
                assert (rows.indptr.dtype, rows.columns.dtype) == (np.int32, np.int32)
                check_rows("x", rows, len(part.node), 5, pytest.fail)
            assert rows.dtype == dtype
            expected = kind.toarray() if sp.issparse(kind) else np.asarray(kind)
            mine = rows.toarray() if isinstance(rows, CsrRows) else rows
            np.testing.assert_array_equal(mine, expected[part.node].astype(dtype))


def test_sparse_features_take_no_dense_rows() -> None:
    """The dense rows of one of the four clients would take 40 MB."""
    nodes, features = 4000, 10_000
    x = sp.random_array((nodes, features), density=1e-4, format="csr", dtype=np.float32, rng=0)
    graph = graph_without_edges(x)
    assignment = (np.arange(nodes) % 4).astype(np.int32)
    kept = kept_entries(graph.indptr, graph.indices, assignment)
    limit = 1 << 20
    assert len(list(gathered(graph, assignment, kept, range(4), "float32", limit, "sparse"))) == 4
    tracemalloc.start()
    try:
        values = sum(
            rows.entries for _, _, rows in gathered(graph, assignment, kept, range(4), "float32", limit, "sparse")
        )
        assert values == x.nnz
        assert tracemalloc.get_traced_memory()[1] < limit
    finally:
        tracemalloc.stop()
    with refused(says="engine.memory_limit is 1MiB, but the shard of client 0"):
        next(gathered(graph, assignment, kept, range(4), "float32", 1 << 16, "sparse"))


def graph_without_edges(x: Any) -> Graph:
    nodes, empty = x.shape[0], np.empty(0, dtype=np.int32)
    return Graph("none", np.zeros(nodes + 1, dtype=np.int64), empty, x, np.zeros(nodes, dtype=np.int64), 1)


def test_more_rows_than_a_block(tmp_path: Path) -> None:
    nodes = 2 * ROWS_A_BLOCK + 3
    np.save(tmp_path / "x.npy", np.arange(nodes, dtype=np.float32)[:, None])
    graph = graph_without_edges(np.load(tmp_path / "x.npy", mmap_mode="r"))
    for client, (node, rows) in of(graph, (np.arange(nodes) % 2).astype(np.int32), [0, 1]).items():
        np.testing.assert_array_equal(node, np.arange(client, nodes, 2))
        np.testing.assert_array_equal(rows[:, 0], node)


def test_less_memory_means_more_passes_and_the_same_clients(
    make_graph: Callable[..., Graph], monkeypatch: pytest.MonkeyPatch
) -> None:
    graph = make_graph(2, 60, 0.2)
    assignment = (np.arange(60) % 6).astype(np.int32)
    wanted = of(graph, assignment, list(range(6)))
    monkeypatch.setattr("shoal.storage.graph.gather.ROWS_A_BLOCK", 7)
    passes = []
    monkeypatch.setattr("shoal.storage.graph.gather.induced", lambda *args: passes.append(args[-1]) or induced(*args))
    found = of(graph, assignment, list(range(6)), limit=4000)
    assert 1 < len(passes) < 6
    assert list(found) == list(range(6))
    for client in found:
        for a, b in zip(found[client], wanted[client]):
            np.testing.assert_array_equal(a, b)


def test_a_limit_below_one_client_says_what_would_do(make_graph: Callable[..., Graph]) -> None:
    message = r"^engine\.memory_limit is 1MiB, but the shard of client 0 .* raise it to \d+MiB"
    with pytest.raises(ShoalError, match=message):
        of(make_graph(0, 30, 0.2), np.zeros(30, dtype=np.int32), [0], limit=1 << 10)


def test_memory_is_that_of_one_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is handed out, and held until the next client comes, keeps no earlier pass alive."""
    monkeypatch.setattr("shoal.storage.graph.gather.ROWS_A_BLOCK", 1000)
    nodes, features = 60_000, 64
    graph = graph_without_edges(np.ones((nodes, features), dtype=np.float32))
    assignment = (np.arange(nodes) % 30).astype(np.int32)
    kept = kept_entries(graph.indptr, graph.indices, assignment)
    limit = nodes * features
    of(graph, assignment, [0])
    tracemalloc.start()
    try:
        for client, part, rows in gathered(graph, assignment, kept, range(30), "float32", limit):
            assert (client, part.node[0], len(rows)) == (client, client, 2000)
        assert tracemalloc.get_traced_memory()[1] < 1.15 * limit
    finally:
        tracemalloc.stop()
