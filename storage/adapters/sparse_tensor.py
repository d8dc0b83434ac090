"""torch_sparse's `SparseTensor`, in and out; torch_sparse itself is imported only to make one."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from shoal.storage.adapters.outgoing import library
from shoal.storage.datasets.user.incoming import MASKS, edges_of, graph_of
from shoal.storage.datasets.user.unread import require_read
from shoal.storage.errors import ShoalError
from shoal.storage.graph.graph import Graph
from shoal.storage.store.shard import Shard


def from_sparse_tensor(
    adjacency: Any, x: Tensor, y: Tensor | None = None, masks: dict[str, Tensor] | None = None, name: str = "graph"
) -> Graph:
    """The graph, called `name`, of an adjacency: edges made undirected and simple.

    Args:
        adjacency: `SparseTensor` `[N, N]`, or its transpose; values, if it has any, are the weights of edges.
        x: Features `[N, F]`.
        y: One class a node `[N]`; -1 or NaN where there is none. None: no node has one, for tasks that read none.
        masks: `train_mask`, `val_mask`, `test_mask`, bool `[N]`; each is optional.

    Raises:
        ShoalError: The adjacency is not square, or a tensor is of a wrong shape, type or value; names it.
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
    """The adjacency as a `SparseTensor` `[N, N]`: row pointer and columns int64; its values are the weights of edges.

    `module` is the library; None imports `torch_sparse`, and a ShoalError says that it cannot be imported.
    """
    module = library("torch_sparse", "a SparseTensor") if module is None else module
    rowptr, col = (torch.from_numpy(array.astype(np.int64)) for array in (graph.indptr, graph.indices))
    value = {} if graph.edge_weight is None else {"value": torch.from_numpy(graph.edge_weight.copy())}
    sizes = (graph.nodes, graph.nodes)
    return module.SparseTensor(rowptr=rowptr, col=col, **value, sparse_sizes=sizes, is_sorted=True)
