import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shoal.partition.methods.workspace import silent
from shoal.partition.out_of_core.blocks import Level
from shoal.partition.out_of_core.clustering import cluster


def clusters(graph, limit, enough=10**9, entries=1000, seed=0, node_weights=None):
    return cluster(Level(graph.indptr, graph.indices, None, node_weights), limit, enough, seed, entries, silent)


def test_cliques_are_clusters(make_graph):
    cliques = [(a + o, b + o) for o in (0, 6, 12) for a in range(6) for b in range(a)]
    label = clusters(make_graph(18, [*cliques, (0, 6), (6, 12)]), limit=6)
    assert [len(set(label[o : o + 6].tolist())) for o in (0, 6, 12)] == [1, 1, 1]
    assert len(set(label.tolist())) == 3


def test_a_node_without_edges_has_no_cluster(make_graph):
    assert clusters(make_graph(4, [(1, 2)]), limit=2).tolist().count(-1) == 2


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


@pytest.mark.parametrize("entries", [1, 7, 10**6])
def test_the_size_of_blocks_changes_nothing(planted, entries):
    np.testing.assert_array_equal(clusters(planted, 30, 0, entries), clusters(planted, 30, 0, 1000))


def test_the_seed_decides_between_equals(planted):
    assert (clusters(planted, 30, seed=0) != clusters(planted, 30, seed=1)).any()
