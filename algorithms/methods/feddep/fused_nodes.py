"""Nodes with generated embeddings of missing neighbours, which every layer of a model adds to its output.

Axes: N nodes of the client, E width of an embedding, H_l width of layer l, Q numbers of all fusing weights.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from shoal.algorithms.models.inputs.neighbourhood import Neighbourhood, all_nodes, sample_nodes, standalone
from shoal.algorithms.models.inputs.shifted_matrix import ShiftedMatrix
from shoal.algorithms.models.layers.coupled import Coupled
from shoal.storage.graph.sparse_matrix import SparseMatrix
from shoal.storage.shards.view import View


def layer_widths(coupled: Coupled) -> list[int]:
    """Lists widths H_l of outputs: of layers, and of a classifier that passes messages."""
    last = coupled.head.linears[-1]
    hidden, classes = last.get_parameter("weight").shape[::-1]
    return [hidden] * len(coupled.convs) + [classes] * coupled.conv_head


def draw_fusion(coupled: Coupled, width: int, rng: torch.Generator) -> Tensor:
    """Draws the weights U_l `[H_l, E]` of all layers, flat `[Q]`, uniformly between -1 / sqrt(E) and 1 / sqrt(E)."""
    bound, count = width**-0.5, sum(layer_widths(coupled)) * width
    return torch.empty(count, device=rng.device).uniform_(-bound, bound, generator=rng)


def fuse(
    operators: Sequence[SparseMatrix], coupled: Coupled, mean_NE: Tensor, fusion_Q: Tensor
) -> tuple[SparseMatrix, ...]:
    """Lets layer l add U_l e_v to the output of node v; the matrices' senders are the first rows of `mean_NE`."""
    widths = layer_widths(coupled)
    weights = fusion_Q.view(-1, mean_NE.shape[1]).split(widths)
    return tuple(
        ShiftedMatrix(operator, mean_NE[: len(operator)] @ weight_HE.t())
        for operator, weight_HE in zip(operators, weights, strict=True)
    )


@dataclass(frozen=True)
class FusedNodes:
    """The nodes of a client, as a coupled backbone reads them whose layers add generated embeddings."""

    data: View
    mean_NE: Tensor
    fusion_Q: Tensor
    coupled: Coupled

    # A part needs the whole graph.
    one_pass: ClassVar[bool] = True

    def all(self) -> Neighbourhood:
        """Returns all nodes of the client."""
        around = all_nodes(self.data, self.coupled.operator, self.coupled.depth)
        return self._fused(around, self.mean_NE)

    def some(self, rows: Tensor) -> Neighbourhood:
        """Selects nodes in the order asked for, rows int64 `[n]`."""
        return self.all()._replace(rows=rows)

    def part(self, name: str) -> Neighbourhood:
        """Selects the nodes of `train`, `val` or `test`."""
        return self.some(getattr(self.data, name))

    def successive(self, rows: int) -> Iterator[Neighbourhood]:
        """Yields all nodes in one batch."""
        yield self.all()

    def standalone(self, x_NF: Tensor) -> Neighbourhood:
        """Makes nodes all of whose neighbours have the features of the node itself, and that miss none."""
        return standalone(x_NF, self.coupled.operator, self.coupled.depth)

    def drawn(self, most: int, rng: np.random.Generator) -> Neighbourhood:
        """Draws for the training nodes, layer by layer, up to `most` neighbours of every node; 0 takes all."""
        fanouts = [most or -1] * self.coupled.depth
        around, rows = sample_nodes(self.data, self.coupled.operator, fanouts, self.data.train, rng)
        return self._fused(around, self.mean_NE[rows])

    def _fused(self, around: Neighbourhood, mean_NE: Tensor) -> Neighbourhood:
        return around._replace(operators=fuse(around.operators, self.coupled, mean_NE, self.fusion_Q))
