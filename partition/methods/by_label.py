"""Clients by drawing: of unequal labels from a Dirichlet distribution, of equal sizes along a permutation."""

import numpy as np

from shoal.partition.methods.cover import fill_empty, sizes_of
from shoal.partition.methods.options import PartitionOptions
from shoal.storage.graph.graph import Graph


def by_dirichlet(graph: Graph, options: PartitionOptions, *_: object) -> np.ndarray:
    """Cuts each class into shares p ~ Dir(alpha, ..., alpha), one a client; client of every item, int32 `[items]`.

    Shares of different classes are independent; items without a label are dealt out one by one. A client that would
    be empty gets an item of the largest. Source: Yurochkin et al., "Bayesian Nonparametric Federated Learning of
    Neural Networks", ICML 2019, section 5.
    """
    rng = np.random.default_rng(options.seed)
    assignment = np.empty(graph.items, dtype=np.int32)
    unlabelled = rng.permutation(np.flatnonzero(graph.y < 0))
    assignment[unlabelled] = np.arange(len(unlabelled)) % options.clients
    for label in range(graph.classes):
        items = rng.permutation(np.flatnonzero(graph.y == label))
        shares = rng.dirichlet(np.full(options.clients, options.alpha))
        ends = np.round(np.cumsum(shares)[:-1] * len(items)).astype(np.int64)
        assignment[items] = np.searchsorted(ends, np.arange(len(items)), side="right")
    return fill_empty(assignment, options.clients)


def by_random(graph: Graph, options: PartitionOptions, *_: object) -> np.ndarray:
    """Lets clients take turns along a seeded permutation, or with `options.zipf` gives each its share of it.

    Client of every item, int32 `[items]`.
    """
    assignment = np.empty(graph.items, dtype=np.int32)
    order = np.random.default_rng(options.seed).permutation(graph.items)
    if options.zipf:
        assignment[order] = np.repeat(np.arange(options.clients), sizes_of(graph.items, options.clients, options.zipf))
    else:
        assignment[order] = np.arange(graph.items) % options.clients
    return assignment
