"""The graph of a client's items against loops over pairs."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from shoal.algorithms.methods.fedpg.hop_prototypes import ItemGraph, hop_prototypes, hop_weights, item_graph
from shoal.engine.rounds.server import Server
from shoal.storage.store.view import View

ClientData = Callable[[int], View]
GRAPHS = 14


@pytest.fixture
def client_data(
    start: Callable[..., Server], views: Callable[..., list[View]], graph_task: dict[str, Any]
) -> ClientData:
    every = views(start(graph_task))
    return lambda client: every[client]


def dense(graph: ItemGraph) -> np.ndarray:
    starts, columns = (part.numpy() for part in graph.edges)
    assert starts.dtype == columns.dtype == np.int32
    found = np.zeros((graph.items, graph.items), dtype=int)
    for row in range(graph.items):
        mine = columns[starts[row] : starts[row + 1]]
        assert (np.diff(mine) > 0).all()
        found[row, mine] = 1
    assert (len(starts), starts[-1]) == (graph.items + 1, len(columns))
    return found


def by_pairs(z: Tensor, k: int) -> np.ndarray:
    found = np.zeros((len(z), len(z)), dtype=int)
    for i, row in enumerate(z.double().numpy()):
        cosine = {}
        for j, other in enumerate(z.double().numpy()):
            if j != i and row.any() and other.any():
                cosine[j] = row @ other / np.sqrt((row @ row) * (other @ other))
        for j in sorted(cosine, key=lambda j: (-cosine[j], j))[:k]:
            found[i, j] = found[j, i] = 1
    return found


@pytest.mark.parametrize("k", [1, 2, 5, 13, 40])
def test_nearest_both_ways(client_data: ClientData, k: int) -> None:
    z = torch.randn(GRAPHS, 3, generator=torch.Generator().manual_seed(k))
    z[4] = 0
    found = dense(item_graph(client_data(0), z, k))
    np.testing.assert_array_equal(found, by_pairs(z, k))
    np.testing.assert_array_equal(found, found.T)
    assert not found[4].any()


def test_length_says_nothing(client_data: ClientData) -> None:
    """Neighbours are by direction: a long row is nobody's nearest for its length."""
    angle = torch.arange(GRAPHS) * 0.1
    z = torch.stack([angle.cos(), angle.sin()], 1)
    z[7] *= 100
    found = dense(item_graph(client_data(0), z, 2))
    assert all(abs(i - j) <= 2 for i, j in zip(*found.nonzero()))


def test_item_graph_of_one_item_or_similar_0_has_no_edges(client_data: ClientData) -> None:
    alone = item_graph(client_data(3), torch.ones(1, 3), 5)
    assert (alone.items, dense(alone).tolist()) == (1, [[0]])
    for z in (torch.ones(GRAPHS, 3), torch.ones(0, 3)):
        assert not dense(item_graph(client_data(0), z, 0)).any()


def test_nodes_have_the_edges_of_their_graph(make_view: Callable[..., View]) -> None:
    view = make_view(4, [(0, 1), (1, 2)], [0] * 4, [0], 2)
    assert item_graph(view, torch.empty(0, 3), 5) == ItemGraph(view.classes, view.nodes, view.edges)
    assert view.items_are_rows


def test_no_gradient_through_who_is_near(client_data: ClientData) -> None:
    z = torch.randn(GRAPHS, 3, requires_grad=True, generator=torch.Generator().manual_seed(0))
    assert not any(part.requires_grad for part in item_graph(client_data(0), z, 3).edges)


def test_hops_walk_along_it(client_data: ClientData) -> None:
    """Prototypes at hop 1 and 2 from loops over pairs and walks."""
    view, generator = client_data(0), torch.Generator().manual_seed(3)
    assert view.nodes > view.items == GRAPHS
    z = torch.randn(GRAPHS, 3, generator=generator)
    annotation = torch.randint(2, (GRAPHS,), generator=generator)
    centre = torch.rand(GRAPHS, generator=generator) < 0.7
    near = by_pairs(z, 3)
    weight, counts = hop_weights(item_graph(view, z, 3), annotation, centre, 2)
    found = hop_prototypes(z, annotation, weight, view.classes)
    for hop in (1, 2):
        for c in (0, 1):
            means = []
            for v in range(GRAPHS):
                ends = np.flatnonzero(near[v])
                if hop == 2:
                    ends = np.array([u for w in ends for u in np.flatnonzero(near[w]) if u != v])
                alike = [int(u) for u in ends if annotation[u] == c]
                if centre[v] and annotation[v] == c and alike:
                    means.append(z[alike].mean(0))
            assert counts[hop, c] == len(means) > 0
            torch.testing.assert_close(found[hop, c], torch.stack(means).mean(0), rtol=1e-5, atol=1e-6)
