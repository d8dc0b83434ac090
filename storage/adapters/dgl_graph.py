"""DGL's `DGLGraph`, in and out; DGL itself is imported only to make one."""

from typing import Any

import torch

from shoal.storage.adapters.outgoing import library, tensors_of
from shoal.storage.datasets.user.incoming import MASKS, graph_of
from shoal.storage.datasets.user.unread import PLACES, require_read
from shoal.storage.errors import ShoalError
from shoal.storage.graph.graph import Graph
from shoal.storage.store.shard import Shard
from shoal.storage.store.split import Split

X, Y = "feat", "label"
WEIGHTS = ("weight", "w")


def from_dgl(graph: Any, name: str = "graph", x: str = X, y: str = Y) -> Graph:
    """The graph, called `name`, of a `DGLGraph` of one kind of node: edges made undirected and simple.

    `ndata` holds features and labels under the keys `x` and `y`, and, if there are, `train_mask`, `val_mask`,
    `test_mask` and `assignment`, as `from_pyg` takes them; `edata` has the weights of edges, if they have any, under
    `weight` or `w`.

    Raises:
        ShoalError: Several kinds of node or edge, an entry is missing or wrong, or it tells something of edges, parts
            or clients and is not read; names it. A warning names all others.
    """
    if not hasattr(graph, "is_homogeneous"):
        raise ShoalError("graph", f"must be one DGLGraph, found {type(graph).__name__}")
    if not graph.is_homogeneous:
        raise ShoalError("graph", "has several kinds of node or edge; give dgl.to_homogeneous(graph)")
    keys = {"x": x, "y": y, **{key: key for key in ("assignment", *MASKS)}}
    values = {ours: graph.ndata.get(theirs) for ours, theirs in keys.items()}
    where = {ours: f"graph.ndata[{theirs!r}]" for ours, theirs in keys.items()}
    if y != Y and values["y"] is None:
        raise ShoalError(where["y"], "missing")
    _require_read("ndata", graph.ndata, tuple(keys.values()))
    _require_read("edata", graph.edata, WEIGHTS)
    if values["x"] is not None and len(values["x"]) != graph.num_nodes():
        raise ShoalError(where["x"], f"{len(values['x'])} rows for {graph.num_nodes()} nodes; one a node")
    # Edges in the order of their numbers, as `edata` has them.
    values["edge_index"], where["edge_index"] = torch.stack(graph.edges()), "graph.edges()"
    named = [key for key in WEIGHTS if key in graph.edata]
    if len(named) > 1:
        raise ShoalError("graph.edata", f"has {' and '.join(named)}, and an edge has one weight; take one of them out")
    if named:
        values["edge_weight"], where["edge_weight"] = graph.edata[named[0]], f"graph.edata[{named[0]!r}]"
    return graph_of(name, values, where)


def _require_read(kind: str, entries: Any, read: tuple[str, ...]) -> None:
    """Refuses entries of `ndata` or `edata` that are not read and have a meaning, as all of edges have."""
    found = {key: f"graph.{kind}[{key!r}]" for key in entries}
    places = {**PLACES, "weight": f"edata[{WEIGHTS[0]!r}]"}
    of_edges = found if kind == "edata" else ()
    require_read(found, read, lambda key: f"take it out (del graph.{kind}[{key!r}])", of_edges, places)


def to_dgl(graph: Graph | Shard, split: Split | None = None, module: Any = None) -> Any:
    """A `DGLGraph` of both directions of every edge, with the tensors of `tensors_of` in `ndata`.

    Features and labels are under `feat` and `label`, the numbers of a shard's nodes under `dgl.NID`, and the weights of
    edges, where they have any, in `edata` under `weight`. `module` is the library; None imports `dgl`.

    Raises:
        ShoalError: DGL cannot be imported, or labels are of graphs or pairs.
    """
    module = library("dgl", "a DGLGraph") if module is None else module
    tensors = tensors_of(graph, split)
    for key, items in (("batch", "many graphs"), ("edge_label", "pairs of nodes")):
        if key in tensors:
            raise ShoalError(
                "graph", f"{items} with a label each, and a DGLGraph has labels of nodes only; take to_pyg"
            )
    made = module.graph(tuple(tensors.pop("edge_index")), num_nodes=graph.nodes)
    if "edge_weight" in tensors:
        made.edata[WEIGHTS[0]] = tensors.pop("edge_weight")
    names = {"x": X, "y": Y, "n_id": module.NID}
    for key, tensor in tensors.items():
        made.ndata[names.get(key, key)] = tensor
    return made
