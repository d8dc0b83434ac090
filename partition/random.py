"""A random client for every node, or graph: the partition that keeps no structure."""

import numpy as np

from partition.options import PartitionOptions
from partition.workspace import Workspace
from storage.graph import Graph


def by_random(
    graph: Graph,
    options: PartitionOptions,
    labelled_mask: np.ndarray | None = None,
    workspace: Workspace | None = None,
) -> np.ndarray:
    """Client of every item, int32 `[items]`: clients take turns along a seeded permutation.

    Sizes differ by at most one.
    """
    assignment = np.empty(graph.items, dtype=np.int32)
    order = np.random.default_rng(options.seed).permutation(graph.items)
    assignment[order] = np.arange(graph.items) % options.clients
    return assignment
