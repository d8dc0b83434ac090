"""Prompts that leave nodes and edges as they are: they add to the features, or do nothing.

Axes: N nodes of G graphs, F features, K vectors.
"""

import math
from typing import Literal

import torch
from torch import Tensor, nn

from shoal.algorithms.models.inputs.graph_batch import GraphBatch
from shoal.algorithms.models.inputs.neighbourhood import operator_over
from shoal.algorithms.models.items.plain_graphs import PlainGraphs, features_of, graphs_of_rows, pairs_of
from shoal.algorithms.models.layers.readout import ceil_of, highest
from shoal.storage.errors import ShoalError
from shoal.storage.graph.sparse_matrix import SparseMatrix


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
            raise ShoalError("model.prompt.vectors", f"must be at least 1, found {vectors}")
        self.scored = nn.Parameter(torch.empty(vectors, features))
        self.added = nn.Parameter(torch.empty(vectors, features))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draws a anew as a linear layer's weight, and b Xavier-uniform."""
        nn.init.kaiming_uniform_(self.scored, a=math.sqrt(5))
        nn.init.xavier_uniform_(self.added)

    def changed(self, x_NF: Tensor) -> Tensor:
        return x_NF + (x_NF @ self.scored.t()).softmax(1) @ self.added


class SUPT(nn.Module):
    """Subgraph-level universal prompts (Lee et al., 2024) with vectors p_1 to p_K.

    A graph convolution scores nodes for vectors: S = D^-1/2 (A + I) D^-1/2 (X + sum_j p_j) W + b, `[N, K]`. With
    `soft` a node becomes x_i + sum_j softmax_j(s_i) p_j. With `hard` vector j is for the ceil(share * n) nodes of
    every graph with the largest tanh(s_ij), of equals the first, and a node becomes
    x_i + sum_j tanh(s_ij) p_j / (1 + c_i), both over the c_i vectors that are for it; which these are is constant for
    the gradient.
    """

    def __init__(
        self, features: int, *, vectors: int = 10, form: Literal["soft", "hard"] = "soft", share: float = 0.2
    ) -> None:
        """Draws the parameters from torch's default generator.

        Args:
            features: Width F of the features.
            vectors: Number K of vectors.
            form: See above.
            share: Share of a graph's nodes that a vector is for; `hard` only.

        Raises:
            ShoalError: An option is out of range.
        """
        super().__init__()
        if vectors < 1:
            raise ShoalError("model.prompt.vectors", f"must be at least 1, found {vectors}")
        if not 0 < share <= 1:
            raise ShoalError("model.prompt.share", f"must be above 0 and at most 1, found {share}")
        self.form, self.share = form, share
        self.added = nn.Parameter(torch.empty(vectors, features))
        self.weight = nn.Parameter(torch.empty(vectors, features))
        self.bias = nn.Parameter(torch.empty(vectors))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draws vectors and the convolution's weight anew, both Xavier-uniform; its bias is zero."""
        nn.init.xavier_uniform_(self.added)
        nn.init.xavier_uniform_(self.weight)
        nn.init.zeros_(self.bias)

    def forward(self, batch: GraphBatch) -> PlainGraphs:
        """The graphs, their features changed."""
        x_NF = features_of(batch)
        score_NK = _averaged(batch) @ ((x_NF + self.added.sum(0)) @ self.weight.t()) + self.bias
        share_NK = score_NK.softmax(1) if self.form == "soft" else self._of_chosen(score_NK.tanh(), batch.first)
        return PlainGraphs(x_NF + share_NK @ self.added, pairs_of(batch), batch.first)

    def _of_chosen(self, score_NK: Tensor, first: Tensor) -> Tensor:
        """Factors of vectors at nodes, 0 where a vector is not for a node."""
        graph_N, wanted_G = graphs_of_rows(first), ceil_of(self.share, first.diff())
        chosen_NK = torch.zeros_like(score_NK)
        for vector, score_N in enumerate(score_NK.detach().unbind(1)):
            chosen_NK[highest(score_N.contiguous(), graph_N, wanted_G), vector] = 1
        return score_NK * chosen_NK / (1 + chosen_NK.sum(1, keepdim=True))


def _averaged(batch: GraphBatch) -> SparseMatrix:
    """The matrix of a graph convolution over the nodes of a batch."""
    starts, columns, _ = batch.operators[0].parts()
    return operator_over("symmetric", starts.cpu().numpy(), columns.cpu().numpy()).to(starts.device)
