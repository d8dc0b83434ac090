"""A graph whose nodes have new neighbours: its features, its edges, and what a coupled backbone reads of it.

Axes: N nodes of the graph, M new ones, each the neighbour of one node of the graph; F features.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from shoal.algorithms.models.inputs.neighbourhood import Neighbourhood, standalone
from shoal.algorithms.models.layers.coupled import Coupled
from shoal.storage.graph.sparse_matrix import FeatureMatrix, Features, SparseMatrix
from shoal.storage.shards.view import View


class AugmentedFeatures(FeatureMatrix):
    """X and below it the features of new nodes, `[N + M, F]`: its product with W is that of both; X is not copied."""

    def __init__(self, x_NF: Features, new_MF: Features) -> None:
        """Takes both, float32; those of new nodes may be differentiated."""
        self._x, self._new = x_NF, new_MF

    @property
    def shape(self) -> torch.Size:
        return torch.Size((len(self._x) + len(self._new), self._new.shape[1]))

    def __matmul__(self, weight_FH: Tensor) -> Tensor:
        return torch.cat([self._x @ weight_FH, self._new @ weight_FH])

    def to_dense(self) -> Tensor:
        return torch.cat([self._x.to_dense(), self._new.to_dense()])


def with_new_neighbours(indptr: np.ndarray, indices: np.ndarray, count_N: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Builds row starts `[N + M + 1]` and ascending columns of a graph with so many new neighbours of every node.

    New nodes stand behind all others, in the order of the nodes that they are neighbours of, and have no other.
    """
    nodes, entries, new = len(count_N), len(indices), int(count_N.sum())
    before = np.concatenate([[0], np.cumsum(count_N)])
    owner_M, number_M = np.repeat(np.arange(nodes), count_N), np.arange(new)
    starts = indptr.astype(np.int64) + before
    columns = np.empty(entries + 2 * new, dtype=np.int32)
    columns[np.arange(entries) + np.repeat(before[:-1], np.diff(indptr))] = indices
    # Their numbers are the highest, so that they come last in a row.
    columns[indptr[owner_M + 1] + number_M] = nodes + number_M
    columns[entries + new :] = owner_M
    return np.concatenate([starts, starts[-1] + 1 + number_M]), columns


@dataclass(frozen=True)
class AugmentedNodes:
    """The nodes of a client, as a coupled backbone reads them in an augmented graph; no new node is an item."""

    data: View
    x: AugmentedFeatures
    operator: SparseMatrix
    coupled: Coupled

    # A part needs the whole graph.
    one_pass: ClassVar[bool] = True

    def all(self) -> Neighbourhood:
        """Returns all nodes of the client."""
        return self.some(torch.arange(self.data.nodes, device=self.operator.device))

    def some(self, rows: Tensor) -> Neighbourhood:
        """Selects nodes in the order asked for, rows int64 `[n]`."""
        return Neighbourhood(self.x, (self.operator,) * self.coupled.depth, rows)

    def part(self, name: str) -> Neighbourhood:
        """Selects the nodes of `train`, `val` or `test`."""
        return self.some(getattr(self.data, name))

    def successive(self, rows: int) -> Iterator[Neighbourhood]:
        """Yields all nodes in one batch."""
        yield self.all()

    def standalone(self, x_NF: Tensor) -> Neighbourhood:
        """Makes nodes all of whose neighbours have the features of the node itself."""
        return standalone(x_NF, self.coupled.operator, self.coupled.depth)
