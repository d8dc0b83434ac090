import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shoal.partition.methods.by_label import by_random
from shoal.partition.methods.metis import by_metis
from shoal.partition.methods.options import PartitionOptions
from shoal.partition.quality import quality


def test_cuts_far_fewer_edges_of_cora_than_chance_in_balanced_parts(cora):
    metis = quality(cora, by_metis(cora, PartitionOptions("metis", 10)), 10)
    chance = quality(cora, by_random(cora, PartitionOptions("random", 10)), 10)
    assert metis.cut_fraction < 0.15
    assert chance.cut_fraction > 0.85
    assert metis.balance <= 1.05


def test_two_cliques_joined_by_an_edge_are_cut_there(make_graph):
    cliques = [(a + o, b + o) for o in (0, 10) for a in range(10) for b in range(a)]
    assignment = by_metis(make_graph(20, [*cliques, (0, 10)]), PartitionOptions("metis", 2))
    assert len(set(assignment[:10].tolist())) == 1
    assert len(set(assignment[10:].tolist())) == 1
    assert assignment[0] != assignment[10]


@pytest.mark.parametrize("imbalance", [1.01, 1.3])
def test_imbalance_is_passed_on(cora, imbalance):
    assignment = by_metis(cora, PartitionOptions("metis", 10, imbalance=imbalance))
    largest = np.bincount(assignment).max() / (cora.nodes / 10)
    assert largest <= imbalance + 0.01
    if imbalance == 1.3:
        assert largest > 1.05


def test_without_edges_parts_are_even_blocks(make_graph):
    assert by_metis(make_graph(7, []), PartitionOptions("metis", 3)).tolist() == [0, 0, 0, 1, 1, 2, 2]


@settings(max_examples=50, deadline=None)
@given(data=st.data())
def test_no_tiny_graph_leaves_a_client_empty(make_graph, data):
    nodes = data.draw(st.integers(2, 12))
    clients = data.draw(st.integers(1, nodes))
    node = st.integers(0, nodes - 1)
    edges = data.draw(st.lists(st.tuples(node, node), max_size=30))
    assignment = by_metis(make_graph(nodes, edges), PartitionOptions("metis", clients))
    assert set(assignment.tolist()) == set(range(clients))
