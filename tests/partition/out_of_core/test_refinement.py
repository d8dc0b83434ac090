import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shoal.partition.methods.workspace import silent
from shoal.partition.out_of_core.blocks import Level
from shoal.partition.out_of_core.refinement import refine


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


@pytest.mark.parametrize(("low", "high"), [(2, 2), (4, 4)])
def test_a_bound_keeps_it_there(make_graph, low, high):
    graph = make_graph(6, TRIANGLES)
    start = [0, 0, 0, 0, 1, 1]
    assert refined(Level(graph.indptr, graph.indices), start, 2, low, high).tolist() == start


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
