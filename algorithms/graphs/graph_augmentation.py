"""Views of many small graphs for augmentation (You et al., NeurIPS 2020, table 1): fewer nodes, or other edges.

All graphs of a batch are altered in one pass; each loses its own share, rounded down.
"""

from dataclasses import dataclass

import numpy as np
import torch

from shoal.algorithms.models.inputs.neighbourhood import GraphBatch, operator_over
from shoal.algorithms.models.inputs.structure_codes import structure_codes
from shoal.algorithms.models.layers.coupled import Coupled
from shoal.storage.shards.view import View


@dataclass(frozen=True)
class SmallGraphs:
    """Graphs without loops, of which no edge joins two, as one CSR with ascending columns, every edge both ways.

    `first` is the first node of every graph and the end of the last, int64 `[G + 1]`; every graph has a node. `row` is
    where the features of every node are, int64 `[N]`.
    """

    first: np.ndarray
    indptr: np.ndarray
    indices: np.ndarray
    row: np.ndarray

    def __len__(self) -> int:
        return len(self.first) - 1

    @property
    def sizes(self) -> np.ndarray:
        """Nodes of every graph, int64 `[G]`."""
        return np.diff(self.first)

    @property
    def source(self) -> np.ndarray:
        """The node that every entry of the adjacency starts from, int64 `[E]`."""
        return np.repeat(np.arange(len(self.row)), np.diff(self.indptr))

    def some(self, chosen: np.ndarray) -> "SmallGraphs":
        """Selects graphs in the order asked for, numbers int64 `[g]`."""
        sizes = self.sizes[chosen]
        first = np.concatenate([[0], np.cumsum(sizes)])
        # Chosen graphs lie closer together, so their nodes move up.
        moved = np.repeat(self.first[chosen] - first[:-1], sizes)
        node = np.arange(first[-1]) + moved
        degree = np.diff(self.indptr)[node]
        indptr = np.concatenate([[0], np.cumsum(degree)])
        entry = np.arange(indptr[-1]) + np.repeat(self.indptr[node] - indptr[:-1], degree)
        return SmallGraphs(first, indptr, self.indices[entry] - np.repeat(moved, degree), self.row[node])

    def batch(self, data: View, coupled: Coupled) -> GraphBatch:
        """Builds the batch that a backbone reads of all of them; `data` has the features."""
        device = data.device
        first = torch.from_numpy(self.first).to(device)
        matrix = operator_over(coupled.operator, self.indptr, self.indices).to(device)
        codes_NQ = None
        if coupled.structure is not None:
            adjacency = operator_over("sum", self.indptr, self.indices).to(device)
            codes_NQ = structure_codes(adjacency.csr, first)
        x_NF = data.rows(0, torch.from_numpy(self.row))
        return GraphBatch([x_NF], (matrix,) * coupled.depth, first, codes_NQ)


def adjacency_of(source: np.ndarray, target: np.ndarray, nodes: int) -> tuple[np.ndarray, np.ndarray]:
    """Builds row starts, int64 `[N + 1]`, and ascending columns, int64, of entries in any order; doubles count once."""
    row, column = np.divmod(np.unique(source.astype(np.int64) * nodes + target), max(nodes, 1))
    return np.concatenate([[0], np.cumsum(np.bincount(row, minlength=nodes))]), column


def cut_up(indptr: np.ndarray, indices: np.ndarray, part: np.ndarray) -> SmallGraphs:
    """Cuts a graph into parts, numbered from 0 by node, as separate graphs; edges between them are lost."""
    order = np.argsort(part, kind="stable")
    place = np.empty_like(order)
    place[order] = np.arange(len(order))
    source = np.repeat(np.arange(len(part)), np.diff(indptr))
    inside = part[source] == part[indices]
    starts, columns = adjacency_of(place[source[inside]], place[indices[inside]], len(part))
    return SmallGraphs(np.concatenate([[0], np.cumsum(np.bincount(part))]), starts, columns, order)


def without_nodes(graphs: SmallGraphs, share: float, rng: np.random.Generator) -> SmallGraphs:
    """Removes a share in [0, 1) of every graph's nodes, drawn uniformly; others keep their order."""
    lost_G = _share_of(share, graphs.sizes)
    kept_N = ~_draw_elements(graphs.sizes, lost_G, rng)
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
    """Replaces a share of every graph's undirected edges by as many drawn pairs of its nodes.

    Pairs are two different nodes, drawn uniformly with replacement: one that is an edge already, or that is drawn
    twice, counts once. The share is in [0, 1).
    """
    source, target = graphs.source, graphs.indices
    once = source < target
    source, target = source[once], target[once]
    graph_N = np.repeat(np.arange(len(graphs)), graphs.sizes)
    edges_G = np.bincount(graph_N[source], minlength=len(graphs))
    changed_G = _share_of(share, edges_G)
    # Edges are ordered by their graphs.
    kept = ~_draw_elements(edges_G, changed_G, rng)
    # A graph that has an edge has two nodes.
    size, start = (np.repeat(column, changed_G) for column in (graphs.sizes, graphs.first[:-1]))
    sender = rng.integers(size)
    other = (sender + 1 + rng.integers(size - 1)) % size
    ends = np.concatenate([source[kept], start + sender]), np.concatenate([target[kept], start + other])
    both = np.concatenate(ends), np.concatenate(ends[::-1])
    return SmallGraphs(graphs.first, *adjacency_of(*both, len(graphs.row)), graphs.row)


def _share_of(share: float, counts: np.ndarray) -> np.ndarray:
    # The small constant keeps 0.29 * 100 from becoming 28.
    return np.floor(share * counts + 1e-9).astype(np.int64)


def _draw_elements(sizes_G: np.ndarray, counts_G: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Draws elements of groups that lie behind one another, uniformly, so many of each: bool `[sum of sizes]`."""
    group = np.repeat(np.arange(len(sizes_G)), sizes_G)
    order = np.lexsort((rng.random(len(group)), group))
    rank = np.arange(len(group)) - np.repeat(np.cumsum(sizes_G) - sizes_G, sizes_G)
    drawn = np.empty(len(group), dtype=bool)
    drawn[order] = rank < np.repeat(counts_G, sizes_G)
    return drawn
