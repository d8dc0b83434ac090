"""Blocks of a graph, its clusters, their graph, and parts that are refined and balanced."""

import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import given, settings
from hypothesis import strategies as st

from shoal.partition.methods.workspace import silent
from shoal.partition.out_of_core.balance import balance, fill_lightest, size_bound
from shoal.partition.out_of_core.blocks import Level, blocks
from shoal.partition.out_of_core.clustering import cluster
from shoal.partition.out_of_core.contraction import bucket_starts, contract, number_clusters
from shoal.partition.out_of_core.refinement import refine
from shoal.storage.files import mapped
from shoal.storage.files.mapped import read


def rows_of(level, entries):
    """Every row as (node, neighbours, weights, node weight), put together from the blocks."""
    rows = []
    for b in blocks(level, entries):
        for row in range(len(b.indptr) - 1):
            part = slice(b.indptr[row], b.indptr[row + 1])
            rows.append((b.first + row, b.indices[part].tolist(), b.weights[part].tolist(), int(b.node_weights[row])))
    return rows


@pytest.mark.parametrize("rows", [1, 3, 100])
@pytest.mark.parametrize("entries", [1, 2, 5, 100])
def test_blocks_hold_every_row_once_in_order(monkeypatch, rows, entries):
    monkeypatch.setattr(mapped, "ROWS", rows)
    level = Level(
        np.array([0, 2, 2, 7, 8, 8]),
        np.arange(8, dtype=np.int32),
        np.arange(10, 18, dtype=np.int32),
        np.arange(20, 25, dtype=np.int32),
    )
    assert rows_of(level, entries) == [
        (0, [0, 1], [10, 11], 20),
        (1, [], [], 21),
        (2, [2, 3, 4, 5, 6], [12, 13, 14, 15, 16], 22),
        (3, [7], [17], 23),
        (4, [], [], 24),
    ]


def test_blocks_are_as_large_as_allowed():
    level = Level(np.array([0, 2, 4, 9, 10]), np.zeros(10, dtype=np.int32))
    assert [len(b.indices) for b in blocks(level, 4)] == [4, 5, 1]


@pytest.mark.parametrize("cut", [slice(None), slice(3, None), slice(3, 50)])
def test_a_map_and_a_slice_of_it_are_read_from_the_file(tmp_path, cut):
    np.save(tmp_path / "array.npy", np.arange(100, dtype=np.int32))
    array = np.load(tmp_path / "array.npy", mmap_mode="r")[cut][1:]
    got = read(array, 5, 20)
    np.testing.assert_array_equal(got, np.arange(100)[cut][1:][5:20])
    assert not isinstance(got, np.memmap)


def clusters(graph, limit, enough=10**9, entries=1000, seed=0, node_weights=None):
    return cluster(Level(graph.indptr, graph.indices, None, node_weights), limit, enough, seed, entries, silent)


def test_planted_communities_are_rarely_split(planted):
    label = clusters(planted, limit=150)
    rows = np.repeat(np.arange(planted.nodes), np.diff(planted.indptr))
    inside = (label[rows] == label[planted.indices]).mean()
    # 16 of 19 neighbours belong to the node's community.
    assert inside > 0.7


@pytest.mark.parametrize(("enough", "most"), [(0, 11), (1000, 92)])
def test_leaves_of_a_full_star_are_joined_unless_clusters_are_few_enough(make_graph, enough, most):
    label = clusters(make_graph(101, [(0, leaf) for leaf in range(1, 101)]), limit=10, enough=enough)
    sizes = np.bincount(label)
    assert sizes.max() == 10
    assert most - 1 <= np.count_nonzero(sizes) <= most


@settings(max_examples=40, deadline=None)
@given(data=st.data())
def test_no_cluster_outweighs_the_limit_unless_it_is_one_node(make_graph, data):
    nodes = data.draw(st.integers(2, 30))
    node = st.integers(0, nodes - 1)
    graph = make_graph(nodes, data.draw(st.lists(st.tuples(node, node), max_size=100)))
    weights = np.array(data.draw(st.lists(st.integers(1, 9), min_size=nodes, max_size=nodes)), dtype=np.int32)
    limit = data.draw(st.integers(1, 40))
    label = clusters(graph, limit, enough=data.draw(st.sampled_from([0, 100])), node_weights=weights)
    np.testing.assert_array_equal(label < 0, np.diff(graph.indptr) == 0)
    for name in set(label[label >= 0].tolist()):
        assert weights[label == name].sum() <= limit or (label == name).sum() == 1


def test_the_seed_decides_between_equals(planted):
    assert (clusters(planted, 30, seed=0) != clusters(planted, 30, seed=1)).any()


def dense(level):
    weights = np.ones(level.entries) if level.weights is None else level.weights
    return sp.csr_array((weights, level.indices, level.indptr), shape=(level.nodes, level.nodes)).toarray()


def test_clusters_are_numbered_in_their_order_and_none_stays_none():
    label = np.array([7, -1, 2, 7, 2, 4, -1, 7], dtype=np.int32)
    assert number_clusters(label) == 3
    assert label.tolist() == [2, -1, 0, 2, 0, 1, -1, 2]


def test_ranges_hold_a_bucket_or_one_node():
    assert bucket_starts(np.array([3, 3, 9, 0, 1, 5, 6]), 6) == [0, 2, 3, 6, 7]


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_contraction_is_a_product_with_the_membership_matrix(tmp_path_factory, data):
    # The weights of coarse edges are the off-diagonal of P' A P, those of coarse nodes P' w.
    rng = np.random.default_rng(data.draw(st.integers(0, 2**32)))
    nodes = data.draw(st.integers(1, 40))
    upper = np.triu(rng.integers(1, 9, (nodes, nodes)) * (rng.random((nodes, nodes)) < 0.2), 1)
    matrix = sp.csr_array(upper + upper.T)
    weighted = data.draw(st.booleans())
    level = Level(
        matrix.indptr.astype(np.int64),
        matrix.indices.astype(np.int32),
        matrix.data.astype(np.int32) if weighted else None,
        rng.integers(1, 5, nodes).astype(np.int32) if weighted else None,
    )
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


# Two triangles, 0-1-2 and 3-4-5, and an edge between them.
TRIANGLES = [(0, 1), (0, 2), (1, 2), (3, 4), (3, 5), (4, 5), (2, 3)]


def test_a_node_on_the_wrong_side_goes_home(make_graph):
    graph = make_graph(6, TRIANGLES)
    assert refined(Level(graph.indptr, graph.indices), [0, 0, 0, 0, 1, 1], 2, 2, 4).tolist() == [0, 0, 0, 1, 1, 1]


def test_between_equals_the_lighter_part_gets_the_node(make_graph):
    # Node 2 has one edge to either part: leaving part 0 evens out the sizes.
    graph = make_graph(5, [(0, 1), (1, 2), (2, 3), (3, 4)])
    assert refined(Level(graph.indptr, graph.indices), [0, 0, 0, 0, 1], 2, 1, 5).tolist() == [0, 0, 0, 1, 1]


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_the_cut_never_grows_and_bounds_hold(make_graph, data):
    nodes = data.draw(st.integers(2, 25))
    node = st.integers(0, nodes - 1)
    edges = data.draw(st.lists(st.tuples(node, node), min_size=1, max_size=100))
    graph = make_graph(nodes, edges)
    clients = data.draw(st.integers(1, 5))
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


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_the_bound_is_kept_to_the_node(make_graph, data):
    nodes = data.draw(st.integers(1, 40))
    node = st.integers(0, nodes - 1)
    graph = make_graph(nodes, data.draw(st.lists(st.tuples(node, node), max_size=80)))
    clients = data.draw(st.integers(1, 6))
    start = np.array(data.draw(st.lists(st.integers(-1, clients - 1), min_size=nodes, max_size=nodes)))
    placed = int((start >= 0).sum())
    high = max(-(-placed // clients), 1) + data.draw(st.integers(0, 5))
    part = balanced(graph, start, clients, high)
    assert np.bincount(part[part >= 0], minlength=clients).max(initial=0) <= high
    np.testing.assert_array_equal(part < 0, start < 0)


def test_unplaced_nodes_fill_the_lightest_parts():
    part = np.array([0, 0, 0, 1, -1, -1, -1, -1], dtype=np.int32)
    weight_P = np.array([3, 1, 0])
    fill_lightest(part, weight_P, None)
    assert part[:4].tolist() == [0, 0, 0, 1]
    assert weight_P.tolist() == [3, 3, 2]
    assert np.bincount(part).tolist() == [3, 3, 2]


def test_heavy_nodes_come_first():
    part = np.full(4, -1, dtype=np.int32)
    weight_P = np.zeros(2, dtype=np.int64)
    fill_lightest(part, weight_P, np.array([1, 1, 5, 3], dtype=np.int32))
    assert weight_P.tolist() == [5, 5]
    assert part.tolist() == [1, 1, 0, 1]
