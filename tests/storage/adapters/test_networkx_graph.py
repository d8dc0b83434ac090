"""Graphs of NetworkX: nodes in their order, names of classes, and every fault in one line."""

from typing import Any

import networkx as nx
import pytest
from support.errors import refused

from shoal.storage.adapters import from_networkx


def club() -> Any:
    graph = nx.DiGraph()
    for node, label in (("c", "owl"), ("a", None), (7, "ant"), ("b", "owl")):
        graph.add_node(node, h=len(str(node)) + 0.5, w=2, both=[1.0, 3.0], train_mask=node == "c", assignment=0)
        if label:
            graph.nodes[node]["label"] = label
    graph.add_edges_from([("c", "a"), ("a", "c"), ("a", 7), ("b", 7), ("b", "b")])
    return graph


def test_brings_back_what_is_there() -> None:
    graph = from_networkx(club(), ["h", "w"], name="club")
    assert (graph.indptr.tolist(), graph.indices.tolist()) == ([0, 1, 3, 5, 6], [1, 0, 2, 1, 3, 2])
    assert (graph.y.tolist(), graph.label_names) == ([1, -1, 0, 1], ("ant", "owl"))
    assert (graph.x.tolist(), graph.name) == ([[1.5, 2]] * 4, "club")
    assert graph.vocabulary is not None
    assert graph.vocabulary.tolist() == ["h", "w"]
    assert graph.split is not None
    assert graph.split.tolist() == [1, 0, 0, 0]
    assert graph.assignment is not None
    assert graph.assignment.tolist() == [0] * 4
    assert from_networkx(club(), "both").x.tolist() == [[1, 3]] * 4
    assert from_networkx(club(), "h").x.tolist() == [[1.5]] * 4
    assert from_networkx(nx.MultiGraph(club()), "h").indices.tolist() == [1, 0, 2, 1, 3, 2]


def test_weights_of_edges_and_one_where_there_is_none() -> None:
    graph = club()
    graph["b"][7]["weight"] = 2.5
    # Of c: a; of a: c and 7; of 7: a and b; of b: 7. The loop at b is taken out.
    found = from_networkx(graph, "h").edge_weight
    assert found is not None
    assert found.tolist() == [1, 1, 1, 1, 2.5, 2.5]
    assert from_networkx(club(), "h").edge_weight is None


def test_numbers_of_the_library_are_labels() -> None:
    graph = nx.karate_club_graph()
    nx.set_edge_attributes(graph, 1, "weight")
    nx.set_node_attributes(graph, dict(graph.degree()), "degree")
    found = from_networkx(graph, "degree", y="club")
    assert found.label_names == ("Mr. Hi", "Officer")
    assert (found.nodes, found.entries) == (34, 156)
    nx.set_node_attributes(graph, {node: node % 2 for node in graph}, "parity")
    found = from_networkx(graph, "degree", y="parity")
    assert (found.label_names, found.y.tolist()) == (None, [0, 1] * 17)


@pytest.mark.parametrize(
    ("change", "place", "says"),
    [
        (lambda g: g.nodes["a"].pop("h"), "graph.nodes['a']['h']", "missing"),
        (lambda g: g.nodes[7].update(h=[1, 2]), "graph.nodes[7]['h']", "of another length"),
        (lambda g: g.nodes[7].update(h="x"), "graph.nodes[...]['h']", "features must be numbers"),
        (lambda g: g.nodes[7].pop("assignment"), "graph.nodes[7]['assignment']", "missing"),
        (lambda g: g["a"][7].update(weight=-1), "graph", "edge 'a', 7 has weight -1"),
        (lambda g: g["a"][7].update(weight="far"), "graph", "edge 'a', 7 has weight 'far'"),
        (lambda g: g["a"][7].update(weight=float("inf")), "graph", "has weight inf"),
        (lambda g: g["a"][7].update(weight=float("nan")), "graph", "has weight nan"),
        (lambda g: g["a"]["c"].update(weight=3), "graph.edges", "weighs 1 and 3"),
        (lambda g: g.clear(), "graph", "has no nodes"),
    ],
)
def test_refuses(change: Any, place: str, says: str) -> None:
    graph = club()
    change(graph)
    with refused(place, says=says):
        from_networkx(graph, "h")
