import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.partition.quality import quality
from shoal.storage.graph.induced import kept_entries


def test_a_graph_one_can_check_by_hand(make_graph):
    # 0-1-2-3-4 with 5 alone; clients {0, 1, 5}, {2, 3}, {4}; node 3 has no label.
    graph = make_graph(6, [(0, 1), (1, 2), (2, 3), (3, 4)], y=[0, 0, 1, -1, 1, 0], classes=2)
    result = quality(graph, np.array([0, 0, 1, 1, 2, 0]), 3)
    assert result.cut_fraction == 0.5
    assert result.balance == 1.5
    assert (result.nodes_min, result.nodes_median, result.nodes_max) == (1, 2.0, 3)
    assert result.nodes == (3, 2, 1)
    assert result.entries == (2, 2, 0)
    assert result.labelled == (3, 1, 1)
    assert result.classes == (1, 1, 1)
    assert result.isolated == (1, 0, 1)
    assert result.clients_without_edges == 1
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
    assert json.loads(json.dumps(found.as_dict()))["nodes"] == list(found.nodes)


@given(data=st.data())
def test_against_a_loop_over_edges_in_blocks_of_any_size(make_graph, data):
    nodes = data.draw(st.integers(1, 15))
    clients = data.draw(st.integers(1, nodes))
    node = st.integers(0, nodes - 1)
    graph = make_graph(nodes, data.draw(st.lists(st.tuples(node, node), max_size=40)))
    others = st.lists(st.integers(0, clients - 1), min_size=nodes - clients, max_size=nodes - clients)
    assignment = np.array(data.draw(st.permutations([*range(clients), *data.draw(others)])))

    kept = [
        sum(assignment[u] == assignment[v] for v in graph.indices[graph.indptr[u] : graph.indptr[u + 1]])
        for u in range(nodes)
    ]
    block = data.draw(st.integers(1, 50))
    assert kept_entries(graph.indptr, graph.indices, assignment, block).tolist() == kept

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
