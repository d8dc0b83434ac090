"""A clean graph from PyTorch Geometric's `HeteroData`: several kinds of nodes and of edges, labels of one kind."""

import warnings
from collections.abc import Callable
from typing import Any

import numpy as np

from shoal.storage.datasets.sources.kinds import NodeKind, Relation, join_kinds, values_of_kind
from shoal.storage.datasets.user.incoming import MASKS, edges_of, graph_of, to_array
from shoal.storage.datasets.user.unread import require_read
from shoal.storage.errors import ShoalError, Unread
from shoal.storage.graph.edge_features import numbers_of_edges
from shoal.storage.graph.graph import Graph
from shoal.storage.options.target_names import CLASSIFICATION, Target

OF_NODES = ("x", "y", "num_nodes", "assignment", *MASKS)
OF_EDGES = ("edge_index", "adj_t", "edge_attr")


def is_hetero_data(data: Any) -> bool:
    """Whether it is a `HeteroData`; PyG is not imported for it."""
    return any(cls.__name__ == "HeteroData" for cls in type(data).__mro__)


def graph_of_kinds(
    data: Any,
    name: str,
    called: str,
    way_out: Callable[[str], str],
    own: bool = True,
    warns: bool = True,
    target: Target = CLASSIFICATION,
) -> Graph:
    """Makes the graph of a `HeteroData`, see `join_kinds`; arguments are those of `graph_of_data`.

    One kind of nodes has labels `y`, and perhaps masks. Raises ShoalError: none or several have, or what
    `graph_of_data` refuses.
    """
    kinds: dict[str, NodeKind] = {}
    labelled = [kind for kind in data.node_types if getattr(data[kind], "y", None) is not None]
    if len(labelled) != 1:
        named = " and ".join(labelled) if labelled else "none"
        raise ShoalError(f"{called}.y", f"one kind of nodes has labels, found {named}; leave out those of the others")
    for kind in data.node_types:
        store, place = data[kind], f"{called}[{kind!r}]"
        require_read({key: f"{place}.{key}" for key in store.to_dict()}, OF_NODES, way_out, warns=warns)
        x = getattr(store, "x", None)
        if store.num_nodes is None:
            raise ShoalError(place, "has neither x nor num_nodes; give one of the two")
        kinds[kind] = NodeKind(int(store.num_nodes), None if x is None else to_array(x, f"{place}.x"))
    relations: dict[Relation, np.ndarray] = {}
    where: dict[Relation, str] = {}
    attrs: dict[Relation, np.ndarray] = {}
    for relation in data.edge_types:
        store, place = data[relation], f"{called}[{', '.join(map(repr, relation))}]"
        require_read({key: f"{place}.{key}" for key in store.to_dict()}, OF_EDGES, way_out, warns=warns)
        attr = getattr(store, "edge_attr", None)
        edges = getattr(store, "edge_index", None)
        where[relation] = f"{place}.edge_index"
        if edges is None and getattr(store, "adj_t", None) is not None:
            if attr is not None:
                raise ShoalError(
                    f"{place}.edge_attr", "are features of edges in another order than adj_t; give edge_index"
                )
            # Rows of a transposed adjacency receive.
            edges, weight = edges_of(store.adj_t, f"{place}.adj_t", square=False)
            edges = edges[::-1].copy()
            if weight is not None and (weight != 1).any() and warns:
                warnings.warn(
                    Unread(f"{place}.adj_t: its values are weights, which kinds of edges have not"), stacklevel=3
                )
        if edges is None:
            raise ShoalError(place, "has no edge_index; give its edges, or leave the relation out")
        relations[relation] = to_array(edges, where[relation])
        if attr is not None:
            called_attr, count = f"{place}.edge_attr", relations[relation].shape[-1]
            attrs[relation] = numbers_of_edges(to_array(attr, called_attr), count, called_attr)
    (kind,) = labelled
    values: dict[str, Any] = join_kinds(kinds, relations, where, attrs)
    labels = to_array(data[kind].y, f"{called}[{kind!r}].y")
    nothing = -1 if target == CLASSIFICATION else np.nan
    values["y"] = values_of_kind(labels, kind, kinds, nothing, f"{called}[{kind!r}].y")
    for key in MASKS:
        mask = getattr(data[kind], key, None)
        if mask is not None:
            where_mask = f"{called}[{kind!r}].{key}"
            values[key] = values_of_kind(to_array(mask, where_mask), kind, kinds, False, where_mask)
    values["assignment"] = _assignment(data, kinds, called)
    places = {key: f"{called}[{kind!r}].{key}" for key in OF_NODES}
    return graph_of(name, values, {**dict.fromkeys(values, called), **places}, own, target)


def _assignment(data: Any, kinds: dict[str, NodeKind], called: str) -> np.ndarray | None:
    """Returns the client of every node; None: no kind says it. Raises ShoalError: not all kinds do."""
    given = {kind: getattr(data[kind], "assignment", None) for kind in kinds}
    missing = [kind for kind, values in given.items() if values is None]
    if len(missing) == len(given):
        return None
    if missing:
        raise ShoalError(
            f"{called}[{missing[0]!r}]", "has no assignment, and other kinds have; give the client of every node"
        )
    every = []
    for kind, values in given.items():
        every.append(to_array(values, f"{called}[{kind!r}].assignment"))
        if every[-1].shape != (kinds[kind].nodes,):
            shape = list(every[-1].shape)
            raise ShoalError(
                f"{called}[{kind!r}].assignment", f"shape {shape}, but there are {kinds[kind].nodes} nodes of this kind"
            )
    return np.concatenate(every)
