"""Small graphs for models of graphs, as PyG has them and as a client has them; and one graph with its hops."""

from collections.abc import Callable, Sequence

import numpy as np
import pytest
import torch
from support.dense_graphs import rows_of, smoothing
from torch_geometric.data import Batch, Data
from torch_geometric.utils import to_undirected

from shoal.storage.graph.graph import clean_edges
from shoal.storage.graph.propagation import hops as hops_of
from shoal.storage.options.propagation import PropagationOptions
from shoal.storage.shards.shard import Shard
from shoal.storage.shards.split import Split
from shoal.storage.shards.view import Cache, View

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
        return View("test", shard, Split(*parts), smoothed, CLASSES, Cache(2**24))

    return graph_view


@pytest.fixture
def propagated() -> Callable[..., tuple[View, list[np.ndarray]]]:
    """Gives a client of 20 nodes with its hops, and the same hops by dense algebra, float64; one node has no edge."""

    def propagated(hops: int, r: float = 0.5) -> tuple[View, list[np.ndarray]]:
        rng = np.random.default_rng(0)
        upper = np.triu(rng.random((20, 20)) < 0.2, 1)
        upper[:, 7] = upper[7] = False
        adjacency = upper | upper.T
        x = (rng.standard_normal((20, FEATURES)) * (rng.random((20, FEATURES)) < 0.7)).astype(np.float32)
        indptr, indices = rows_of(adjacency)
        shard = Shard(0, np.arange(20), np.arange(20, dtype=np.int32) % CLASSES, indptr, indices, x)
        split = Split(*(np.asarray(part, dtype=np.int32) for part in ([4, 0, 7, 19, 12, 3, 8], [1], [2])))
        stored = hops_of(indptr, indices, x, PropagationOptions(hops, r))
        operator = smoothing(adjacency, r)
        dense = [np.linalg.matrix_power(operator, k) @ x.astype(np.float64) for k in range(hops + 1)]
        return View("test", shard, split, stored, CLASSES, Cache(2**24)), dense

    return propagated


@pytest.fixture
def view(make_view: Callable[..., View]) -> View:
    """Twelve nodes: a ring of eight with chords, a pair, and two without edges."""
    edges = [*((i, (i + 1) % 8) for i in range(8)), (0, 3), (0, 5), (2, 6), (8, 9)]
    x = np.random.default_rng(0).standard_normal((12, 5)).astype(np.float32)
    return make_view(12, edges, [0, 1, 2, 3] * 3, [7, 2, 10], 4, x)
