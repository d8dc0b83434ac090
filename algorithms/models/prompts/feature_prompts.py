"""Prompts that leave nodes and edges as they are: they add to the features, or do nothing.

Axes: N nodes, F features, K vectors.
"""

import math

import torch
from torch import Tensor, nn

from shoal.algorithms.models.inputs.graph_batch import GraphBatch
from shoal.algorithms.models.items.plain_graphs import PlainGraphs, features_of, pairs_of
from shoal.storage.errors import ShoalError


class Unchanged(nn.Module):
    """No prompt: the graphs as they are. It has no parameters."""

    def __init__(self, features: int) -> None:
        """The width of the features is not used."""
        super().__init__()

    def reset_parameters(self) -> None:
        """There is nothing to draw."""

    def forward(self, batch: GraphBatch) -> PlainGraphs:
        """The graphs, their features changed."""
        return PlainGraphs(self.changed(features_of(batch)), pairs_of(batch), batch.first)

    def changed(self, x_NF: Tensor) -> Tensor:
        """What becomes of features."""
        return x_NF


class GPF(Unchanged):
    """Graph prompt feature (Fang et al., NeurIPS 2023, section 4.1): x_i + p."""

    def __init__(self, features: int) -> None:
        """Draws p, `[1, F]`, from torch's default generator."""
        super().__init__(features)
        self.added = nn.Parameter(torch.empty(1, features))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draws p anew, Xavier-uniform."""
        nn.init.xavier_uniform_(self.added)

    def changed(self, x_NF: Tensor) -> Tensor:
        return x_NF + self.added


class GPFPlus(Unchanged):
    """GPF-plus (the same paper, section 4.2): x_i + sum_j softmax_j(<a_j, x_i>) b_j."""

    def __init__(self, features: int, *, vectors: int = 10) -> None:
        """Draws the parameters from torch's default generator.

        Args:
            features: Width F of the features.
            vectors: Number K of vectors b.

        Raises:
            ShoalError: There is no vector.
        """
        super().__init__(features)
        if vectors < 1:
            raise ShoalError(f"model.prompt.vectors: must be at least 1, found {vectors}")
        self.scored = nn.Parameter(torch.empty(vectors, features))
        self.added = nn.Parameter(torch.empty(vectors, features))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draws a anew as a linear layer's weight, and b Xavier-uniform."""
        nn.init.kaiming_uniform_(self.scored, a=math.sqrt(5))
        nn.init.xavier_uniform_(self.added)

    def changed(self, x_NF: Tensor) -> Tensor:
        return x_NF + (x_NF @ self.scored.t()).softmax(1) @ self.added
