"""NetworkX's graphs, in; the library itself is not imported."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from shoal.storage.datasets.user.incoming import MASKS, graph_of
from shoal.storage.datasets.user.tables import PARTS, SPLIT
from shoal.storage.datasets.user.unread import CLIENTS, KINDS, PLACES, meaning, require_read
from shoal.storage.datasets.user.unread import PARTS as OF_PARTS
from shoal.storage.errors import ShoalError
from shoal.storage.graph.graph import Graph

Y, WEIGHT = "label", "weight"


def from_networkx(graph: Any, x: str | Sequence[str], name: str = "graph", y: str = Y) -> Graph:
    """Makes the graph of a `networkx.Graph` or of one of its kinds: edges undirected and simple.

    Nodes are numbered in the order in which the graph has them, and may have the attributes `train_mask`, `val_mask`,
    `test_mask` (truth values), or instead of them `split` (train, val or test, as in tables), and `assignment` (number
    of the client). Of edges the attribute `weight` is read, 1 where there is none.

    Args:
        graph: The graph, then called `name`; nodes that are texts or whole numbers keep these as ids.
        x: Attribute of the features, a number or a list of numbers a node; or several such attributes, one column
            each, named after what they stand for.
        y: Attribute of the labels, as `coded_labels` takes them; a node without it is unlabelled.

    Raises:
        ShoalError: An attribute is missing at a node or of a wrong type, a weight is not positive, or edges have other
            attributes, or nodes others that tell something of kinds, parts or clients.
    """
    if not hasattr(graph, "nodes") or not hasattr(graph, "edges"):
        raise ShoalError("graph", f"must be one graph of networkx, found {type(graph).__name__}")
    nodes = list(graph.nodes)
    if not nodes:
        raise ShoalError("graph", "has no nodes; there is nothing to learn")
    number_of = {node: number for number, node in enumerate(nodes)}
    ends = np.array([(number_of[source], number_of[target]) for source, target in graph.edges()], dtype=np.int64)
    weights = [_weight(*edge) for edge in graph.edges(data=WEIGHT, default=1)]
    columns = [x] if isinstance(x, str) else list(x)
    if not columns:
        raise ShoalError("x", "names no attribute; give that of the features")
    _require_read(graph, (*columns, y, *MASKS, SPLIT, "assignment"))
    rows = [np.array(_values(graph, nodes, column)) for column in columns]
    values: dict[str, Any] = {"edge_index": ends.reshape(-1, 2).T, "edge_weight": np.array(weights, dtype=np.float64)}
    texts = [str(node) for node in nodes]
    if all(isinstance(node, int | str) for node in nodes) and len({*texts}) == len(nodes):
        values["ids"] = np.array(texts)
    values["x"] = np.stack(rows, axis=1) if len(rows) > 1 or rows[0].ndim == 1 else rows[0]
    if not isinstance(x, str):
        values["vocabulary"] = np.array(columns)
    values["y"] = np.empty(len(nodes), dtype=object)
    values["y"][:] = [graph.nodes[node].get(y) for node in nodes]
    if y != Y and not any(y in graph.nodes[node] for node in nodes):
        raise ShoalError(f"graph.nodes[...][{y!r}]", "missing at every node")
    for key in (*MASKS, "assignment"):
        if any(key in graph.nodes[node] for node in nodes):
            values[key] = np.array(_values(graph, nodes, key))
    if any(SPLIT in graph.nodes[node] for node in nodes) and SPLIT not in (*columns, y):
        values[SPLIT] = np.array([_part(graph, node) for node in nodes], dtype=np.int8)
    where = {key: f"graph.nodes[...][{key!r}]" for key in (*values, *MASKS)}
    where |= {"x": f"graph.nodes[...][{x!r}]", "y": f"graph.nodes[...][{y!r}]"}
    where |= dict.fromkeys(("edge_index", "edge_weight"), "graph.edges")
    return graph_of(name, values, where)


def _require_read(graph: Any, read: Sequence[str]) -> None:
    """Refuses what edges have beside a weight, and what nodes have that is not read and has a meaning."""
    of_edges = {key: f"graph.edges[...][{key!r}]" for *_, attributes in graph.edges(data=True) for key in attributes}
    places = {**PLACES, "weight": WEIGHT, "parts": f"{SPLIT}, or from {PLACES['parts']}"}
    way_out = "take it out (for *_, edge in graph.edges(data=True): edge.pop({0!r}, None))".format
    require_read(of_edges, (WEIGHT,), way_out, of_edges, places)
    # Other attributes of nodes may be features, and which of these are read is what `x` says.
    names = {
        key
        for _, attributes in graph.nodes(data=True)
        for key in attributes
        if meaning(str(key)) in (KINDS, OF_PARTS, CLIENTS)
    }
    of_nodes = {key: f"graph.nodes[...][{key!r}]" for key in sorted(names)}
    way_out = "take it out (for _, node in graph.nodes(data=True): node.pop({0!r}, None))".format
    require_read(of_nodes, read, way_out, places=places)


def _part(graph: Any, node: Any) -> int:
    """Reads the part of a node, by the words of tables."""
    word = graph.nodes[node].get(SPLIT)
    if str("" if word is None else word) not in PARTS:
        raise ShoalError(f"graph.nodes[{node!r}][{SPLIT!r}]", f"{word!r}; it is train, val or test, or nothing")
    return PARTS[str("" if word is None else word)]


def _weight(one: Any, other: Any, weight: Any) -> float:
    """Reads the weight of an edge, which is a positive number."""
    if not isinstance(weight, int | float | np.number) or not 0 < weight < float("inf"):
        raise ShoalError(
            "graph",
            f"edge {one!r}, {other!r} has weight {weight!r}; the weight of an edge is positive and finite: "
            "change it, or delete it",
        )
    return float(weight)


def _values(graph: Any, nodes: list[Any], key: str) -> list[Any]:
    """Reads an attribute of every node; all are of one length."""
    values: list[Any] = []
    for node in nodes:
        if (value := graph.nodes[node].get(key)) is None:
            raise ShoalError(f"graph.nodes[{node!r}][{key!r}]", "missing; every node needs one")
        if np.shape(value) != np.shape(values[0] if values else value):
            raise ShoalError(f"graph.nodes[{node!r}][{key!r}]", "of another length than those of other nodes")
        values.append(value)
    return values
