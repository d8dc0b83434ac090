"""PyTorch Geometric's `Data`, in and out."""

from typing import Any

from torch_geometric.data import Data

from storage.adapters.incoming import MASKS, edge_index_of, graph_of
from storage.adapters.outgoing import tensors_of
from storage.errors import ShoalError
from storage.graph import Graph
from storage.shard import Shard
from storage.split import Split


def from_pyg(data: Data, name: str = "graph") -> Graph:
    """The graph of a `Data`: edges made undirected and simple, without weights.

    Args:
        data: Has `edge_index` or `adj_t` (a sparse tensor of torch, or a torch_sparse `SparseTensor`), `x`, dense or
            sparse, and `y`, one class a node, -1 or NaN where there is none; it may have `train_mask`, `val_mask`,
            `test_mask`, and `assignment`, the client of every node.
        name: What the graph is called.

    Raises:
        ShoalError: An attribute is missing, or of a wrong shape, type or value; names it.
    """
    if not isinstance(data, Data):
        raise ShoalError(
            f"data: must be a torch_geometric Data, found {type(data).__name__}; take dataset[0], of a HeteroData "
            "to_homogeneous()"
        )
    values: dict[str, Any] = {key: getattr(data, key, None) for key in ("x", "y", "edge_index", "assignment", *MASKS)}
    where = {key: f"data.{key}" for key in values}
    if values["edge_index"] is None and getattr(data, "adj_t", None) is not None:
        values["edge_index"], where["edge_index"] = edge_index_of(data.adj_t, "data.adj_t"), "data.adj_t"
    return graph_of(name, values, where)


def to_pyg(graph: Graph | Shard, split: Split | None = None, sparse: bool = False) -> Data:
    """A `Data` with the tensors of `tensors_of`; `n_id` are the numbers that a shard's nodes have in the graph.

    Args:
        graph: The graph to convert, whole or of one client.
        split: Rows of a shard.
        sparse: Give `x` as a sparse CSR tensor; else it is dense, however it is stored.
    """
    return Data(**tensors_of(graph, split, sparse))
