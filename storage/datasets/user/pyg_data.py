"""A clean graph from PyTorch Geometric's `Data`, or from a list of them."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from torch_geometric.data import Data

from shoal.storage.datasets.user.incoming import MASKS, edges_of, graph_of, to_array
from shoal.storage.errors import ShoalError
from shoal.storage.graph.graph import Graph


def from_pyg(data: Data | Sequence[Data], name: str = "graph", called: str = "data", own: bool = True) -> Graph:
    """The graph, called `name`, of a `Data`, or many small graphs of a list: edges made undirected and simple.

    Args:
        data: Has `edge_index` or `adj_t` (a sparse tensor of torch, or a torch_sparse `SparseTensor`, whose values are
            the weights of edges), `x`, dense or sparse; it may have `y`, one class a node (-1 or NaN is none),
            `edge_weight`, positive numbers, `train_mask`, `val_mask`, `test_mask`, and `assignment`, the client of
            every node. Of a list each has edges without weights, `x` of one width, and one label `y`. `edge_attr`,
            features of edges, is not read.
        called: What `data` is called in error messages.
        own: Labels are coded (`shoal.storage.graph.labels.coded_labels`); else y are numbers of published classes.

    Raises:
        ShoalError: An attribute is missing, or of a wrong shape, type or value; names it.
    """
    if isinstance(data, list | tuple):
        return _of_many(data, name, called, own)
    if not isinstance(data, Data):
        raise ShoalError(
            called,
            f"must be a torch_geometric Data, found {type(data).__name__}; take dataset[0], of a HeteroData "
            "to_homogeneous(), of a dataset of graphs list(dataset)",
        )
    return graph_of(name, *_values(data, called), own)


def _values(data: Data, called: str) -> tuple[dict[str, Any], dict[str, str]]:
    """Attributes of a `Data`, and the name of each in error messages."""
    keys = ("x", "y", "edge_index", "edge_weight", "assignment", *MASKS)
    values: dict[str, Any] = {key: getattr(data, key, None) for key in keys}
    where = {key: f"{called}.{key}" for key in values}
    if values["edge_index"] is None and getattr(data, "adj_t", None) is not None:
        where["edge_index"] = where["edge_weight"] = f"{called}.adj_t"
        values["edge_index"], values["edge_weight"] = edges_of(data.adj_t, where["edge_index"])
    return values, where


def _of_many(graphs: Sequence[Any], name: str, called: str, own: bool) -> Graph:
    """Many small graphs behind one another, each with one label; the first that is not what it must be is named."""
    if not graphs:
        raise ShoalError(called, "an empty list; give at least one graph")
    parts: list[list[np.ndarray]] = [[], [], []]
    sizes: list[int] = []
    for number, data in enumerate(graphs):
        one = f"{called}[{number}]"
        if not isinstance(data, Data):
            raise ShoalError(one, f"must be a torch_geometric Data, found {type(data).__name__}")
        values, where = _values(data, one)
        if values["edge_weight"] is not None and (_array(values["edge_weight"], where["edge_weight"]) != 1).any():
            raise ShoalError(where["edge_weight"], "many small graphs have no weights of edges here; take them out")
        x, edge_index, y = (_array(values[key], where[key]) for key in ("x", "edge_index", "y"))
        first = parts[0][0] if parts[0] else x
        if x.ndim != 2 or not len(x) or x.shape[1] != first.shape[1]:
            raise ShoalError(
                where["x"], f"must be [nodes, {first.shape[-1]}] of one node or more, found {list(x.shape)}"
            )
        if y.size != 1:
            raise ShoalError(where["y"], f"must be the one label of the graph, found {list(y.shape)}")
        if edge_index.ndim != 2 or len(edge_index) != 2 or edge_index.dtype.kind not in "iu":
            found = f"{edge_index.dtype} {list(edge_index.shape)}"
            raise ShoalError(where["edge_index"], f"must be integers of shape [2, E], found {found}")
        if edge_index.size and not 0 <= edge_index.min() <= edge_index.max() < len(x):
            raise ShoalError(where["edge_index"], f"names a node outside 0 to {len(x) - 1}")
        for kept, array in zip(parts, (x, edge_index + sum(sizes), y.reshape(1))):
            kept.append(array)
        sizes.append(len(x))
    x, edge_index, y = (np.concatenate(kept, axis=axis) for kept, axis in zip(parts, (0, 1, 0)))
    graph = np.repeat(np.arange(len(sizes)), sizes)
    joined = {"x": x, "edge_index": edge_index, "y": y, "graph": graph}
    return graph_of(name, joined, {key: f"{called}[...].{key}" for key in (*joined, *MASKS)}, own)


def _array(value: Any, where: str) -> np.ndarray:
    """A dense array of a tensor, or of a number."""
    if value is None:
        raise ShoalError(where, "missing; a graph needs edges, features and a label")
    array = to_array(np.asarray(value) if isinstance(value, int | float | str) else value, where)
    return array if isinstance(array, np.ndarray) else array.toarray()
