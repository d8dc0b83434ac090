"""A clean graph from PyTorch Geometric's `Data`, or from a list of them."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from torch_geometric.data import Data, TemporalData

from shoal.storage.datasets.user.hetero_data import graph_of_kinds, is_hetero_data
from shoal.storage.datasets.user.incoming import (
    MASKS,
    edges_of,
    graph_of,
    label_values,
    require_values,
    to_array,
)
from shoal.storage.datasets.user.unread import WEIGHTS, meaning, require_read
from shoal.storage.errors import ShoalError
from shoal.storage.graph.graph import Graph, require_edges
from shoal.storage.options.target_names import CLASSIFICATION, Target

# A graph of a list has one value of these.
OF_GRAPHS = (*MASKS, "assignment")
READ = ("x", "y", "edge_index", "edge_weight", "edge_attr", *OF_GRAPHS)


def from_pyg(
    data: Data | Sequence[Data], name: str = "graph", called: str = "data", target: Target = CLASSIFICATION
) -> Graph:
    """Makes the graph, called `name`, of a `Data`, or many small graphs of a list: edges undirected and simple.

    Args:
        data: Has `edge_index` or `adj_t` (a sparse tensor of torch, or a torch_sparse `SparseTensor`, whose values are
            the weights of edges), `x`, dense or sparse; it may have `y`, one class a node (-1 or NaN is none),
            `edge_weight`, positive numbers, `edge_attr`, D numbers an edge, `train_mask`, `val_mask`, `test_mask`, and
            `assignment`, the client of every node. Of a list each has edges without weights, `x` of one width, one
            label `y`, and one entry of each mask and of `assignment`; so has a `Batch`, or a `Data` with the graph of
            every node, `batch`. A `HeteroData` has kinds of nodes and edges, and labels of one kind
            (`shoal.storage.datasets.sources.kinds.join_kinds`).
        called: What `data` is called in error messages.
        target: What `y` are, as the config's `target`: classes, or numbers or labels `[nodes, T]`, of a graph of a list
            `[1, T]`.

    Raises:
        ShoalError: An attribute is missing, of a wrong shape, type or value, or it tells something of edges, parts or
            clients and is not read (`edge_type`, `node_type`, `train_idx`); names it. A warning names all others.
    """
    return graph_of_data(data, name, called, take_out, target=target)


def take_out(key: str) -> str:
    """Says how a user takes an attribute out."""
    return f"take it out (del data.{key})"


def graph_of_data(
    data: Any,
    name: str,
    called: str,
    way_out: Callable[[str], str],
    own: bool = True,
    warns: bool = True,
    target: Target = CLASSIFICATION,
) -> Graph:
    """Makes the graph of `from_pyg`; `way_out` says how a user takes an attribute out.

    `own`: labels are coded (`shoal.storage.graph.labels.coded_labels`); else y are numbers of published classes.
    `warns` of attributes that are not read. `target` says what y are.
    """
    if isinstance(data, list | tuple):
        return _of_many(data, name, called, way_out, own, warns, target)
    if is_hetero_data(data):
        return graph_of_kinds(data, name, called, way_out, own, warns, target)
    if isinstance(data, TemporalData):
        raise ShoalError(called, "is a TemporalData, and graphs over time are not supported; give a Data")
    if not isinstance(data, Data):
        raise ShoalError(
            called,
            f"must be a torch_geometric Data or HeteroData, found {type(data).__name__}; take dataset[0], of a dataset "
            "of graphs list(dataset)",
        )
    require_tensors(data, called)
    values, where = _values(data, called)
    places_of = {key: f"{called}.{key}" for key in data.to_dict()}
    require_read(places_of, (*READ, "batch", *_adjacency(data)), way_out, features_of_edges(data), warns=warns)
    if (rows := _length(data.x)) is not None and data.num_nodes != rows:
        raise ShoalError(where["x"], f"{rows} rows for {data.num_nodes} nodes; one a node")
    if getattr(data, "batch", None) is not None:
        values["graph"], where["graph"] = data.batch, f"{called}.batch"
    return graph_of(name, values, where, own, target)


def require_tensors(data: Data, called: str) -> None:
    """Refuses tensors that no array can hold, and features that are one number; before a shape is asked for."""
    for key, value in data.to_dict().items():
        require_values(value, f"{called}.{key}")
    if getattr(data.x, "shape", None) == ():
        raise ShoalError(f"{called}.x", "expected [nodes, features], got []")


def features_of_edges(data: Data) -> list[str]:
    """Names weights of edges, and features but `edge_attr`: by the name, or by an entry an edge and not a node."""
    shape: Any = getattr(data.edge_index, "shape", ())
    edges = shape[1] if len(shape) == 2 and 1 < shape[1] != _length(data.x) else -1
    named = [key for key in data.to_dict() if meaning(key) == WEIGHTS and key != "edge_index"]
    others = [key for key in data.to_dict() if key not in READ and _length(data[key]) == edges]
    return [key for key in dict.fromkeys(named + others) if key != "edge_attr"]


def _length(value: Any) -> int | None:
    """Counts the entries of a tensor or an array; None for others."""
    shape: Any = getattr(value, "shape", ())
    return shape[0] if len(shape) else None


def _adjacency(data: Data) -> tuple[str, ...]:
    """Returns the other name of edges, if they are not in `edge_index`."""
    return ("adj_t",) if data.edge_index is None else ()


def _values(data: Data, called: str) -> tuple[dict[str, Any], dict[str, str]]:
    """Attributes of a `Data`, and the name of each in error messages."""
    values: dict[str, Any] = {key: getattr(data, key, None) for key in READ}
    where = {key: f"{called}.{key}" for key in values}
    if values["edge_index"] is None and getattr(data, "adj_t", None) is not None:
        where["edge_index"] = where["edge_weight"] = f"{called}.adj_t"
        values["edge_index"], values["edge_weight"] = edges_of(data.adj_t, where["edge_index"])
        if values["edge_attr"] is not None:
            raise ShoalError(where["edge_attr"], "are features of edges in another order than adj_t; give edge_index")
    return values, where


def _of_many(
    graphs: Sequence[Any],
    name: str,
    called: str,
    way_out: Callable[[str], str],
    own: bool,
    warns: bool,
    target: Target,
) -> Graph:
    """Puts many small graphs behind one another, each with one label; names the first that is wrong."""
    if not graphs:
        raise ShoalError(called, "an empty list; give at least one graph")
    parts: list[list[np.ndarray]] = [[], [], []]
    sizes: list[int] = []
    names: dict[str, str] = {}
    of_graphs: dict[str, list[np.ndarray]] = {}
    of_edges: list[np.ndarray] = []
    for number, data in enumerate(graphs):
        place = f"{called}[{number}]"
        if not isinstance(data, Data):
            raise ShoalError(place, f"must be a torch_geometric Data, found {type(data).__name__}")
        require_tensors(data, place)
        values, where = _values(data, place)
        names = {key: f"{place}.{key}" for key in data.to_dict() if key not in _adjacency(data)} | names
        if values["edge_weight"] is not None and (_array(values["edge_weight"], where["edge_weight"]) != 1).any():
            raise ShoalError(where["edge_weight"], "many small graphs have no weights of edges here; take them out")
        values["y"] = label_values(values["y"])
        x, edge_index, y = (_array(values[key], where[key]) for key in ("x", "edge_index", "y"))
        first = parts[0][0] if parts[0] else x
        width = first.shape[1] if first.ndim == 2 else "features"
        if x.ndim != 2 or not len(x) or x.shape[1] != width:
            raise ShoalError(where["x"], f"must be [nodes, {width}] of one node or more, found {list(x.shape)}")
        # A column a class, of one graph.
        row = y.reshape(1) if y.size == 1 else y
        label = parts[2][0] if parts[2] else row
        if row.ndim != label.ndim or row.shape != (1, *label.shape[1:]):
            raise ShoalError(where["y"], f"must be the one label of the graph, found {list(y.shape)}")
        require_edges(edge_index, where["edge_index"])
        if edge_index.size and not 0 <= edge_index.min() <= edge_index.max() < len(x):
            raise ShoalError(where["edge_index"], f"names a node outside 0 to {len(x) - 1}")
        for key in OF_GRAPHS:
            if values[key] is not None:
                value = _array(values[key], where[key])
                if value.size != 1:
                    raise ShoalError(where[key], f"must be one value for the graph, found {list(value.shape)}")
                of_graphs.setdefault(key, []).append(value.reshape(1))
        if values["edge_attr"] is not None:
            attr = _array(values["edge_attr"], where["edge_attr"])
            attr = attr[:, None] if attr.ndim == 1 else attr
            others = of_edges[0].shape[1] if of_edges else attr.shape[-1]
            if attr.shape != (edge_index.shape[1], others):
                wanted = f"[{edge_index.shape[1]}, {others}]"
                raise ShoalError(
                    where["edge_attr"], f"must be {wanted}, features of its edges, found {list(attr.shape)}"
                )
            of_edges.append(attr)
        for kept, array in zip(parts, (x, edge_index + sum(sizes), row)):
            kept.append(array)
        sizes.append(len(x))
    require_read(names, READ, way_out, warns=warns)
    for key, given in of_graphs.items():
        if len(given) < len(graphs):
            raise ShoalError(f"{called}[...].{key}", f"{len(given)} of {len(graphs)} graphs have it; give it to all")
    for key in MASKS:
        if key in of_graphs and np.all(of_graphs[key]):
            raise ShoalError(f"{called}[...].{key}", f"is true for all graphs, which is no split; {way_out(key)}")
    if of_edges and len(of_edges) < len(graphs):
        raise ShoalError(f"{called}[...].edge_attr", f"{len(of_edges)} of {len(graphs)} graphs have it; give it to all")
    x, edge_index, y = (np.concatenate(kept, axis=axis) for kept, axis in zip(parts, (0, 1, 0)))
    graph = np.repeat(np.arange(len(sizes)), sizes)
    joined = {"x": x, "edge_index": edge_index, "y": y, "graph": graph} | {
        key: np.concatenate(given) for key, given in of_graphs.items()
    }
    if of_edges:
        joined["edge_attr"] = np.concatenate(of_edges)
    return graph_of(name, joined, {key: f"{called}[...].{key}" for key in (*joined, *MASKS)}, own, target)


def _array(value: Any, where: str) -> np.ndarray:
    """Makes a dense array of a tensor, or of a number."""
    if value is None:
        raise ShoalError(where, "missing; a graph needs edges, features and a label")
    array = to_array(np.asarray(value) if isinstance(value, int | float | str) else value, where)
    return array if isinstance(array, np.ndarray) else array.toarray()
