"""PyTorch Geometric's `Data`, in and out."""

from torch_geometric.data import Data

from shoal.storage.adapters.outgoing import tensors_of
from shoal.storage.datasets.user.pyg_data import from_pyg
from shoal.storage.graph.graph import Graph
from shoal.storage.store.shard import Shard
from shoal.storage.store.split import Split

__all__ = ["from_pyg", "to_pyg"]


def to_pyg(graph: Graph | Shard, split: Split | None = None, sparse: bool = False) -> Data:
    """A `Data` with the tensors of `tensors_of`; `n_id` are the numbers that a shard's nodes have in the graph.

    Args:
        graph: The graph to convert, whole or of one client.
        split: Rows of a shard.
        sparse: Give `x` as a sparse CSR tensor; else it is dense, however it is stored.
    """
    return Data(**tensors_of(graph, split, sparse))
