"""Datasets of graphs: graphs are divided, and a node goes with its graph."""

from dataclasses import replace

import numpy as np
import pytest
from support.errors import refused

from shoal.partition.methods.cover import NO_CLIENT
from shoal.partition.methods.options import PartitionOptions
from shoal.partition.partitioning import METHODS, OF_ITEMS, partition
from shoal.partition.quality import quality
from shoal.storage.graph.graph import Domain

SIZES = [3, 1, 2, 4, 1, 5, 2, 2]


@pytest.fixture
def many(make_graph):
    """Eight graphs, each a path, with labels 0 1 2 0 1 2 0 and none."""
    first = np.cumsum([0, *SIZES])
    edges = [(v, v + 1) for f, size in zip(first, SIZES) for v in range(f, f + size - 1)]
    graph = make_graph(sum(SIZES), edges, [0, 1, 2, 0, 1, 2, 0, -1], classes=3)
    return replace(graph, graph_of=np.repeat(np.arange(8), SIZES))


def clients_of_graphs(assignment):
    own = [set(assignment[first : first + size].tolist()) for first, size in zip(np.cumsum([0, *SIZES]), SIZES)]
    assert all(len(clients) == 1 for clients in own)
    return [clients.pop() for clients in own]


def test_graphs_take_turns_along_a_permutation(many):
    assignment = partition(many, PartitionOptions("random", 3))
    assert (assignment.shape, assignment.dtype) == ((20,), np.int32)
    assert sorted(np.bincount(clients_of_graphs(assignment)).tolist()) == [2, 3, 3]


def test_pieces_of_consecutive_graphs(many):
    assert (
        clients_of_graphs(partition(many, PartitionOptions("index", 2, chunks=3)))
        == [0, 0, 0, 1, 1, 1] + [NO_CLIENT] * 2
    )


def test_a_client_for_every_graph(many, tmp_path):
    np.save(tmp_path / "a.npy", [1, 0, 1, 0, 0, 1, 1, 0])
    chosen = PartitionOptions("file", 2, file=str(tmp_path / "a.npy"))
    assert clients_of_graphs(partition(many, chosen)) == [1, 0, 1, 0, 0, 1, 1, 0]
    own = replace(many, assignment=np.arange(8, dtype=np.int32) % 2)
    assert clients_of_graphs(partition(own, PartitionOptions("file", 2))) == [0, 1] * 4
    np.save(tmp_path / "a.npy", np.zeros(20, dtype=np.int64))
    with refused(f"{tmp_path}/a.npy", says="must be integers of shape [8], found int64 [20]"):
        partition(many, chosen)


def test_domains_are_divided_each_by_itself(many, tmp_path):
    two = replace(many, domains=(Domain("a", 6), Domain("b", 14)))
    found = clients_of_graphs(partition(two, PartitionOptions("random", clients=[2, 3])))
    assert sorted(set(found[:3])) == [0, 1]
    assert sorted(set(found[3:])) == [2, 3, 4]
    with refused(says="partition.clients is 4, but dataset 'a' has 3 graphs"):
        partition(two, PartitionOptions("random", clients=[4, 3]))
    np.save(tmp_path / "a.npy", [0, 1, 0, 1, 2, 3, 4, 2])
    strange = PartitionOptions("file", clients=[2, 3], file=str(tmp_path / "a.npy"))
    with refused("partition.file", says="client 1 has a graph of b"):
        partition(two, strange)
    np.save(tmp_path / "a.npy", [0, 1, 0, 3, 2, 3, 4, 2])
    assert clients_of_graphs(partition(two, strange)) == [0, 1, 0, 3, 2, 3, 4, 2]


@pytest.mark.parametrize("method", sorted(METHODS.keys() - set(OF_ITEMS)))
def test_methods_that_follow_edges_are_refused(many, method):
    with refused("partition.method"):
        partition(many, PartitionOptions(method, 2))


def test_quality_counts_nodes_and_the_labels_of_graphs(many):
    """Client 0 has graphs 0, 1, 7 of labels 0, 1, none; client 1 has 2 to 5 of 2, 0, 1, 2; nobody has 6."""
    assignment = np.repeat(np.array([0, 0, 1, 1, 1, 1, NO_CLIENT, 0]), SIZES).astype(np.int32)
    found = quality(many, assignment, 2)
    assert found.nodes == (6, 12)
    assert found.entries == (6, 16)
    assert found.isolated == (1, 1)
    assert found.labelled == (2, 4)
    assert found.classes == (2, 3)
    # All labels that a client holds: 2, 2, 2 of six.
    own, all_ = np.array([[1 / 2, 1 / 2, 0], [1 / 4, 1 / 4, 1 / 2]]), np.full(3, 1 / 3)
    assert found.label_skew == pytest.approx(np.abs(own - all_).sum(1).mean() / 2)
