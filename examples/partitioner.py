"""A user's partitioner: `partition.method: examples/partitioner.py:ByDegree`."""

from dataclasses import dataclass

import numpy as np

import shoal


@dataclass(frozen=True)
class ByDegree(shoal.Partitioner):
    """Clients of nodes with few neighbours, and of nodes with many: equally large, ties in any order.

    Attributes:
        descending: The first client has the nodes with the most neighbours (`partition.options.descending`).
    """

    descending: bool = False

    def assign(self, graph: shoal.Graph, clients: int, rng: np.random.Generator) -> np.ndarray:
        degree = np.diff(graph.indptr) * (-1 if self.descending else 1)
        order = np.lexsort([rng.random(graph.nodes), degree])
        client = np.empty(graph.nodes, dtype=np.int64)
        client[order] = np.arange(graph.nodes) * clients // graph.nodes
        return client
