"""Handwritten digits as a graph of similar images: small, labelled, and there without a download."""

import numpy as np

from shoal.storage.datasets.sources.source import DatasetSpec, DataSource
from shoal.storage.errors import ShoalError
from shoal.storage.graph.graph import Graph, clean_edges

NODES, CLASSES = 1797, 10


def load_digits(name: str, options: DataSource) -> Graph:
    """Loads 1797 images of 8 x 8 pixels, 10 classes; each is joined with its `options.neighbors` nearest (Euclidean).

    x is float32 `[1797, 64]`, pixels scaled to 0..1. Of equally distant images the lower id is taken, and
    squared distances of whole grey values are exact, so the graph is the same on every machine. Source: UCI
    "Optical Recognition of Handwritten Digits", test set, as packed with scikit-learn.
    """
    from sklearn.datasets import load_digits as load_published

    grey, y = load_published(return_X_y=True)
    nodes, k = len(y), options.neighbors
    if not 1 <= k < nodes:
        raise ShoalError("data.neighbors", f"{k} is not in 1..{nodes - 1}")
    norms = (grey**2).sum(axis=1)
    distances = norms[:, None] + norms[None, :] - 2 * grey @ grey.T
    np.fill_diagonal(distances, np.inf)
    nearest = np.argsort(distances, axis=1, kind="stable")[:, :k]
    edges = np.stack([np.repeat(np.arange(nodes), k), nearest.ravel()])
    indptr, indices, cleaning = clean_edges(edges, nodes, name)
    x = (grey / 16).astype(np.float32)
    return Graph(name, indptr, indices, x, y.astype(np.int64), classes=CLASSES, cleaning=cleaning)


DATASETS = (
    DatasetSpec(
        "digits",
        load_digits,
        items=lambda options: NODES,
        classes=lambda options: CLASSES,
        content=lambda options: {"neighbors": options.neighbors},
        options=("neighbors",),
    ),
)
