"""All methods by name; each of several graphs is divided by itself, its clients after those of the graphs before it."""

from dataclasses import replace

import numpy as np
import pytest
from support.errors import refused

from shoal.partition.methods.cover import NO_CLIENT
from shoal.partition.methods.options import PartitionOptions
from shoal.partition.partitioning import partition
from shoal.storage.datasets.domains import joined

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
    with refused(says="partition.clients is 13, but dataset 'small' has 12 nodes"):
        partition(make_graph(12, ring(12)), PartitionOptions("metis", 13))


LINE = [(i, i + 1) for i in range(11)]


@pytest.fixture
def both(make_graph):
    first, second = make_graph(12, LINE), make_graph(7, LINE[:6])
    return first, second, joined([replace(first, name="first"), replace(second, name="second")])


@pytest.mark.parametrize("method", ["random", "metis", "louvain", "index", "semi-external"])
def test_each_is_divided_as_if_alone(both, method):
    first, second, graph = both
    together = partition(graph, PartitionOptions(method, clients=[3, 2], seed=4))
    alone = [partition(g, PartitionOptions(method, k, seed=4)) for g, k in ((first, 3), (second, 2))]
    np.testing.assert_array_equal(together, np.concatenate([alone[0], alone[1] + 3]))


def test_chunks_are_those_of_every_graph(both):
    assignment = partition(both[2], PartitionOptions("index", clients=[2, 1], chunks=3))
    assert assignment.tolist() == [0] * 4 + [1] * 4 + [NO_CLIENT] * 4 + [2] * 3 + [NO_CLIENT] * 4


def test_a_graph_smaller_than_its_clients_is_named(both):
    with refused(says="partition.clients is 8, but dataset 'second' has 7 nodes"):
        partition(both[2], PartitionOptions("random", clients=[2, 8]))


def test_a_file_must_not_mix_domains(both, tmp_path):
    file = tmp_path / "clients.npy"
    given = np.concatenate([np.arange(12) % 3, 3 + np.arange(7) % 2])
    np.save(file, given)
    options = PartitionOptions("file", clients=[3, 2], file=str(file))
    np.testing.assert_array_equal(partition(both[2], options), given)
    given[5] = 4
    np.save(file, given)
    with refused("partition.file"):
        partition(both[2], options)
