"""Graph prompts: a few parameters that change a graph before a GNN reads it.

Axes: N nodes of G graphs, F features, E pairs of neighbours.
"""

import math
from typing import Annotated, Literal

import torch
from pydantic import Field
from pydantic.dataclasses import dataclass
from torch import Tensor, nn

from algorithms.backbones.graph_batch import GraphBatch
from algorithms.backbones.plain_graphs import PlainGraphs
from storage.option_types import CLOSED, Number, Whole
from storage.sparse_matrix import SparseMatrix

Share = Annotated[Number, Field(gt=0, le=1)]
# Of a product of a share and a count: 0.55 * 100 is 55.00000000000001.
DIGITS = 9


@dataclass(frozen=True, config=CLOSED)
class PromptChoice:
    """The key `model.prompt` of a config.

    Attributes:
        name: `vpg`, `gpf`, `gpf_plus`, or `none`: graphs stay as they are.
        nodes: Share of a graph's nodes that `vpg` keeps.
        edges: Share of the edges between these that it keeps.
        candidates: Nodes that it adds to every graph, with features that are learnt.
        gamma: Sigmoid of a product of features from which on an added node is joined to a node.
        bases: Vectors that `gpf_plus` mixes for every node.

    Raises:
        ValueError: A value is out of its bounds.
    """

    name: Literal["vpg", "gpf", "gpf_plus", "none"]
    nodes: Share = 0.5
    edges: Share = 0.9
    candidates: Annotated[Whole, Field(ge=0, le=1000)] = 0
    gamma: Annotated[Number, Field(gt=0, lt=1)] = 0.5
    bases: Annotated[Whole, Field(ge=1, le=1000)] = 10


class NoPrompt(nn.Module):
    """Hands graphs on as they are."""

    def reset_parameters(self) -> None:
        """Has none."""

    def forward(self, batch: GraphBatch) -> PlainGraphs:
        """The graphs of a batch, whose matrices are plain adjacencies."""
        return PlainGraphs(dense(batch), pairs_of(batch), batch.first)


class GPF(NoPrompt):
    """x~ = x + p: one vector for all nodes (Fang et al., NeurIPS 2023, section 3)."""

    def __init__(self, features: int) -> None:
        """Draws p as a linear layer would draw it, uniform in ± 1 / sqrt(F)."""
        super().__init__()
        self.p = nn.Parameter(torch.empty(features))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        draw_within(self.p, len(self.p))

    def forward(self, batch: GraphBatch) -> PlainGraphs:
        plain = super().forward(batch)
        return PlainGraphs(plain.x_NF + self.p, plain.pairs_2E, plain.first)


class GPFPlus(NoPrompt):
    """x~_i = x_i + sum_j softmax_j(a_j . x_i) b_j (ibid.): every node mixes the vectors b by its features."""

    def __init__(self, features: int, bases: int) -> None:
        """Draws a and b, uniform in ± 1 / sqrt(F)."""
        super().__init__()
        self.a = nn.Parameter(torch.empty(bases, features))
        self.b = nn.Parameter(torch.empty(bases, features))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        for part in (self.a, self.b):
            draw_within(part, part.shape[1])

    def forward(self, batch: GraphBatch) -> PlainGraphs:
        plain = super().forward(batch)
        mixed_NF = torch.softmax(plain.x_NF @ self.a.t(), dim=1) @ self.b
        return PlainGraphs(plain.x_NF + mixed_NF, plain.pairs_2E, plain.first)


class VPG(nn.Module):
    """Virtual prompt graph (FedGPL, section 4): nodes and edges that mean much are kept, features scaled by it.

    w_i = <x_i, p> / ||p||. Of a graph's n nodes the ceil(nodes * n) of the largest w stay, with x~_i = tanh(w_i) x_i,
    and of the m pairs that are left between these the floor(edges * m) of the largest |w_i - w_j|. Among equals the
    first ones stay. What is chosen is a constant of the gradient: p learns by the scale of what is kept.

    `candidates` nodes with features of their own are first added to every graph, and joined to its nodes where the
    sigmoid of <x_c, x_i> is at least `gamma`; they are then ranked like all others.
    """

    def __init__(self, features: int, choice: PromptChoice) -> None:
        """Draws p and the candidates, uniform in ± 1 / sqrt(F)."""
        super().__init__()
        self.nodes, self.edges = choice.nodes, choice.edges
        self.joined_from = math.log(choice.gamma / (1 - choice.gamma))
        self.p = nn.Parameter(torch.empty(features))
        self.candidates = nn.Parameter(torch.empty(choice.candidates, features)) if choice.candidates else None
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draws all parameters anew from torch's default generator."""
        draw_within(self.p, len(self.p))
        if self.candidates is not None:
            draw_within(self.candidates, len(self.p))

    def forward(self, batch: GraphBatch) -> PlainGraphs:
        """The prompted graphs of a batch, whose matrices are plain adjacencies."""
        return self._chosen(self._extended(PlainGraphs(dense(batch), pairs_of(batch), batch.first)))

    def _extended(self, plain: PlainGraphs) -> PlainGraphs:
        """With the candidates behind the nodes of every graph."""
        if self.candidates is None:
            return plain
        count, graphs = len(self.candidates), len(plain.first) - 1
        number_N = graph_of_rows(plain.first)
        first = plain.first + count * torch.arange(graphs + 1, device=plain.first.device)
        place_N = torch.arange(len(number_N), device=first.device) + count * number_N
        place_GK = first[1:, None] - torch.arange(count, 0, -1, device=first.device)
        # Nodes, then all candidates, as they lie; then where they belong.
        order = torch.cat([place_N, place_GK.reshape(-1)]).argsort()
        x_NF = torch.cat([plain.x_NF, self.candidates.repeat(graphs, 1)])[order]
        node, candidate = ((plain.x_NF @ self.candidates.t()).detach() >= self.joined_from).nonzero(as_tuple=True)
        joins_2E = torch.stack([place_N[node], place_GK[number_N[node], candidate]])
        pairs_2E = torch.cat([place_N[plain.pairs_2E.long()], joins_2E], dim=1)
        return PlainGraphs(x_NF, pairs_2E.int(), first)

    def _chosen(self, plain: PlainGraphs) -> PlainGraphs:
        # A matrix product rounds equal rows differently, by where they lie.
        w_N = (plain.x_NF * (self.p / self.p.norm().clamp(min=1e-12))).sum(1)
        rank_N, number_N = w_N.detach(), graph_of_rows(plain.first)
        sizes_G = plain.first.diff()
        wanted_G = (self.nodes * sizes_G.double()).round(decimals=DIGITS).ceil().long()
        kept = largest_of_groups(rank_N, number_N, sizes_G, wanted_G)
        place_N = torch.full_like(number_N, -1)
        place_N[kept] = torch.arange(len(kept), device=kept.device)
        a, b = plain.pairs_2E.long()
        left = ((place_N[a] >= 0) & (place_N[b] >= 0)).nonzero().squeeze(1)
        a, b = a[left], b[left]
        of_pair = number_N[a]
        pairs_G = torch.bincount(of_pair, minlength=len(sizes_G))
        wanted_pairs_G = (self.edges * pairs_G.double()).round(decimals=DIGITS).floor().long()
        # Pairs of one graph lie together only where nothing was added to them.
        order = of_pair.argsort(stable=True)
        a, b = a[order], b[order]
        chosen = largest_of_groups((rank_N[a] - rank_N[b]).abs(), of_pair[order], pairs_G, wanted_pairs_G)
        first = torch.cat([wanted_G.new_zeros(1), wanted_G.cumsum(0)])
        x_NF = plain.x_NF[kept] * torch.tanh(w_N[kept])[:, None]
        return PlainGraphs(x_NF, place_N[torch.stack([a[chosen], b[chosen]])].int(), first)


def build_prompt(choice: PromptChoice, features: int) -> nn.Module:
    """The prompt of a config."""
    if choice.name == "vpg":
        return VPG(features, choice)
    if choice.name == "gpf":
        return GPF(features)
    return GPFPlus(features, choice.bases) if choice.name == "gpf_plus" else NoPrompt()


def largest_of_groups(value_N: Tensor, group_N: Tensor, size_G: Tensor, wanted_G: Tensor) -> Tensor:
    """Places of the largest values of every group, ascending; among equals the first ones.

    Args:
        value_N: Values.
        group_N: Group of every value, int64, ascending.
        size_G: Values of every group.
        wanted_G: How many of each to take.
    """
    order = value_N.argsort(descending=True, stable=True)
    order = order[group_N[order].argsort(stable=True)]
    start_G = size_G.cumsum(0) - size_G
    rank_N = torch.arange(len(order), device=order.device) - start_G[group_N]
    return order[rank_N < wanted_G[group_N]].sort().values


def graph_of_rows(first: Tensor) -> Tensor:
    """Number of the graph of every node, int64 `[N]`."""
    return torch.arange(len(first) - 1, device=first.device).repeat_interleave(first.diff())


def pairs_of(batch: GraphBatch) -> Tensor:
    """Neighbours in the first matrix of a batch, every pair once, int32 `[2, E]`, the smaller row above."""
    starts, columns, _ = batch.operators[0].parts()
    rows = graph_of_rows(starts)
    once = columns > rows
    return torch.stack([rows[once].int(), columns[once]])


def dense(batch: GraphBatch) -> Tensor:
    """Features of a batch, float32 `[N, F]`."""
    (x_NF,) = batch.hops
    return x_NF.float().to_dense() if isinstance(x_NF, SparseMatrix) else x_NF.float()


def draw_within(p: Tensor, width: int) -> None:
    """Draws values uniformly in ± 1 / sqrt(width)."""
    nn.init.uniform_(p, -1 / math.sqrt(width), 1 / math.sqrt(width))
