"""A graph of ours beside the same one as PyG reads it; three graphs of PyG; a file that must not be opened."""

from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse as sp
import torch
from torch_geometric.data import Data

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
    a, b = data.edge_index[:, data.edge_index[0] != data.edge_index[1]].numpy()
    source = np.repeat(np.arange(graph.nodes), np.diff(graph.indptr))
    both = np.unique(np.concatenate([a * graph.nodes + b, b * graph.nodes + a]))
    assert np.array_equal(source * graph.nodes + graph.indices, both)


class Trap:
    """Leaves a file behind when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return Path.touch, (self.path,)


def three() -> list[Data]:
    """An edge, a node alone, and a path of three nodes given one way."""
    return [
        Data(torch.tensor([[1.0, 0], [0, 1]]), torch.tensor([[0, 1], [1, 0]]), y=torch.tensor([2])),
        Data(torch.tensor([[5.0, 6]]), torch.empty(2, 0, dtype=torch.int64), y=torch.tensor([[0]])),
        Data(torch.tensor([[1.0, 1], [2, 2], [3, 3]]), torch.tensor([[0, 2], [1, 1]]), y=1),
    ]
