"""METIS: balanced parts with few edges between them."""

import numpy as np

from partition.cover import fill_empty
from partition.metis_process import part_graph
from partition.options import PartitionOptions
from partition.workspace import Workspace
from storage.graph import Graph


def by_metis(
    graph: Graph,
    options: PartitionOptions,
    labelled_mask: np.ndarray | None = None,
    workspace: Workspace | None = None,
) -> np.ndarray:
    """Multilevel k-way partition of small edge cut, int32 `[N]` (Karypis and Kumar, JPDC 48(1), 1998).

    On tiny graphs METIS may leave a part empty; it then gets one node of the largest part, as `fill_empty`
    says. A graph without edges is cut into blocks of consecutive nodes, since no partition cuts an edge.
    """
    if options.clients == 1:
        return np.zeros(graph.nodes, dtype=np.int32)
    if graph.entries == 0:
        return (np.arange(graph.nodes) * options.clients // graph.nodes).astype(np.int32)
    import pymetis

    adjacency = pymetis.CSRAdjacency(
        np.ascontiguousarray(graph.indptr, dtype=np.int64),
        np.ascontiguousarray(graph.indices, dtype=np.int64),
    )
    return fill_empty(part_graph(adjacency, options), options.clients)
