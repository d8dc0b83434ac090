"""DGL's `DGLGraph` and torch_sparse's `SparseTensor`, in and out, each imported only to make one; PyG's `Data`, out."""

import importlib
from collections.abc import Mapping
from typing import Any

import numpy as np
import scipy.sparse as sp
import torch
from torch import Tensor
from torch_geometric.data import Data

from shoal.storage.datasets.user.incoming import MASKS, edges_of, graph_of
from shoal.storage.datasets.user.unread import PLACES, require_read
from shoal.storage.errors import ShoalError
from shoal.storage.graph.graph import Graph
from shoal.storage.graph.rows import CsrRows, csr_of
from shoal.storage.shards.shard import Shard
from shoal.storage.shards.split import Split, to_codes

X, Y = "feat", "label"
# Both ship code that is compiled for a version of torch.
WAYS_OUT = {
    "dgl": "dgl 1.1.3 works beside this torch, below Python 3.12, 2.x does not: pip install 'shoal[dgl]'",
    "torch_sparse": "no build for this torch: pip install --no-build-isolation torch-scatter==2.1.2 "
    "torch-sparse==0.6.18 compiles it, in half an hour or more",
}
WEIGHTS = ("weight", "w")
# Features of edges, as of nodes.
EDGE_FEATURES = X


def tensors_of(graph: Graph | Shard, split: Split | None = None, sparse: bool = False) -> dict[str, Tensor]:
    """Returns a whole graph, which has its own split, or a client's, as tensors by PyG's names.

    Returns:
        `edge_index` int64 `[2, E]`, both directions; `edge_weight` float32 `[E]`, where edges have weights, and
        `edge_attr` float32 `[E, D]`, where they have features; `x` of the stored type `[N, F]`, CSR if `sparse`, else
        dense, however it is stored; `y` int64 `[N]`, -1 is unlabelled; with a split `train_mask`, `val_mask`,
        `test_mask` bool `[N]`; of a shard `n_id` int64 `[N]`, the numbers of its nodes in the whole graph; of many
        graphs `batch` int64 `[N]`, the graph of every node, and `y` and masks are those of graphs; of pairs
        `edge_label_index` int64 `[2, M]` and instead of `y` `edge_label` int64 `[M]`, and masks are those of pairs; of
        a graph with clients of its own `assignment` int32 `[N]`. `x` may share memory with the graph; writing to it
        never changes a file.
    """
    row, column = (
        np.repeat(np.arange(graph.nodes, dtype=np.int64), np.diff(graph.indptr)),
        graph.indices.astype(np.int64),
    )
    x: Any = graph.x
    # Features of an entry are those of the edge from its column to its row.
    of_edges = {} if graph.edge_attr is None else {"edge_attr": torch.from_numpy(np.array(graph.edge_attr))}
    tensors = {
        "edge_index": torch.from_numpy(np.stack([column, row] if of_edges else [row, column])),
        **of_edges,
        **({} if graph.edge_weight is None else {"edge_weight": torch.from_numpy(graph.edge_weight.copy())}),
        "x": _csr(x) if sparse else _tensor(x.toarray() if sp.issparse(x) or isinstance(x, CsrRows) else x[:]),
    }
    if isinstance(graph, Shard):
        y, code = graph.item_label, None if split is None else to_codes(split, graph.items)
        batch = None if graph.graph is None else np.repeat(np.arange(graph.items), np.diff(graph.graph_ptr))
        tensors["n_id"] = torch.from_numpy(graph.node.astype(np.int64))
        if graph.pairs is not None:
            tensors["edge_label_index"] = torch.from_numpy(graph.pairs.ends.astype(np.int64).T.copy())
    else:
        y, code, batch = graph.y, graph.split, graph.graph_of
        if graph.assignment is not None:
            tensors["assignment"] = _tensor(graph.assignment)
    tensors["edge_label" if "edge_label_index" in tensors else "y"] = torch.from_numpy(y.astype(np.int64))
    if batch is not None:
        tensors["batch"] = torch.from_numpy(batch.astype(np.int64))
    if code is not None:
        tensors |= {name: torch.from_numpy(code == part) for name, part in MASKS.items()}
    return tensors


def to_pyg(graph: Graph | Shard, split: Split | None = None, sparse: bool = False) -> Data:
    """Makes a PyG `Data` of a whole graph, which has its own split, or of a client's, whose split is given.

    It has `edge_index` in both directions, `x` (CSR if `sparse`), `y` (-1 is unlabelled) and, if there are,
    `edge_weight`, `edge_attr` and the masks of the split; of a client `n_id`, too, the numbers of its nodes in the
    whole graph.
    """
    return Data(**tensors_of(graph, split, sparse))


def library(name: str, what: str) -> Any:
    """Imports an optional library; raises a ShoalError if it is missing, or does not work with this torch."""
    try:
        return importlib.import_module(name)
    except (ImportError, OSError) as error:
        reason, way_out = " ".join(str(error).split()), WAYS_OUT[name]
        raise ShoalError(name, f"{what} needs it, and it cannot be imported ({reason}); {way_out}") from error


def _csr(x: Any) -> Tensor:
    """Returns features as torch CSR with int64 indices, which all of its operators take."""
    if isinstance(x, CsrRows):
        indptr, columns, values = x.indptr, x.columns, x.values
    else:
        csr = csr_of(x[:])
        indptr, columns, values = csr.indptr, csr.indices, csr.data.astype(x.dtype)
    crow, col = (torch.from_numpy(array.astype(np.int64)) for array in (indptr, columns))
    return torch.sparse_csr_tensor(crow, col, torch.from_numpy(values.copy()), size=x.shape, check_invariants=False)


def _tensor(array: np.ndarray) -> Tensor:
    return torch.from_numpy(array if array.flags.writeable else array.copy())


def from_dgl(graph: Any, name: str = "graph", x: str = X, y: str = Y) -> Graph:
    """Makes the graph, called `name`, of a `DGLGraph` of one kind of node: edges undirected and simple.

    `ndata` holds features and labels under the keys `x` and `y`, and, if there are, `train_mask`, `val_mask`,
    `test_mask` and `assignment`, as `from_pyg` takes them; `edata` has the weights of edges, if they have any, under
    `weight` or `w`, and their features under `feat`. A ShoalError names an entry that is missing or wrong, or tells
    something of edges, parts or clients and is not read; a warning names all others.
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
    _require_read("edata", graph.edata, (*WEIGHTS, EDGE_FEATURES))
    if values["x"] is not None and len(values["x"]) != graph.num_nodes():
        raise ShoalError(where["x"], f"{len(values['x'])} rows for {graph.num_nodes()} nodes; one a node")
    # Edges in the order of their numbers, as `edata` has them.
    values["edge_index"], where["edge_index"] = torch.stack(graph.edges()), "graph.edges()"
    named = [key for key in WEIGHTS if key in graph.edata]
    if len(named) > 1:
        raise ShoalError("graph.edata", f"has {' and '.join(named)}, and an edge has one weight; take one of them out")
    if named:
        values["edge_weight"], where["edge_weight"] = graph.edata[named[0]], f"graph.edata[{named[0]!r}]"
    if EDGE_FEATURES in graph.edata:
        values["edge_attr"], where["edge_attr"] = graph.edata[EDGE_FEATURES], f"graph.edata[{EDGE_FEATURES!r}]"
    return graph_of(name, values, where)


def _require_read(kind: str, entries: Any, read: tuple[str, ...]) -> None:
    """Refuses entries of `ndata` or `edata` that are not read and have a meaning, as all of edges have."""
    places_of = {key: f"graph.{kind}[{key!r}]" for key in entries}
    places = {**PLACES, "weight": f"edata[{WEIGHTS[0]!r}]", "features": f"edata[{EDGE_FEATURES!r}]"}
    of_edges = places_of if kind == "edata" else ()
    require_read(places_of, read, lambda key: f"take it out (del graph.{kind}[{key!r}])", of_edges, places)


def to_dgl(graph: Graph | Shard, split: Split | None = None, module: Any = None) -> Any:
    """Makes a `DGLGraph` of both directions of every edge, with the tensors of `tensors_of` in `ndata`.

    Features and labels are under `feat` and `label`, the numbers of a shard's nodes under `dgl.NID`, and the weights of
    edges, where they have any, in `edata` under `weight`. `module` is the library; None imports `dgl`. A ShoalError
    says that it cannot be imported, or that labels are of graphs or pairs.
    """
    module = library("dgl", "a DGLGraph") if module is None else module
    tensors = tensors_of(graph, split)
    for key, items in (("batch", "many graphs"), ("edge_label", "pairs of nodes")):
        if key in tensors:
            raise ShoalError(
                "graph", f"{items} with a label each, and a DGLGraph has labels of nodes only; take to_pyg"
            )
    made = module.graph(tuple(tensors.pop("edge_index")), num_nodes=graph.nodes)
    if "edge_attr" in tensors:
        made.edata[EDGE_FEATURES] = tensors.pop("edge_attr")
    if "edge_weight" in tensors:
        made.edata[WEIGHTS[0]] = tensors.pop("edge_weight")
    names = {"x": X, "y": Y, "n_id": module.NID}
    for key, tensor in tensors.items():
        made.ndata[names.get(key, key)] = tensor
    return made


def from_sparse_tensor(
    adjacency: Any, x: Tensor, y: Tensor | None = None, masks: dict[str, Tensor] | None = None, name: str = "graph"
) -> Graph:
    """Makes the graph, called `name`, of an adjacency: edges undirected and simple.

    It is a `SparseTensor` `[N, N]`, or its transpose; values, if it has any, are the weights of edges. x is `[N, F]`, y
    one class a node, -1 or NaN where there is none, or None, for tasks that read none; masks are `train_mask`,
    `val_mask`, `test_mask`, bool `[N]`, each optional. A ShoalError names what is not of its shape, type or value.
    """
    if not isinstance(masks, Mapping | None):
        raise ShoalError("masks", f"expected a mapping of {', '.join(MASKS)}, got {type(masks).__name__}")
    require_read({key: f"masks[{key!r}]" for key in masks or {}}, MASKS, lambda key: "take it out")
    edge_index, weight = edges_of(adjacency, "adjacency")
    values = {"edge_index": edge_index, "edge_weight": weight, "x": x, "y": y}
    values |= {key: mask for key, mask in (masks or {}).items() if key in MASKS}
    where = dict.fromkeys(("edge_index", "edge_weight"), "adjacency") | {"x": "x", "y": "y"}
    where |= {key: f"masks[{key!r}]" for key in MASKS}
    return graph_of(name, values, where)


def to_sparse_tensor(graph: Graph | Shard, module: Any = None) -> Any:
    """Returns the adjacency as a `SparseTensor` `[N, N]`: row pointer and columns int64; edge weights as values.

    `module` is the library; None imports `torch_sparse`, and a ShoalError says that it cannot be imported.
    """
    module = library("torch_sparse", "a SparseTensor") if module is None else module
    rowptr, col = (torch.from_numpy(array.astype(np.int64)) for array in (graph.indptr, graph.indices))
    value = {} if graph.edge_weight is None else {"value": torch.from_numpy(graph.edge_weight.copy())}
    sizes = (graph.nodes, graph.nodes)
    return module.SparseTensor(rowptr=rowptr, col=col, **value, sparse_sizes=sizes, is_sorted=True)
