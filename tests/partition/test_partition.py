"""All methods by name, of one graph, of several that are divided each by itself, of datasets of graphs; quality."""

import json
from dataclasses import replace
from unittest.mock import patch

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.errors import refused

from shoal.partition.methods.cover import NO_CLIENT
from shoal.partition.methods.options import PartitionOptions
from shoal.partition.partitioning import METHODS, OF_ITEMS, partition
from shoal.partition.quality import quality
from shoal.storage.datasets.domains import join_domains
from shoal.storage.graph import induced
from shoal.storage.graph.graph import Domain
from shoal.storage.graph.induced import kept_entries

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
    assert (assignment.dtype, assignment.shape, set(assignment)) == (np.int32, (12,), set(range(clients)))


def test_labels_or_a_mask_decide_what_is_balanced(make_graph):
    mask = np.arange(40) < 4
    assignment = partition(make_graph(40, ring(40)), PartitionOptions("louvain", 4, balance="labelled"), mask)
    assert sorted(assignment[:4].tolist()) == [0, 1, 2, 3]
    # Without a mask every label counts.
    graph = make_graph(40, ring(40), [0, 0, 0] + [-1] * 37)
    assignment = partition(graph, PartitionOptions("louvain", 3, balance="labelled"))
    assert sorted(assignment[:3].tolist()) == [0, 1, 2]


LINE = [(i, i + 1) for i in range(11)]


@pytest.fixture
def both(make_graph):
    first, second = make_graph(12, LINE), make_graph(7, LINE[:6])
    return first, second, join_domains([replace(first, name="first"), replace(second, name="second")])


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
    for graph, clients, name, most in ((both[0], 13, "small", 12), (both[2], [2, 8], "second", 7)):
        with refused(says=f"but dataset {name!r} has {most} nodes"):
            partition(graph, PartitionOptions("random", clients=clients))


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


def test_graphs_take_turns_along_a_permutation_or_lie_in_pieces(many):
    assignment = partition(many, PartitionOptions("random", 3))
    assert (assignment.shape, assignment.dtype) == ((20,), np.int32)
    assert sorted(np.bincount(clients_of_graphs(assignment)).tolist()) == [2, 3, 3]
    found = clients_of_graphs(partition(many, PartitionOptions("index", 2, chunks=3)))
    assert found == [0, 0, 0, 1, 1, 1] + [NO_CLIENT] * 2


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
    assert (sorted(set(found[:3])), sorted(set(found[3:]))) == ([0, 1], [2, 3, 4])
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
    assert (found.nodes, found.entries, found.isolated) == ((6, 12), (6, 16), (1, 1))
    assert (found.labelled, found.classes) == ((2, 4), (2, 3))
    # All labels that a client holds: 2, 2, 2 of six.
    own, all_ = np.array([[1 / 2, 1 / 2, 0], [1 / 4, 1 / 4, 1 / 2]]), np.full(3, 1 / 3)
    assert found.label_skew == pytest.approx(np.abs(own - all_).sum(1).mean() / 2)


def test_a_graph_one_can_check_by_hand(make_graph):
    # 0-1-2-3-4 with 5 alone; clients {0, 1, 5}, {2, 3}, {4}; node 3 has no label.
    graph = make_graph(6, [(0, 1), (1, 2), (2, 3), (3, 4)], y=[0, 0, 1, -1, 1, 0], classes=2)
    result = quality(graph, np.array([0, 0, 1, 1, 2, 0]), 3)
    assert (result.cut_fraction, result.balance, result.clients_without_edges) == (0.5, 1.5, 1)
    assert (result.nodes, result.nodes_min, result.nodes_median, result.nodes_max) == ((3, 2, 1), 1, 2.0, 3)
    assert (result.entries, result.isolated) == ((2, 2, 0), (1, 0, 1))
    assert (result.labelled, result.classes) == ((3, 1, 1), (1, 1, 1))
    # All labels: 3/5 of class 0. Client 0 has only class 0: distance 2/5; the others only class 1: 3/5.
    assert result.label_skew == pytest.approx((0.4 + 0.6 + 0.6) / 3)


@pytest.mark.parametrize(
    ("y", "clients", "skew"),
    [
        ([0, 1, 0, 1], [0, 0, 1, 1], 0),
        ([0, 1, 0, 1], [0, 1, 0, 1], 0.5),
        ([0, 1, -1], [0, 0, 1], 0),
        ([-1, -1], [0, 1], 0),
    ],
)
def test_label_skew_is_of_clients_with_labels(make_graph, y, clients, skew):
    found = quality(make_graph(len(y), [], y=y, classes=2), np.array(clients), 2)
    assert (found.label_skew, found.cut_fraction) == (skew, 0)
    assert json.loads(json.dumps(found.as_dict()))["nodes_max"] == max(found.nodes)


@given(data=st.data())
def test_against_a_loop_over_edges_in_blocks_of_any_size(draw_graph, data):
    graph = draw_graph(data, 15, 40)
    nodes, clients = graph.nodes, data.draw(st.integers(1, graph.nodes))
    others = st.lists(st.integers(0, clients - 1), min_size=nodes - clients, max_size=nodes - clients)
    assignment = np.array(data.draw(st.permutations([*range(clients), *data.draw(others)])))

    kept = [
        sum(assignment[u] == assignment[v] for v in graph.indices[graph.indptr[u] : graph.indptr[u + 1]])
        for u in range(nodes)
    ]
    with patch.multiple(induced, ROWS=data.draw(st.integers(1, 9)), ENTRIES_A_BLOCK=data.draw(st.integers(1, 50))):
        assert kept_entries(graph.indptr, graph.indices, assignment).tolist() == kept

    result = quality(graph, assignment, clients)
    members = [[u for u in range(nodes) if assignment[u] == c] for c in range(clients)]
    assert result.entries == tuple(sum(kept[u] for u in mine) for mine in members)
    assert result.isolated == tuple(sum(kept[u] == 0 for u in mine) for mine in members)
    assert result.nodes == tuple(len(mine) for mine in members)
    if graph.entries:
        assert result.cut_fraction == pytest.approx(1 - sum(kept) / graph.entries)


@pytest.mark.parametrize("name", ["Cora-louvain10", "Cora-metis10"])
def test_published_partitions_have_their_published_quality(cora, reference, name):
    info = json.loads((reference / name / "info.json").read_text())
    result = quality(cora, np.load(reference / name / "assignment.npy"), 10)
    assert result.cut_fraction == pytest.approx(info["cut_fraction"], abs=1e-12)
    assert list(result.nodes) == info["sizes"]
    assert sum(result.isolated) == info["isolated_nodes_after_cut"]
    assert list(result.classes) == info["classes_present"]
