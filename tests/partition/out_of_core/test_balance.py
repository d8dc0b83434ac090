import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shoal.partition.out_of_core.balance import balance, fill_lightest, size_bound
from shoal.partition.out_of_core.blocks import Level


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


def test_a_full_part_is_not_entered(make_graph):
    graph = make_graph(8, [(0, 1), (1, 2), (2, 3), (0, 2), (1, 3), (3, 6), (4, 5), (6, 7)])
    part = balanced(graph, [0, 0, 0, 0, 1, 2, 2, 2], 3, 3)
    assert np.bincount(part).tolist() == [3, 2, 3]


def test_parts_within_the_bound_stay(make_graph):
    given_part = [0, 0, 1, 1, 1]
    assert balanced(make_graph(5, [(0, 4), (1, 3)]), given_part, 2, 3).tolist() == given_part


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
