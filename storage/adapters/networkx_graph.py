"""NetworkX's graphs, in; the library itself is not imported."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from shoal.storage.datasets.user.incoming import MASKS, graph_of
from shoal.storage.errors import ShoalError
from shoal.storage.graph.graph import Graph
from shoal.storage.graph.labels import coded_labels

Y, WEIGHT = "label", "weight"


def from_networkx(graph: Any, x: str | Sequence[str], name: str = "graph", y: str = Y) -> Graph:
    """The graph of a `networkx.Graph` or of one of its kinds: edges made undirected and simple.

    Nodes are numbered in the order in which the graph has them, and may have the attributes `train_mask`, `val_mask`,
    `test_mask` (truth values) and `assignment` (number of the client). Of edges the attribute `weight` is read, 1 where
    there is none, and no other.

    Args:
        graph: The graph, then called `name`; nodes that are texts or whole numbers keep these as ids.
        x: Attribute of the features, a number or a list of numbers a node; or several such attributes, one column
            each, named after what they stand for.
        y: Attribute of the labels: whole numbers or names; None, "" and -1 are unlabelled, like a missing attribute.

    Raises:
        ShoalError: An attribute is missing at a node or of a wrong type, or a weight is not positive.
    """
    nodes = list(graph.nodes)
    if not nodes:
        raise ShoalError("graph", "has no nodes; there is nothing to learn")
    number_of = {node: number for number, node in enumerate(nodes)}
    ends = np.array([(number_of[one], number_of[other]) for one, other in graph.edges()], dtype=np.int64)
    weights = [_weight(*edge) for edge in graph.edges(data=WEIGHT, default=1)]
    columns = [x] if isinstance(x, str) else list(x)
    rows = [np.array(_values(graph, nodes, column)) for column in columns]
    values: dict[str, Any] = {"edge_index": ends.reshape(-1, 2).T, "edge_weight": np.array(weights, dtype=np.float64)}
    texts = [str(node) for node in nodes]
    if all(isinstance(node, int | str) for node in nodes) and len({*texts}) == len(nodes):
        values["ids"] = np.array(texts)
    values["x"] = np.stack(rows, axis=1) if len(rows) > 1 or rows[0].ndim == 1 else rows[0]
    if not isinstance(x, str):
        values["vocabulary"] = np.array(columns)
    labels = np.array([graph.nodes[node].get(y) for node in nodes], dtype=object)
    values["y"], values["label_names"] = coded_labels(labels, f"graph.nodes[...][{y!r}]")
    for key in (*MASKS, "assignment"):
        if any(key in graph.nodes[node] for node in nodes):
            values[key] = np.array(_values(graph, nodes, key))
    where = {key: f"graph.nodes[...][{key!r}]" for key in (*values, *MASKS)}
    where |= {"x": f"graph.nodes[...][{x!r}]", "y": f"graph.nodes[...][{y!r}]"}
    where |= dict.fromkeys(("edge_index", "edge_weight"), "graph.edges")
    return graph_of(name, values, where)


def _weight(one: Any, other: Any, weight: Any) -> float:
    """The weight of an edge, which is a positive number."""
    if not isinstance(weight, int | float | np.number) or not 0 < weight < float("inf"):
        raise ShoalError(
            "graph",
            f"edge {one!r}, {other!r} has weight {weight!r}; the weight of an edge is positive and finite: "
            "change it, or delete it",
        )
    return float(weight)


def _values(graph: Any, nodes: list[Any], key: str) -> list[Any]:
    """An attribute of every node; all are of one length."""
    found: list[Any] = []
    for node in nodes:
        if (value := graph.nodes[node].get(key)) is None:
            raise ShoalError(f"graph.nodes[{node!r}][{key!r}]", "missing; every node needs one")
        if np.shape(value) != np.shape(found[0] if found else value):
            raise ShoalError(f"graph.nodes[{node!r}][{key!r}]", "of another length than those of other nodes")
        found.append(value)
    return found
