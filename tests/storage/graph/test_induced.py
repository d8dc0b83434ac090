"""Parts of a graph: what the nodes of a client induce, neighbours that are drawn, and features in one pass or many."""

import tracemalloc
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.sparse.csgraph import breadth_first_order, connected_components
from support.errors import refused
from support.induced_parts import part_of
from support.shards import adjacency, dense

from shoal.algorithms.models.inputs.neighbourhood import Drawn, draw_neighbours
from shoal.storage.errors import ShoalError
from shoal.storage.graph.gather import gather_features
from shoal.storage.graph.graph import Graph
from shoal.storage.graph.induced import induce, kept_entries
from shoal.storage.graph.layout import Layout
from shoal.storage.graph.rows import CsrRows
from shoal.storage.shards.bounds import check_rows


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 10_000), nodes=st.integers(1, 25), density=st.floats(0, 0.5), share=st.floats(0, 1))
def test_any_part(make_graph: Callable[..., Graph], seed: int, nodes: int, density: float, share: float) -> None:
    graph = make_graph(seed, nodes, density)
    chosen = np.flatnonzero(np.random.default_rng(seed).random(nodes) <= share)
    part = part_of(graph, chosen)
    np.testing.assert_array_equal(np.sort(part.node), chosen)
    found = sp.csr_array((np.ones(len(part.indices)), part.indices, part.indptr), shape=(len(chosen),) * 2)
    np.testing.assert_array_equal(found.toarray(), adjacency(graph)[part.node][:, part.node].toarray())
    for row in range(len(chosen)):
        assert (np.diff(part.indices[part.indptr[row] : part.indptr[row + 1]]) > 0).all()

    # SciPy's breadth-first search, from the smallest id of every component.
    local = adjacency(graph)[chosen][:, chosen].tocsr()
    local.sort_indices()
    component = connected_components(local)[1] if len(chosen) else np.empty(0)
    roots = np.unique(component, return_index=True)[1]
    order = [breadth_first_order(local, root, return_predecessors=False) for root in np.sort(roots)]
    np.testing.assert_array_equal(part.node, chosen[np.concatenate(order)] if order else chosen)


def test_clients_of_one_pass_are_those_of_many(make_graph: Callable[..., Graph]) -> None:
    graph = make_graph(5, 90, 0.1)
    assignment = np.random.default_rng(5).integers(0, 4, 90).astype(np.int32)
    kept = kept_entries(graph.indptr, graph.indices, assignment)
    together = list(induce(graph.indptr, graph.indices, assignment, kept, [3, 0, 2]))
    for client, found in zip([3, 0, 2], together):
        alone = part_of(graph, np.flatnonzero(assignment == client))
        for a, b in zip((found.node, found.indptr, found.indices), (alone.node, alone.indptr, alone.indices)):
            np.testing.assert_array_equal(a, b)


@pytest.fixture
def graph() -> tuple[np.ndarray, np.ndarray]:
    upper = np.triu(np.random.default_rng(0).random((60, 60)) < 0.2, 1)
    upper[:, 7] = upper[7] = False
    matrix = sp.csr_array(upper | upper.T)
    return matrix.indptr.astype(np.int32), matrix.indices.astype(np.int32)


def neighbours(drawn: Drawn, row: int) -> list[int]:
    return drawn.nodes[drawn.indices[drawn.indptr[row] : drawn.indptr[row + 1]]].tolist()


@pytest.mark.parametrize("fanout", [-1, 1, 3, 12, 1000])
def test_every_row_hears_some_of_its_own_neighbours_once(graph: tuple[np.ndarray, np.ndarray], fanout: int) -> None:
    indptr, indices = graph
    rows = np.array([40, 7, 3, 12, 59, 0])
    drawn = draw_neighbours(indptr, indices, rows, fanout, np.random.default_rng(1))
    assert drawn.nodes[:6].tolist() == rows.tolist()
    assert len(set(drawn.nodes.tolist())) == len(drawn.nodes)
    assert set(range(6, len(drawn.nodes))) <= set(drawn.indices.tolist())
    for i, row in enumerate(rows):
        own = indices[indptr[row] : indptr[row + 1]].tolist()
        heard = neighbours(drawn, i)
        assert len(heard) == len(set(heard)) == (len(own) if fanout < 0 else min(len(own), fanout))
        assert set(heard) <= set(own)
    assert neighbours(drawn, 1) == []


Make = Callable[..., Graph]


def of(graph: Graph, assignment: np.ndarray, limit: int = 1 << 30) -> dict[int, tuple[np.ndarray, np.ndarray]]:
    kept = kept_entries(graph.indptr, graph.indices, assignment)
    found = gather_features(graph, assignment, kept, range(assignment.max() + 1), "float32", limit)
    return {client: (part.node, x) for client, part, x in found}


@pytest.mark.parametrize("layout", ["dense", "sparse"])
@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_features_of_every_kind(tmp_path: Path, make_graph: Make, dtype: str, layout: Layout) -> None:
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
        found = list(gather_features(replace(graph, x=kind), assignment, kept, [2, 0], dtype, 1 << 30, layout))
        assert [client for client, _, _ in found] == [2, 0]
        for client, part, rows in found:
            np.testing.assert_array_equal(np.sort(part.node), np.flatnonzero(assignment == client))
            assert isinstance(rows, CsrRows) == (layout == "sparse")
            if isinstance(rows, CsrRows):
                assert (rows.indptr.dtype, rows.columns.dtype) == (np.int32, np.int32)
                check_rows("x", rows, len(part.node), 5, pytest.fail)
            assert rows.dtype == dtype
            expected = kind.toarray() if sp.issparse(kind) else np.asarray(kind)
            np.testing.assert_array_equal(dense(rows), expected[part.node].astype(dtype))


def test_sparse_features_take_no_dense_rows() -> None:
    """The dense rows of one of the four clients would take 40 MB."""
    nodes, features = 4000, 10_000
    x = sp.random_array((nodes, features), density=1e-4, format="csr", dtype=np.float32, rng=0)
    graph, assignment = graph_without_edges(x), (np.arange(nodes) % 4).astype(np.int32)
    kept = kept_entries(graph.indptr, graph.indices, assignment)

    def entries(limit: int) -> list[int]:
        found = gather_features(graph, assignment, kept, range(4), "float32", limit, "sparse")
        return [rows.entries for _, _, rows in found]

    assert len(entries(1 << 20)) == 4
    tracemalloc.start()
    try:
        assert sum(entries(1 << 20)) == x.nnz
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()
    with refused(says="engine.memory_limit is 1MiB, but the shard of client 0"):
        entries(1 << 16)


def graph_without_edges(x: Any) -> Graph:
    nodes, empty = x.shape[0], np.empty(0, dtype=np.int32)
    return Graph("none", np.zeros(nodes + 1, dtype=np.int64), empty, x, np.zeros(nodes, dtype=np.int64), 1)


def test_less_memory_means_more_passes(make_graph: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    graph = make_graph(2, 60, 0.2)
    assignment = (np.arange(60) % 6).astype(np.int32)
    wanted = of(graph, assignment)
    monkeypatch.setattr("shoal.storage.graph.gather.ROWS_A_BLOCK", 7)
    passes = []
    monkeypatch.setattr("shoal.storage.graph.gather.induce", lambda *args: passes.append(args[-1]) or induce(*args))
    found = of(graph, assignment, limit=4000)
    assert 1 < len(passes) < 6
    assert list(found) == list(range(6))
    for client in found:
        for a, b in zip(found[client], wanted[client]):
            np.testing.assert_array_equal(a, b)


def test_a_limit_below_one_client_says_what_would_do(make_graph: Make) -> None:
    with pytest.raises(ShoalError, match=r"is 1MiB, but the shard of client 0 .* raise it to \d+MiB"):
        of(make_graph(0, 30, 0.2), np.zeros(30, dtype=np.int32), limit=1 << 10)


def test_memory_is_that_of_one_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is handed out, and held until the next client comes, keeps no earlier pass alive."""
    monkeypatch.setattr("shoal.storage.graph.gather.ROWS_A_BLOCK", 1000)
    nodes, features = 60_000, 64
    graph = graph_without_edges(np.ones((nodes, features), dtype=np.float32))
    assignment = (np.arange(nodes) % 30).astype(np.int32)
    kept = kept_entries(graph.indptr, graph.indices, assignment)
    limit = nodes * features
    of(graph, assignment)
    tracemalloc.start()
    try:
        for client, part, rows in gather_features(graph, assignment, kept, range(30), "float32", limit):
            assert (client, part.node[0], len(rows)) == (client, client, 2000)
        assert tracemalloc.get_traced_memory()[1] < 1.15 * limit
    finally:
        tracemalloc.stop()
