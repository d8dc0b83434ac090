"""The digits: images as scikit-learn gives them, neighbours as near as scikit-learn's own."""

import numpy as np
import pytest
import scipy.sparse as sp
from sklearn.datasets import load_digits
from sklearn.neighbors import kneighbors_graph
from support.errors import refused

from shoal.storage.datasets.registry import load
from shoal.storage.datasets.sources.source import DataSource
from shoal.storage.graph.graph import Graph


def adjacency(graph: Graph) -> sp.csr_array:
    ones = np.ones(graph.entries, dtype=np.int64)
    return sp.csr_array((ones, graph.indices, graph.indptr), shape=(graph.nodes, graph.nodes))


def test_images_and_labels() -> None:
    graph = load(DataSource("Digits"))
    images, y = load_digits(return_X_y=True)
    assert (graph.name, graph.nodes, graph.features, graph.classes) == ("digits", 1797, 64, 10)
    assert graph.x.dtype == np.float32
    assert (graph.x * 16 == images).all()
    assert graph.x.max() == 1
    assert (graph.y == y).all()
    assert not graph.synthetic


@pytest.mark.parametrize("k", [1, 8])
def test_neighbours_are_the_nearest(k: int) -> None:
    graph = load(DataSource("digits", neighbors=k))
    images, _ = load_digits(return_X_y=True)
    farthest = kneighbors_graph(images, k, mode="distance").max(axis=1).toarray().ravel()
    edges = adjacency(graph)
    assert (edges - edges.T).nnz == 0
    rows, columns = edges.nonzero()
    distances = np.linalg.norm(images[rows] - images[columns], axis=1)
    # an edge is there because one end is among the k nearest of the other; ties change neither statement
    assert (distances <= np.maximum(farthest[rows], farthest[columns]) + 1e-9).all()
    near = np.bincount(rows, weights=distances <= farthest[rows] + 1e-9, minlength=graph.nodes)
    assert (near >= k).all()
    assert graph.cleaning.entries_read == 1797 * k


@pytest.mark.parametrize("k", [0, 1797])
def test_refuses_impossible_neighbours(k: int) -> None:
    with refused("data.neighbors"):
        load(DataSource("digits", neighbors=k))
