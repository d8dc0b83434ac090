import numpy as np
import pytest

from shoal.partition.methods.options import PartitionOptions
from shoal.partition.partitioning import partition
from shoal.storage.errors import ShoalError

SEEDED = ["metis", "kaminpar", "semi-external", "louvain", "random"]


def ring(nodes):
    return [(i, (i + 1) % nodes) for i in range(nodes)]


@pytest.mark.parametrize("method", SEEDED)
def test_same_seed_same_assignment_other_seed_another(cora, method):
    first, again, other = (partition(cora, PartitionOptions(method, 10, seed=s)) for s in (0, 0, 1))
    np.testing.assert_array_equal(first, again)
    assert (first != other).any()


@pytest.mark.parametrize("method", SEEDED)
@pytest.mark.parametrize("clients", [1, 3, 11, 12])
@pytest.mark.parametrize("edges", [[], [(0, 1)], ring(12)], ids=["no edges", "one edge", "ring"])
def test_every_client_of_a_tiny_graph_has_a_node(make_graph, method, clients, edges):
    assignment = partition(make_graph(12, edges), PartitionOptions(method, clients))
    assert assignment.dtype == np.int32
    assert assignment.shape == (12,)
    assert set(assignment.tolist()) == set(range(clients))


def test_labelled_mask_decides_what_is_balanced(make_graph):
    mask = np.zeros(40, dtype=bool)
    mask[:4] = True
    assignment = partition(make_graph(40, ring(40)), PartitionOptions("louvain", 4, balance="labelled"), mask)
    assert sorted(assignment[:4].tolist()) == [0, 1, 2, 3]


def test_without_a_mask_every_label_counts(make_graph):
    y = [0, 0, 0] + [-1] * 37
    graph = make_graph(40, ring(40), y)
    assignment = partition(graph, PartitionOptions("louvain", 3, balance="labelled"))
    assert sorted(assignment[:3].tolist()) == [0, 1, 2]


def test_more_clients_than_nodes(make_graph):
    with pytest.raises(ShoalError, match=r"^partition.clients is 13, .* has 12 nodes: .*1 to 12$"):
        partition(make_graph(12, ring(12)), PartitionOptions("metis", 13))
