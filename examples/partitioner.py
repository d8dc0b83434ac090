"""A partitioner of one's own: `partition.method: examples/partitioner.py:ByDegree`."""

import numpy as np

import shoal


class ByDegree(shoal.Partitioner):
    """Clients of nodes with few neighbours, and of nodes with many: equally large, ties in any order."""

    def assign(self, graph: shoal.Graph, clients: int, rng: np.random.Generator) -> np.ndarray:
        degree = np.diff(graph.indptr)
        order = np.lexsort([rng.random(graph.nodes), degree])
        client = np.empty(graph.nodes, dtype=np.int64)
        client[order] = np.arange(graph.nodes) * clients // graph.nodes
        return client
