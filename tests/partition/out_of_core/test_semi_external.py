"""Partitions in bounded memory, and their steps: blocks, clusters, contraction, refinement, balance."""

import kaminpar
import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import given, settings
from hypothesis import strategies as st
from support.errors import refused

from shoal.partition.methods.cover import assert_cover
from shoal.partition.methods.metis import by_metis
from shoal.partition.methods.options import PartitionOptions
from shoal.partition.methods.workspace import Workspace, silent
from shoal.partition.out_of_core import semi_external
from shoal.partition.out_of_core.balance import balance, fill_lightest, refine, size_bound
from shoal.partition.out_of_core.blocks import Level, blocks
from shoal.partition.out_of_core.contraction import cluster, contract, number_clusters
from shoal.partition.out_of_core.kaminpar import by_kaminpar, write_parhip
from shoal.partition.out_of_core.semi_external import (
    BLOCK,
    BUCKET,
    BYTES_OF_CODE,
    BYTES_OF_LEAST_BUFFERS,
    BYTES_OF_NODE,
    Memory,
    by_semi_external,
    metis_bytes,
)
from shoal.partition.quality import quality
from shoal.storage.files import mapped
from shoal.storage.files.mapped import cut_rows, read
from shoal.storage.threads import threads


def parts(graph, clients, workspace=None, **options):
    return by_semi_external(graph, PartitionOptions("semi-external", clients, **options), workspace=workspace)


def test_several_levels_find_what_one_finds(planted, monkeypatch):
    monkeypatch.setattr(semi_external, "SMALL", 0)
    monkeypatch.setattr(semi_external, "SMALL_PART", 4)
    told = []
    got = quality(planted, parts(planted, 12, Workspace(report=told.append)), 12)
    assert sum(line.startswith("level") for line in told) >= 2
    metis = quality(planted, by_metis(planted, PartitionOptions("metis", 12)), 12)
    assert got.cut_fraction <= 1.2 * metis.cut_fraction
    assert got.nodes_max <= size_bound(planted.nodes, 12, 1.03)


@pytest.mark.exhaustive(2)
@pytest.mark.parametrize(("block", "bucket"), [(7, 11), (50, 10**6), (10**6, 50)])
def test_blocks_and_buckets_change_nothing(planted, monkeypatch, block, bucket):
    expected = parts(planted, 12)
    monkeypatch.setattr(semi_external.Memory, "of", lambda limit, nodes: semi_external.Memory(limit, block, bucket))
    np.testing.assert_array_equal(parts(planted, 12), expected)


@pytest.mark.parametrize("count", [2, 3])
def test_threads_change_nothing(planted, monkeypatch, count):
    monkeypatch.setattr("shoal.storage.threads.FEW", 1)
    monkeypatch.setattr(semi_external, "SMALL", 0)
    monkeypatch.setattr(semi_external, "SMALL_PART", 4)
    expected = parts(planted, 12)
    with threads(count):
        np.testing.assert_array_equal(parts(planted, 12), expected)


def test_metis_gets_the_heaviest_entries_as_long_as_they_are_enough(make_graph, monkeypatch):
    monkeypatch.setattr(semi_external, "HEAVY", 1.5)
    graph = make_graph(5, [(0, 1), (0, 2), (1, 2), (2, 3), (3, 4), (0, 4)])
    rows = np.repeat(np.arange(5), np.diff(graph.indptr))
    # Edges weigh 1 to 3 by the sum of their ends: 0-1 2, 0-2 3, 1-2 1, 2-3 3, 3-4 2, 0-4 2.
    weights = ((rows + graph.indices) % 3 + 1).astype(np.int32)
    level = Level(graph.indptr, graph.indices, weights, np.ones(5, dtype=np.int32))
    assert semi_external._heaviest(level) == (2, 10)
    indptr, indices, kept = semi_external._entries_of(level, 2, 3)
    expected = sp.csr_array((weights * (weights >= 2), graph.indices, graph.indptr))
    np.testing.assert_array_equal(sp.csr_array((kept, indices, indptr), shape=(5, 5)).toarray(), expected.toarray())
    # Of entries of one weight, none is lighter than the others.
    assert semi_external._heaviest(Level(graph.indptr, graph.indices, np.ones(12, dtype=np.int32))) == (1, 12)
    assert semi_external._heaviest(Level(graph.indptr, graph.indices)) == (1, 12)


def test_a_limit_that_cannot_be_kept_is_refused_and_nothing_stays_behind(planted, tmp_path, monkeypatch):
    with refused(says="engine.memory_limit is 1MiB"):
        parts(planted, 12, Workspace(tmp_path, memory_limit=1 << 20))
    monkeypatch.setattr(semi_external, "OF_METIS_ENTRY", 1 << 20)
    with refused(says="for 12 clients the coarsest graph"):
        parts(planted, 12, Workspace(tmp_path, memory_limit=256 << 20))
    assert list(tmp_path.iterdir()) == []


def cliques(count, size):
    return [(a + o, b + o) for o in range(0, count * size, size) for a in range(size) for b in range(a)]


def test_components_are_kept_whole_and_nodes_without_edges_even_out_the_parts(make_graph):
    graph = make_graph(120, cliques(20, 6))
    got = quality(graph, parts(graph, 5), 5)
    assert (got.cut_fraction, got.nodes) == (0, (24,) * 5)
    graph = make_graph(60, cliques(3, 10))
    got = quality(graph, parts(graph, 4), 4)
    assert got.nodes == (15,) * 4
    # Only a clique that four parts of at most eight connected nodes must share is cut.
    assert got.cut_fraction < 0.7


BOUNDED = {"semi-external": by_semi_external, "kaminpar": by_kaminpar}


@pytest.mark.exhaustive(4)
@pytest.mark.parametrize("method", BOUNDED)
@pytest.mark.parametrize("clients", [2, 4, 12, 60])
def test_cuts_no_more_than_metis_by_a_tenth(planted, method, clients):
    got = quality(planted, BOUNDED[method](planted, PartitionOptions(method, clients)), clients)
    metis = quality(planted, by_metis(planted, PartitionOptions("metis", clients)), clients)
    assert got.cut_fraction <= 1.1 * metis.cut_fraction


@pytest.mark.parametrize("method", BOUNDED)
def test_maps_give_what_arrays_give_and_nothing_stays_behind(planted, tmp_path, mapped_graph, method):
    (tmp_path / "scratch").mkdir()
    options = PartitionOptions(method, 12, seed=3)
    got = BOUNDED[method](mapped_graph(planted), options, workspace=Workspace(tmp_path / "scratch"))
    np.testing.assert_array_equal(got, BOUNDED[method](planted, options))
    assert list((tmp_path / "scratch").iterdir()) == []


@pytest.mark.parametrize("method", BOUNDED)
@settings(max_examples=15, deadline=None)
@given(data=st.data())
def test_the_bound_holds_and_no_client_is_empty(draw_graph, method, data):
    graph = draw_graph(data, 60, 150)
    nodes, clients = graph.nodes, data.draw(st.integers(1, graph.nodes))
    imbalance, seed = data.draw(st.sampled_from([1.001, 1.03, 1.5, 3.0])), data.draw(st.integers(0, 3))
    assignment = BOUNDED[method](graph, PartitionOptions(method, clients, imbalance=imbalance, seed=seed))
    assert_cover(assignment, nodes, clients)
    assert np.bincount(assignment).max() <= size_bound(nodes, clients, imbalance)


def test_kaminpar_reads_the_file_as_the_graph_it_is(make_graph, tmp_path):
    graph = make_graph(5, [(0, 1), (0, 4), (1, 4), (2, 4)])
    write_parhip(Level(graph.indptr, graph.indices), tmp_path / "graph")
    got = kaminpar.load_graph(str(tmp_path / "graph"), kaminpar.GraphFileFormat.PARHIP)
    assert (got.n(), got.m(), got.is_edge_weighted(), got.is_node_weighted()) == (5, 8, False, False)
    neighbours = [[node for node, _ in got.neighbors(row)] for row in range(5)]
    assert neighbours == [[1, 4], [0, 4], [4], [], [0, 1, 2]]


MIB = 1 << 20


def test_buffers_have_their_useful_size_and_shrink_with_the_limit():
    unlimited = Memory.of(None, 10**9)
    assert (unlimited.block, unlimited.bucket) == (BLOCK, BUCKET)
    unlimited.require_metis(10**9, 10**11, 500)
    small, large = Memory.of(200 * MIB, 10**6), Memory.of(400 * MIB, 10**6)
    assert 1 <= small.block < large.block <= BLOCK
    assert 1 <= small.bucket < large.bucket <= BUCKET


def test_limits_that_cannot_be_kept():
    enough = -(-(BYTES_OF_NODE * 10**7 + BYTES_OF_LEAST_BUFFERS + BYTES_OF_CODE) // MIB)
    Memory.of(enough * MIB, 10**7)
    with refused(says=f"at least {enough}MiB: raise it"):
        Memory.of((enough - 1) * MIB, 10**7)
    with refused(says="for 500 clients the coarsest graph (100000 nodes, 10000000 edges) needs"):
        Memory.of(1024 * MIB, 10**6).require_metis(100_000, 20_000_000, 500)
    Memory.of(metis_bytes(100_000, 20_000_000), 10**6).require_metis(100_000, 20_000_000, 500)
    with refused(says="contracting 1000000 nodes to 9000000"):
        Memory.of(200 * MIB, 10**6).require_contraction(10**6, 9 * 10**6)


def rows_of(level, entries):
    """Every row as (node, neighbours, weights, node weight), put together from the blocks."""
    rows = []
    for b in blocks(level, entries):
        for row, part in enumerate(map(slice, b.indptr[:-1], b.indptr[1:])):
            rows.append((b.first + row, b.indices[part].tolist(), b.weights[part].tolist(), int(b.node_weights[row])))
    return rows


@pytest.mark.parametrize("rows", [1, 3, 100])
@pytest.mark.parametrize(("entries", "sizes"), [(1, None), (2, None), (4, [2, 5, 1]), (5, None), (100, [8])])
def test_blocks_hold_every_row_once_in_order(monkeypatch, rows, entries, sizes):
    monkeypatch.setattr(mapped, "ROWS", rows)
    neighbours, weights, own = (np.arange(*ends, dtype=np.int32) for ends in ((0, 8), (10, 18), (20, 25)))
    level = Level(np.array([0, 2, 2, 7, 8, 8]), neighbours, weights, own)
    if sizes and rows == 100:
        assert [len(b.indices) for b in blocks(level, entries)] == sizes
    assert rows_of(level, entries) == [
        (0, [0, 1], [10, 11], 20),
        (1, [], [], 21),
        (2, [2, 3, 4, 5, 6], [12, 13, 14, 15, 16], 22),
        (3, [7], [17], 23),
        (4, [], [], 24),
    ]


@pytest.mark.parametrize("cut", [slice(None), slice(3, None), slice(3, 50)])
def test_a_map_and_a_slice_of_it_are_read_from_the_file(tmp_path, cut):
    np.save(tmp_path / "array.npy", np.arange(100, dtype=np.int32))
    array = np.load(tmp_path / "array.npy", mmap_mode="r")[cut][1:]
    got = read(array, 5, 20)
    np.testing.assert_array_equal(got, np.arange(100)[cut][1:][5:20])
    assert not isinstance(got, np.memmap)


def clusters(graph, limit, enough=10**9, entries=1000, seed=0, node_weights=None):
    return cluster(Level(graph.indptr, graph.indices, None, node_weights), limit, enough, seed, entries, silent)


@pytest.mark.parametrize(("enough", "most"), [(0, 11), (1000, 92)])
def test_leaves_of_a_full_star_are_joined_unless_clusters_are_few_enough(make_graph, enough, most):
    label = clusters(make_graph(101, [(0, leaf) for leaf in range(1, 101)]), limit=10, enough=enough)
    sizes = np.bincount(label)
    assert sizes.max() == 10
    assert most - 1 <= np.count_nonzero(sizes) <= most


@settings(max_examples=20, deadline=None)
@given(data=st.data())
def test_no_cluster_outweighs_the_limit_unless_it_is_one_node(draw_graph, data):
    graph = draw_graph(data, 30, 100, least=2)
    weight = st.lists(st.integers(1, 9), min_size=graph.nodes, max_size=graph.nodes)
    weights = np.array(data.draw(weight), dtype=np.int32)
    limit = data.draw(st.integers(1, 40))
    label = clusters(graph, limit, enough=data.draw(st.sampled_from([0, 100])), node_weights=weights)
    np.testing.assert_array_equal(label < 0, np.diff(graph.indptr) == 0)
    for name in set(label[label >= 0].tolist()):
        assert weights[label == name].sum() <= limit or (label == name).sum() == 1


def dense(level):
    weights = np.ones(level.entries) if level.weights is None else level.weights
    return sp.csr_array((weights, level.indices, level.indptr), shape=(level.nodes, level.nodes)).toarray()


def test_clusters_are_numbered_in_their_order_and_cut_into_buckets():
    label = np.array([7, -1, 2, 7, 2, 4, -1, 7], dtype=np.int32)
    assert (number_clusters(label), label.tolist()) == (3, [2, -1, 0, 2, 0, 1, -1, 2])
    # A range holds a bucket or one node.
    assert cut_rows(np.array([0, 3, 6, 15, 15, 16, 21, 27]), 6) == [0, 2, 3, 6, 7]


@settings(max_examples=30, deadline=None)
@given(data=st.data())
def test_contraction_is_a_product_with_the_membership_matrix(tmp_path_factory, data):
    # The weights of coarse edges are the off-diagonal of P' A P, those of coarse nodes P' w.
    rng = np.random.default_rng(data.draw(st.integers(0, 2**32)))
    nodes = data.draw(st.integers(1, 40))
    upper = np.triu(rng.integers(1, 9, (nodes, nodes)) * (rng.random((nodes, nodes)) < 0.2), 1)
    matrix = sp.csr_array(upper + upper.T)
    weighted = data.draw(st.booleans())
    weights = (matrix.data.astype(np.int32), rng.integers(1, 5, nodes).astype(np.int32)) if weighted else (None, None)
    level = Level(matrix.indptr.astype(np.int64), matrix.indices.astype(np.int32), *weights)
    coarse_N = rng.integers(data.draw(st.integers(1, nodes)), size=nodes).astype(np.int32)
    coarse_N[np.diff(level.indptr) == 0] = -1
    if (coarse_N < 0).all():
        return
    count = number_clusters(coarse_N)
    member = np.eye(count)[coarse_N] * (coarse_N >= 0)[:, None]
    folder = tmp_path_factory.mktemp("level")
    entries, bucket = data.draw(st.integers(1, 50)), data.draw(st.integers(1, 50))
    coarse = contract(level, coarse_N, count, folder, entries, bucket)

    expected = member.T @ dense(level) @ member
    np.fill_diagonal(expected, 0)
    np.testing.assert_array_equal(dense(coarse), expected)
    assert (np.asarray(coarse.weights) > 0).all()
    own = np.ones(nodes) if level.node_weights is None else level.node_weights
    np.testing.assert_array_equal(coarse.node_weights, member.T @ own)
    # One entry a pair of neighbours: nothing is left to add up.
    assert coarse.entries == np.count_nonzero(expected)


def refined(level, part, clients, low, high, entries=1000):
    own = np.ones(level.nodes) if level.node_weights is None else level.node_weights
    part = np.array(part, dtype=np.int32)
    weight_P = np.bincount(part, own, minlength=clients).astype(np.int64)
    refine(level, part, weight_P, low, high, entries, silent)
    np.testing.assert_array_equal(weight_P, np.bincount(part, own, minlength=clients))
    return part


@pytest.mark.parametrize(
    ("edges", "start", "low", "high", "end"),
    [
        # Two triangles, 0-1-2 and 3-4-5, and an edge between them.
        ([(0, 1), (0, 2), (1, 2), (3, 4), (3, 5), (4, 5), (2, 3)], [0, 0, 0, 0, 1, 1], 2, 4, [0, 0, 0, 1, 1, 1]),
        # Node 2 has one edge to either part: leaving part 0 evens out the sizes.
        ([(0, 1), (1, 2), (2, 3), (3, 4)], [0, 0, 0, 0, 1], 1, 5, [0, 0, 0, 1, 1]),
    ],
    ids=["a node on the wrong side goes home", "between equals the lighter part gets the node"],
)
def test_refined_by_hand(make_graph, edges, start, low, high, end):
    graph = make_graph(len(start), edges)
    assert refined(Level(graph.indptr, graph.indices), start, 2, low, high).tolist() == end


@settings(max_examples=30, deadline=None)
@given(data=st.data())
def test_the_cut_never_grows_and_bounds_hold(draw_graph, data):
    graph = draw_graph(data, 25, 100, least=2, least_edges=1)
    nodes, clients = graph.nodes, data.draw(st.integers(1, 5))
    rng = np.random.default_rng(data.draw(st.integers(0, 99)))
    # Symmetric weights of edges from the sum of their ends.
    rows = np.repeat(np.arange(nodes), np.diff(graph.indptr))
    weights = ((rows + graph.indices) % 5 + 1).astype(np.int32)
    level = Level(graph.indptr, graph.indices, weights, rng.integers(1, 4, nodes).astype(np.int32))
    start = rng.integers(clients, size=nodes)
    before = np.bincount(start, level.node_weights, minlength=clients)
    low, high = data.draw(st.integers(0, 20)), data.draw(st.integers(1, 40))
    part = refined(level, start, clients, low, high, entries=data.draw(st.integers(1, 60)))
    after = np.bincount(part, level.node_weights, minlength=clients)

    def cut(p):
        return weights[p[rows] != p[graph.indices]].sum()

    assert cut(part) <= cut(start)
    assert (after <= np.maximum(before, high)).all()
    assert (after >= np.minimum(before, low)).all()


@pytest.mark.parametrize(
    ("nodes", "clients", "imbalance", "bound"),
    [(10_000, 10, 1.03, 1030), (1000, 1000, 1.03, 1), (7, 3, 1.03, 3), (100, 7, 1.5, 21), (5, 10, 1.03, 1)],
)
def test_size_bound(nodes, clients, imbalance, bound):
    assert size_bound(nodes, clients, imbalance) == bound


def balanced(graph, part, clients, high):
    part = np.array(part, dtype=np.int32)
    weight_P = np.bincount(part[part >= 0], minlength=clients)
    balance(Level(graph.indptr, graph.indices), part, weight_P, high, 1000)
    np.testing.assert_array_equal(weight_P, np.bincount(part[part >= 0], minlength=clients))
    return part


def test_the_node_that_loses_least_leaves_for_where_its_edges_lead(make_graph):
    graph = make_graph(8, [(0, 1), (1, 2), (2, 3), (0, 2), (1, 3), (3, 6), (4, 5), (6, 7)])
    # Of part 0, nodes 1 and 2 have three edges inside, node 0 two, node 3 two and one to part 2.
    part = balanced(graph, [0, 0, 0, 0, 1, 1, 2, 2], 3, 3)
    assert part.tolist() == [0, 0, 0, 2, 1, 1, 2, 2]


@settings(max_examples=30, deadline=None)
@given(data=st.data())
def test_the_bound_is_kept_to_the_node(draw_graph, data):
    graph = draw_graph(data, 40, 80)
    nodes, clients = graph.nodes, data.draw(st.integers(1, 6))
    start = np.array(data.draw(st.lists(st.integers(-1, clients - 1), min_size=nodes, max_size=nodes)))
    placed = int((start >= 0).sum())
    high = max(-(-placed // clients), 1) + data.draw(st.integers(0, 5))
    part = balanced(graph, start, clients, high)
    assert np.bincount(part[part >= 0], minlength=clients).max(initial=0) <= high
    np.testing.assert_array_equal(part < 0, start < 0)


@pytest.mark.parametrize(
    ("given", "own", "weights", "placed"),
    [([0, 0, 0, 1, -1, -1, -1, -1], None, [3, 3, 2], None), ([-1] * 4, [1, 1, 5, 3], [5, 5], [1, 1, 0, 1])],
    ids=["lightest parts", "heavy nodes first"],
)
def test_unplaced_nodes_fill_the_lightest_parts(given, own, weights, placed):
    part = np.array(given, dtype=np.int32)
    weight_P = np.bincount(part[part >= 0], minlength=len(weights))
    fill_lightest(part, weight_P, None if own is None else np.array(own, dtype=np.int32))
    assert weight_P.tolist() == weights == np.bincount(part, own).tolist()
    assert all(now == before for now, before in zip(part.tolist(), given) if before >= 0)
    assert placed is None or part.tolist() == placed
