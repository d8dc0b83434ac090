"""Louvain communities, packed into clients: the partition of FedGTA, FedPG and most papers of the field."""

from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np

from partition.options import PartitionOptions
from partition.packing import pack
from partition.workspace import Workspace
from storage.graph import Graph


def by_louvain(
    graph: Graph,
    options: PartitionOptions,
    labelled_mask: np.ndarray | None = None,
    workspace: Workspace | None = None,
) -> np.ndarray:
    """Communities of the whole graph, packed by nodes or by labelled nodes, int32 `[N]`."""
    labelled = None
    if options.balance == "labelled":
        labelled = graph.y >= 0 if labelled_mask is None else labelled_mask
    return pack(communities(graph, options.resolution, options.seed), options.clients, labelled)


def communities(graph: Graph, resolution: float, seed: int) -> np.ndarray:
    """Louvain community of every node, int64 `[N]`, numbered from 0 without gaps (Blondel et al., 2008).

    One thread, in an order drawn from the seed: the same seed gives the same communities. NetworKit's
    generator is global: later calls in this process get its changed seed.
    """
    # Importing it takes a second, which other methods need not wait for.
    import networkit

    rows = np.repeat(np.arange(graph.nodes, dtype=np.int32), np.diff(graph.indptr))
    once = rows < graph.indices
    ends = (rows[once].astype(np.uint64), graph.indices[once].astype(np.uint64))
    undirected = networkit.GraphFromCoo(ends, n=graph.nodes)
    with one_thread():
        networkit.setSeed(seed, False)
        # par="none" visits nodes by their number, whatever the seed.
        louvain = networkit.community.PLM(undirected, gamma=resolution, par="none randomized")
        found = louvain.run().getPartition().getVector()
    return np.unique(np.asarray(found, dtype=np.int64), return_inverse=True)[1]


@contextmanager
def one_thread() -> Iterator[None]:
    """Limits NetworKit to one thread, and gives back the number it had."""
    import networkit

    before = networkit.getMaxNumberOfThreads()
    networkit.setNumberOfThreads(1)
    try:
        yield
    finally:
        networkit.setNumberOfThreads(before)
