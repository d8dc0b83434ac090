"""Clients that differ in a property of their own graph: in what their features are, or in whom their edges join.

Nodes are cut by METIS into small parts, so that clients keep most edges; small graphs are parts already. Parts are
put in the order of the property, and clients take consecutive ones. With a skew below 1 the order is mixed with a drawn
one, down to 0, where it is drawn alone.
"""

from dataclasses import replace
from typing import Any

import numpy as np
import scipy.sparse as sp

from shoal.partition.methods.cover import fill_empty, sizes_of
from shoal.partition.methods.metis import by_metis
from shoal.partition.methods.options import PartitionOptions
from shoal.storage.graph.graph import Graph

PARTS_A_CLIENT = 16
ROWS_A_BLOCK = 1 << 16
# Bytes of a block of features as float64.
BLOCK_BYTES = 1 << 26
# Steps of power iteration; ranks of parts do not change in later ones where columns differ at all.
STEPS = 30


def by_features(graph: Graph, options: PartitionOptions, *_: object) -> np.ndarray:
    """Gives clients parts of the graph in the order of their mean along the features' first principal component.

    Client of every item, int32 `[items]`.
    """
    part_N = _cut_into_parts(graph, options)
    component_F, mean_F = _first_component(graph)
    along_N = _centred(graph.x, mean_F, component_F)
    if graph.graph_of is None:
        return _deal_parts(part_N, along_N, np.ones(graph.nodes), options)
    # Graphs are items: clients get shares of them, whatever their sizes.
    count_G = np.bincount(part_N, minlength=graph.items)
    mean_G = np.bincount(part_N, weights=along_N, minlength=graph.items) / np.maximum(count_G, 1)
    return _deal_parts(np.arange(graph.items), mean_G, np.ones(graph.items), options)


def by_homophily(graph: Graph, options: PartitionOptions, *_: object) -> np.ndarray:
    """Gives clients parts of the graph in the order of their share of edges that join nodes of one class.

    Client of every node, int32 `[N]`. Edges of nodes without a label do not count.
    """
    part_N = _cut_into_parts(graph, options)
    same_N, labelled_N = _same_neighbours(graph)
    return _deal_parts(part_N, np.divide(same_N, np.maximum(labelled_N, 1)), labelled_N, options)


def _cut_into_parts(graph: Graph, options: PartitionOptions) -> np.ndarray:
    """Cuts nodes into parts, int `[N]`: small graphs as they are, one graph by METIS."""
    if graph.graph_of is not None:
        return graph.graph_of
    count = min(PARTS_A_CLIENT * options.clients, max(graph.nodes // 4, options.clients))
    return by_metis(graph, replace(options, method="metis", clients=count))


def _deal_parts(part_N: np.ndarray, value_N: np.ndarray, weight_N: np.ndarray, options: PartitionOptions) -> np.ndarray:
    """Puts parts in the order of the weighted mean of a value, and deals them to clients, int32 `[N]`.

    A client takes parts until it has its share of nodes.
    """
    count = int(part_N.max()) + 1
    weight = np.bincount(part_N, weights=weight_N, minlength=count)
    mean = np.bincount(part_N, weights=value_N * weight_N, minlength=count) / np.maximum(weight, 1e-300)
    # Rounded, so that last bits of sums decide nothing; equal parts stay in the order of their numbers.
    rank = np.argsort(np.argsort(np.round(mean, 9), kind="stable"), kind="stable")
    drawn = np.random.default_rng(options.seed).permutation(count)
    order = np.argsort(options.skew * rank + (1 - options.skew) * drawn, kind="stable")
    sizes = np.bincount(part_N, minlength=count)[order]
    middle = np.cumsum(sizes) - sizes / 2
    ends = np.cumsum(sizes_of(len(part_N), options.clients, options.zipf))
    client = np.empty(count, dtype=np.int32)
    client[order] = np.minimum(np.searchsorted(ends, middle, side="right"), options.clients - 1)
    return fill_empty(client[part_N], options.clients)


def _centred(x: Any, mean_F: np.ndarray, along_F: np.ndarray) -> np.ndarray:
    """Computes (x - mean) v, float64 `[N]`, in blocks of rows that take `BLOCK_BYTES`; sparse rows stay sparse."""
    rows = len(x) if not sp.issparse(x) else x.shape[0]
    step = max(1, BLOCK_BYTES // (8 * max(x.shape[1], 1)))
    blocks = (x[start : start + step] for start in range(0, rows, step))
    parts = [(block if sp.issparse(block) else np.asarray(block, np.float64)) @ along_F for block in blocks]
    return np.concatenate([np.zeros(0), *parts]) - mean_F @ along_F


def _sums(x: Any, weight_N: np.ndarray) -> np.ndarray:
    """Computes x' w, float64 `[F]`, in the same way."""
    step = max(1, BLOCK_BYTES // (8 * max(x.shape[1], 1)))
    total_F = np.zeros(x.shape[1])
    for start in range(0, x.shape[0], step):
        rows, weight = x[start : start + step], weight_N[start : start + step]
        total_F += rows.T @ weight if sp.issparse(rows) else np.asarray(rows, np.float64).T @ weight
    return total_F


def _first_component(graph: Graph) -> tuple[np.ndarray, np.ndarray]:
    """Computes the first principal component of the features by power iteration, and their mean, float64 `[F]`."""
    mean_F = _sums(graph.x, np.ones(graph.nodes)) / graph.nodes
    component_F = np.random.default_rng(0).standard_normal(len(mean_F))
    for _ in range(STEPS):
        along_N = _centred(graph.x, mean_F, component_F)
        # Rows less the mean: what is taken off is the mean times the sum, which is zero but for rounding.
        product_F = _sums(graph.x, along_N) - mean_F * along_N.sum()
        component_F = product_F / max(float(np.linalg.norm(product_F)), 1e-300)
    # The sign of a component says nothing.
    return component_F * (1.0 if component_F[np.abs(component_F).argmax()] >= 0 else -1.0), mean_F


def _same_neighbours(graph: Graph) -> tuple[np.ndarray, np.ndarray]:
    """Counts neighbours of a node's own class, and neighbours with a label, of nodes with one, int64 `[N]`."""
    same_N, labelled_N = (np.zeros(graph.nodes, dtype=np.int64) for _ in range(2))
    for start in range(0, graph.nodes, ROWS_A_BLOCK):
        stop = min(start + ROWS_A_BLOCK, graph.nodes)
        degree = np.diff(graph.indptr[start : stop + 1])
        source = np.repeat(np.arange(start, stop), degree)
        target = graph.indices[graph.indptr[start] : graph.indptr[stop]]
        both = (graph.y[source] >= 0) & (graph.y[target] >= 0)
        labelled_N[start:stop] = np.bincount(source[both] - start, minlength=stop - start)
        same = both & (graph.y[source] == graph.y[target])
        same_N[start:stop] = np.bincount(source[same] - start, minlength=stop - start)
    return same_N, labelled_N
