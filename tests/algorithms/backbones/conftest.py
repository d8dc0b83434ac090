"""Small graphs for models of graphs, as PyG has them and as a client has them."""

from collections.abc import Callable, Sequence

import numpy as np
import pytest
import torch
from torch_geometric.data import Batch, Data
from torch_geometric.utils import to_undirected

from storage.graph import clean_edges
from storage.shard import Shard
from storage.split import Split
from storage.view import Memo, View

FEATURES, CLASSES = 5, 3


@pytest.fixture
def pyg_graphs() -> list[Data]:
    """A triangle with a tail, one node, three nodes without edges, a pair, and a ring of five with a chord."""
    rng = np.random.default_rng(1)
    shapes: list[tuple[int, list[tuple[int, int]]]] = [
        (4, [(0, 1), (1, 2), (2, 0), (2, 3)]),
        (1, []),
        (3, []),
        (2, [(0, 1)]),
        (5, [(0, 1), (1, 2), (2, 3), (3, 4), (4, 0), (0, 2)]),
    ]
    graphs = []
    for number, (nodes, edges) in enumerate(shapes):
        index = torch.tensor(edges, dtype=torch.int64).reshape(-1, 2).t()
        x = torch.from_numpy(rng.standard_normal((nodes, FEATURES)).astype(np.float32))
        graphs.append(Data(x=x, edge_index=to_undirected(index, num_nodes=nodes), y=torch.tensor([number % CLASSES])))
    return graphs


@pytest.fixture
def graph_view() -> Callable[..., View]:
    """Gives the data of a client that holds some graphs; the first two train, the third validates, others test."""

    def graph_view(graphs: Sequence[Data], hops: int = 0) -> View:
        whole = Batch.from_data_list(list(graphs))
        nodes = whole.num_nodes
        indptr, indices, _ = clean_edges(whole.edge_index.numpy(), nodes, "test")
        of_rows = whole.batch.numpy()
        label = whole.y.numpy()[of_rows].astype(np.int32)
        x = whole.x.numpy()
        shard = Shard(0, np.arange(nodes), label, indptr.astype(np.int32), indices.astype(np.int32), x, 3 * of_rows + 1)
        smoothed = [(np.eye(nodes, dtype=np.float32) + k) @ x for k in range(1, hops + 1)]
        parts = [np.arange(len(graphs), dtype=np.int32)[rows] for rows in (slice(2), slice(2, 3), slice(3, None))]
        return View("test", shard, Split(*parts), smoothed, CLASSES, Memo(2**24))

    return graph_view
