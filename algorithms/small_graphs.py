"""Many small graphs behind one another as plain arrays, to be chosen from and altered: no client holds them."""

from dataclasses import dataclass

import numpy as np
import torch

from algorithms.backbones.coupled import Coupled
from algorithms.backbones.graph_batch import GraphBatch
from algorithms.backbones.neighbourhood import operator_over
from algorithms.backbones.structure_codes import structure_codes
from storage.view import View


@dataclass(frozen=True)
class SmallGraphs:
    """Graphs without loops, of which no edge joins two.

    Attributes:
        first: First node of every graph and the end of the last, int64 `[G + 1]`; every graph has a node.
        indptr: Row starts of the adjacency, integers `[N + 1]`.
        indices: Columns, ascending in a row, every edge both ways, integers `[E]`.
        row: Where the features of every node are, int64 `[N]`.
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
        """Some graphs in the order asked for, numbers int64 `[g]`."""
        sizes = self.sizes[chosen]
        first = np.concatenate([[0], np.cumsum(sizes)])
        # How far the nodes of a graph move up.
        moved = np.repeat(self.first[chosen] - first[:-1], sizes)
        node = np.arange(first[-1]) + moved
        degree = np.diff(self.indptr)[node]
        indptr = np.concatenate([[0], np.cumsum(degree)])
        entry = np.arange(indptr[-1]) + np.repeat(self.indptr[node] - indptr[:-1], degree)
        return SmallGraphs(first, indptr, self.indices[entry] - np.repeat(moved, degree), self.row[node])

    def batch(self, data: View, coupled: Coupled) -> GraphBatch:
        """What a backbone reads of all of them.

        Args:
            data: Where the features are.
            coupled: The backbone.
        """
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
    """Row starts, int64 `[N + 1]`, and ascending columns, int64, of entries in any order; a double one counts once."""
    row, column = np.divmod(np.unique(source.astype(np.int64) * nodes + target), max(nodes, 1))
    return np.concatenate([[0], np.cumsum(np.bincount(row, minlength=nodes))]), column


def cut_up(indptr: np.ndarray, indices: np.ndarray, part: np.ndarray) -> SmallGraphs:
    """The parts of one graph as graphs of their own; edges between them are lost.

    Args:
        indptr: Row starts of its adjacency, `[N + 1]`.
        indices: Columns, `[E]`.
        part: Part of every node, integers `[N]` from 0, none empty.
    """
    order = np.argsort(part, kind="stable")
    place = np.empty_like(order)
    place[order] = np.arange(len(order))
    source = np.repeat(np.arange(len(part)), np.diff(indptr))
    inside = part[source] == part[indices]
    starts, columns = adjacency_of(place[source[inside]], place[indices[inside]], len(part))
    return SmallGraphs(np.concatenate([[0], np.cumsum(np.bincount(part))]), starts, columns, order)
