"""A graph of ours beside the same one as PyG reads it; a file that must not be opened."""

from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse as sp

from shoal.storage.graph.graph import Graph


def edge_set(graph: Graph) -> set[tuple[int, int]]:
    """Both directions of every edge."""
    source = np.repeat(np.arange(graph.nodes), np.diff(graph.indptr))
    return set(zip(source.tolist(), graph.indices.tolist()))


def assert_equals_pyg(graph: Graph, data: Any) -> None:
    """Arrays equal those of a `Data`, its loops and missing directions set right; of several splits the first."""
    x = graph.x.toarray() if sp.issparse(graph.x) else graph.x
    assert x.dtype == np.float32
    assert np.array_equal(x, data.x.numpy())
    assert np.array_equal(graph.y, data.y.numpy())
    for part, key in enumerate(("train_mask", "val_mask", "test_mask"), 1):
        if graph.split is not None:
            mask = data[key]
            assert np.array_equal(graph.split == part, (mask if mask.dim() == 1 else mask[:, 0]).numpy())
    edges = {(a, b) for a, b in data.edge_index.t().tolist() if a != b}
    assert edge_set(graph) == edges | {(b, a) for a, b in edges}


class Trap:
    """Leaves a file behind when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return Path.touch, (self.path,)
