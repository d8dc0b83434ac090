"""Views of many small graphs for augmentation (You et al., NeurIPS 2020, table 1): fewer nodes, or other edges.

All graphs of a batch are altered at once; each loses its own share, rounded down.
"""

import numpy as np

from algorithms.small_graphs import SmallGraphs, adjacency_of


def without_nodes(graphs: SmallGraphs, share: float, rng: np.random.Generator) -> SmallGraphs:
    """Every graph without a share of its nodes, drawn uniformly, and without their edges; others keep their order.

    Args:
        graphs: The graphs.
        share: In [0, 1), so that every graph keeps a node.
        rng: Where randomness comes from.
    """
    lost_G = _share_of(share, graphs.sizes)
    kept_N = ~_drawn(graphs.sizes, lost_G, rng)
    source, number_N = graphs.source, np.cumsum(kept_N) - 1
    kept_E = kept_N[source] & kept_N[graphs.indices]
    degree = np.bincount(source[kept_E], minlength=len(kept_N))[kept_N]
    return SmallGraphs(
        first=np.concatenate([[0], np.cumsum(graphs.sizes - lost_G)]),
        indptr=np.concatenate([[0], np.cumsum(degree)]),
        indices=number_N[graphs.indices[kept_E]],
        row=graphs.row[kept_N],
    )


def with_other_edges(graphs: SmallGraphs, share: float, rng: np.random.Generator) -> SmallGraphs:
    """Every graph without a share of its undirected edges, and with as many pairs of its nodes drawn as new ones.

    Pairs are two different nodes, drawn uniformly with replacement: one that is an edge already, or that is drawn
    twice, counts once.

    Args:
        graphs: The graphs.
        share: In [0, 1).
        rng: Where randomness comes from.
    """
    source, target = graphs.source, graphs.indices
    once = source < target
    source, target = source[once], target[once]
    graph_N = np.repeat(np.arange(len(graphs)), graphs.sizes)
    edges_G = np.bincount(graph_N[source], minlength=len(graphs))
    changed_G = _share_of(share, edges_G)
    # Edges are ordered by their graphs.
    kept = ~_drawn(edges_G, changed_G, rng)
    # A graph that has an edge has two nodes.
    size, start = (np.repeat(of, changed_G) for of in (graphs.sizes, graphs.first[:-1]))
    one = rng.integers(size)
    other = (one + 1 + rng.integers(size - 1)) % size
    ends = np.concatenate([source[kept], start + one]), np.concatenate([target[kept], start + other])
    both = np.concatenate(ends), np.concatenate(ends[::-1])
    return SmallGraphs(graphs.first, *adjacency_of(*both, len(graphs.row)), graphs.row)


def _share_of(share: float, counts: np.ndarray) -> np.ndarray:
    # The small constant keeps 0.29 * 100 from becoming 28.
    return np.floor(share * counts + 1e-9).astype(np.int64)


def _drawn(sizes_G: np.ndarray, counts_G: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Which elements of groups behind one another are drawn, bool `[sum of sizes]`: uniformly, so many of each."""
    group = np.repeat(np.arange(len(sizes_G)), sizes_G)
    order = np.lexsort((rng.random(len(group)), group))
    rank = np.arange(len(group)) - np.repeat(np.cumsum(sizes_G) - sizes_G, sizes_G)
    drawn = np.empty(len(group), dtype=bool)
    drawn[order] = rank < np.repeat(counts_G, sizes_G)
    return drawn
