"""What training sees of a client where validation and test nodes come later: its training nodes, and no other."""

import numpy as np
import scipy.sparse as sp

from shoal.storage.graph.induced import Induced, breadth_first
from shoal.storage.store.shard import Shard


def training_graph(shard: Shard, train: np.ndarray) -> tuple[Induced, np.ndarray]:
    """Induces the graph of a client's training nodes.

    Its rows are in the order of a shard of these nodes alone: breadth first from the smallest, ties by global id. What
    the other nodes are and whom they join cannot be told from it. In memory are 5 bytes for each entry of the shard.

    Args:
        shard: All nodes of the client.
        train: Rows of its training nodes, `[n]`.

    Returns:
        The graph, and the row in the shard of each of its rows, int64 `[n]`.
    """
    row = train[np.argsort(shard.node[train])]
    entries = np.ones(shard.entries, dtype=np.int8)
    adjacency = sp.csr_array((entries, shard.indices, shard.indptr), shape=(shard.nodes, shard.nodes))
    among = adjacency[row][:, row]
    among.sort_indices()
    number = np.arange(len(row), dtype=np.int64)
    part = breadth_first(number, among.indptr.astype(np.int64), among.indices.astype(np.int32))
    row = row[part.node].astype(np.int64)
    return Induced(shard.node[row], part.indptr, part.indices), row
