"""The graphs of clients as one graph, from PyTorch Geometric's `Data` of each."""

from collections.abc import Sequence
from copy import copy
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch_geometric.data import Data

from shoal.storage.datasets.domains import join_domains
from shoal.storage.datasets.user.hetero_data import is_hetero_data
from shoal.storage.datasets.user.incoming import label_values, to_array
from shoal.storage.datasets.user.pyg_data import READ, graph_of_data, require_tensors, take_out
from shoal.storage.datasets.user.unread import require_read
from shoal.storage.errors import ShoalError
from shoal.storage.graph.graph import Graph
from shoal.storage.graph.labels import Names, coded_together
from shoal.storage.options.target_names import CLASSIFICATION, Target


def from_clients(
    graphs: Sequence[Data | Sequence[Data]], name: str = "clients", target: Target = CLASSIFICATION
) -> Graph:
    """Joins the graphs of all clients to one graph, called `name`, which says whose every node is.

    It is what a config takes as `data`, as in `shoal.run(config, data=shoal.from_clients(graphs))`; `save_graph` writes
    it for a config file. No edge joins two clients.

    Args:
        graphs: A `Data` a client, as `from_pyg` takes it, all with features of one width; their order is the number of
            the client. `y` are labels as `from_pyg` takes them, read as one column of all clients: equal ones are one
            class, and a class that no client has is none. Clients may lack edges, labels or training nodes. Masks of
            all clients are the split; where no client has masks, the config divides the nodes (`data.split`).
            With `task: graph` a client is a list of `Data`.
        target: What `y` are, as `from_pyg` takes it; numbers or labels of all clients are as many an item.

    Returns:
        The nodes of client 0, then those of client 1, and so on, and `assignment`, int32 `[items]`.

    Raises:
        ShoalError: Names the client, and what is wrong there: as `from_pyg`, no nodes, features of another width than
            client 0 has, or masks where client 0 has none or the other way round.
    """
    if not isinstance(graphs, list | tuple) or not graphs:
        got = "an empty one" if isinstance(graphs, list | tuple) else type(graphs).__name__
        raise ShoalError("graphs", f"expected a list with a torch_geometric Data of every client, got {got}")
    parts: list[Graph] = []
    names: dict[str, str] = {}
    for number, data in enumerate(graphs):
        client = f"client {number}"
        for graph in data if isinstance(data, list | tuple) else (data,):
            if is_hetero_data(graph):
                raise ShoalError(client, "is a HeteroData, of which one is taken alone; give clients by `assignment`")
            if isinstance(graph, Data):
                require_tensors(graph, client)
                names = {key: f"{client}.{key}" for key in graph.to_dict()} | names
                if graph.num_nodes == 0:
                    raise ShoalError(client, "has no nodes; leave the client out")
        if "assignment" in names:
            raise ShoalError(names["assignment"], f"the place in the list is the client; {take_out('assignment')}")
        unlabelled = _without_labels(data) if target == CLASSIFICATION else data
        part = graph_of_data(unlabelled, client, client, take_out, own=False, warns=False, target=target)
        first = parts[0] if parts else part
        if part.features != first.features:
            raise ShoalError(f"{client}.x", f"expected {first.features} features, as client 0 has, got {part.features}")
        if part.edge_features != first.edge_features:
            expected = f"expected {first.edge_features} features an edge, as client 0 has"
            raise ShoalError(f"{client}.edge_attr", f"{expected}, got {part.edge_features}; without edges [0, D]")
        if (part.split is None) != (first.split is None):
            fault = "has no masks, and client 0 has some" if part.split is None else "has masks, and client 0 has none"
            raise ShoalError(client, f"{fault}; give all clients masks, or none")
        parts.append(part)
    require_read(names, (*READ, "batch", "adj_t"), take_out)
    if target != CLASSIFICATION:
        parts = _with_targets(parts)
    whole = join_domains(parts) if len(parts) > 1 else parts[0]
    clients = np.repeat(np.arange(len(parts), dtype=np.int32), [part.items for part in parts])
    if target != CLASSIFICATION:
        return replace(whole, name=name, assignment=clients, domains=())
    y, label_names = _labels(graphs, parts)
    classes = int(y.max(initial=-1)) + 1
    return replace(whole, name=name, assignment=clients, domains=(), y=y, classes=classes, label_names=label_names)


def _with_targets(parts: Sequence[Graph]) -> list[Graph]:
    """Gives clients without labels targets that are all missing, as many as others have.

    Raises ShoalError: clients have different numbers of targets, or none has any.
    """
    of_clients = {part.name: part.classes for part in parts if part.target is not None}
    if not of_clients:
        raise ShoalError("client 0.y", "missing, at all clients; there is nothing to learn")
    first, count = next(iter(of_clients.items()))
    if other := next((name for name, targets in of_clients.items() if targets != count), None):
        raise ShoalError(f"{other}.y", f"expected {count} targets, as {first} has, got {of_clients[other]}")
    return [
        part if part.target is not None
        else replace(part, target=np.full((part.items, count), np.nan, np.float32), classes=count)
        for part in parts
    ]  # fmt: skip


def _without_labels(data: Any) -> Any:
    """Returns the same graph with as many labels, all of class 0: labels of all clients are read together."""
    if isinstance(data, list | tuple):
        return [_without_labels(graph) for graph in data]
    y = label_values(getattr(data, "y", None)) if isinstance(data, Data) else None
    if y is None:
        return data
    other = copy(data)
    other.y = torch.zeros(y.shape[:1], dtype=torch.int64)
    return other


def _labels(graphs: Sequence[Any], parts: Sequence[Graph]) -> tuple[np.ndarray, Names | None]:
    """Returns the class of every item of all clients, int64 `[items]`, -1 without `y`, and the names of classes."""
    columns, where, places = [], [], []
    before = 0
    for number, (data, part) in enumerate(zip(graphs, parts)):
        several = isinstance(data, list | tuple)
        for place, graph in enumerate(data if several else (data,)):
            at = f"client {number}[{place}].y" if several else f"client {number}.y"
            y = label_values(getattr(graph, "y", None))
            if y is not None:
                columns.append(to_array(y, at))
                where.append(at)
                places.append(before + place if several else before)
        before += part.items
    whole = np.full(before, -1)
    if not columns:
        return whole, None
    coded, names = coded_together(columns, where)
    for first, y in zip(places, coded):
        whole[first : first + len(y)] = y
    return whole, names
