"""GCN: sums over neighbours, normalised by both degrees."""

from collections.abc import Sequence
from typing import Any, Literal

import torch.nn.functional as F
from torch import Tensor

from shoal.algorithms.models.layers.coupled import Coupled
from shoal.algorithms.models.layers.dropout import transform
from shoal.algorithms.models.layers.message_layers import GCNConv, largest
from shoal.storage.errors import ShoalError
from shoal.storage.graph.sparse_matrix import Features, SparseMatrix


class GCN(Coupled):
    """Graph Convolutional Network (Kipf and Welling, 2017): H' = D^-1/2 (A + I) D^-1/2 H W + b.

    Where edges have weights, they are the entries of A.

    With `jumping: max` (Xu et al., ICML 2018, section 4) ReLU follows every layer, the last included, and the
    embedding is the largest of all layers' outputs, entry by entry, before their dropout.

    With `norm: batch` every column is normalised before each ReLU, by mean and variance over the nodes of the graph at
    hand, in evaluation, too: it has no parameters and keeps no statistics, and reads the whole graph. A classifier of
    `head: conv`, as in the paper, reads the output of the layer before it after normalisation, ReLU and dropout.
    """

    operator = "symmetric"
    traced = True
    weighs_edges = True
    in_batches = True
    papers_head = "conv"

    def __init__(
        self,
        *shape: Any,
        jumping: Literal["none", "max"] = "none",
        norm: Literal["none", "batch"] = "none",
        **options: Any,
    ) -> None:
        """Takes the arguments of `Coupled`, and two more; a `norm` refuses drawn neighbours.

        Args:
            jumping: `none` embeds by the last layer's output, `max` by the largest of all layers' outputs.
            norm: `batch` normalises hidden layers over the nodes of the graph, `none` does not.
        """
        super().__init__(*shape, **options)
        if self.fanouts and norm != "none":
            raise ShoalError("model.fanouts", "norm: batch reads the whole graph; leave it out")
        self.norm = norm
        self.jump = largest if jumping != "none" else None

    def layer(self, number: int, width: int, out: int, last: bool) -> GCNConv:
        return GCNConv(width, out)

    def embed(self, x_NF: Features, operators: Sequence[SparseMatrix]) -> Tensor:
        if self.jump is None:
            return super().embed(x_NF, operators)
        first, *others = zip(self.convs, operators)
        x = self.activate(self.convolve(*first, x_NF))
        outputs = [x]
        for conv, operator in others:
            x = self.activate(self.convolve(conv, operator, self.drop(x)))
            outputs.append(x)
        # Every layer has fewer receivers than the one before if there are fanouts.
        return self.jump([x[: len(operators[-1])] for x in outputs])

    @property
    def row_by_row(self) -> bool:
        # All rows, padded ones too, would have part in what a batch normalisation computes.
        return self.norm == "none"

    def convolve(self, conv: Any, operator: SparseMatrix, x: Features) -> Tensor:
        return operator @ transform(x, conv.lin.weight) + conv.bias

    def activate(self, x: Tensor) -> Tensor:
        # One row is its own mean, and nothing would be left of it.
        if self.norm == "batch" and len(x) > 1:
            x = F.batch_norm(x, None, None, training=True)
        return F.relu(x)
