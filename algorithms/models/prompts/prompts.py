"""Prompts: trained changes of graphs before a GNN reads them, and a model of graphs with one.

Axes: N nodes of G graphs, F features, K vectors, or new nodes of every graph; H width of the embedding.
"""

import math
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn

from shoal.algorithms.models.inputs.neighbourhood import GraphBatch, operator_over
from shoal.algorithms.models.items.plain_graphs import PlainGraphs, batch_of, features_of, graphs_of_rows, pairs_of
from shoal.algorithms.models.layers.head import Head, Output
from shoal.algorithms.models.layers.readout import Readout, ceil_of, floor_of, highest
from shoal.storage.errors import ShoalError
from shoal.storage.options.types import Chance, Count, Part, Positive, Share

# Below it, a direction's length is taken to be this.
SHORTEST = 1e-12


class Prompted(nn.Module):
    """A prompt before a coupled backbone with a readout: logits = classifier(dropout(GNN(prompt(graphs)))).

    Names of parameters tell its three parts: those of the prompt begin with `prompt.`, those of the classifier with
    `backbone.backbone.head.`, all others are the GNN's and its readout's. The prompt's come first. It makes
    `PlainGraphs` of a `GraphBatch` whose matrix is the plain adjacency.
    """

    def __init__(self, prompt: nn.Module, backbone: Readout) -> None:
        super().__init__()
        self.prompt: Any = prompt
        self.backbone: Any = backbone
        self.inputs = backbone.inputs

    @property
    def head(self) -> Head:
        """The backbone's own."""
        return self.backbone.head

    def reset_parameters(self) -> None:
        """Draws all parameters anew from torch's default generator, the GNN's as without a prompt."""
        self.backbone.reset_parameters()
        self.prompt.reset_parameters()

    def forward(self, batch: GraphBatch) -> Output:
        """Computes the output for every graph of a batch; the embedding is the pooled one, `[G, H]`."""
        return self.backbone.classify_items(self.answer(self.prompt(batch)))

    def answer(self, graphs: PlainGraphs) -> Tensor:
        """Embeds graphs by the GNN and its readout, `[G, H]`: a server computes this in split learning."""
        return self.backbone.embed_graphs(batch_of(graphs, self.backbone.backbone))


def freeze_gnn(module: nn.Module) -> None:
    """Takes the gradients from all parameters of a model but those of its prompt and its classifier.

    Raises:
        ShoalError: The model is no `Prompted`.
    """
    if not isinstance(module, Prompted):
        way_out = "none for a classifier alone, and leave heterogeneity.embedding out"
        raise ShoalError("model.frozen", f"is for a GNN between a prompt and a classifier; set model.prompt, {way_out}")
    module.requires_grad_(False)
    for trained in (module.prompt, module.head):
        trained.requires_grad_(True)


class Unchanged(nn.Module):
    """No prompt: the graphs as they are. It has no parameters."""

    def __init__(self, features: int) -> None:
        super().__init__()

    def reset_parameters(self) -> None:
        """There is nothing to draw."""

    def forward(self, batch: GraphBatch) -> PlainGraphs:
        """Changes the features of graphs."""
        return PlainGraphs(self.change(features_of(batch)), pairs_of(batch), batch.first)

    def change(self, x_NF: Tensor) -> Tensor:
        """Changes features; here it leaves them."""
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

    def change(self, x_NF: Tensor) -> Tensor:
        return x_NF + self.added


class GPFPlus(Unchanged):
    """GPF-plus (the same paper, section 4.2): x_i + sum_j softmax_j(<a_j, x_i>) b_j."""

    def __init__(self, features: int, *, vectors: Positive = 10) -> None:
        """Draws K = `vectors` vectors from torch's default generator."""
        super().__init__(features)
        self.scored = nn.Parameter(torch.empty(vectors, features))
        self.added = nn.Parameter(torch.empty(vectors, features))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draws a anew as a linear layer's weight, and b Xavier-uniform."""
        nn.init.kaiming_uniform_(self.scored, a=math.sqrt(5))
        nn.init.xavier_uniform_(self.added)

    def change(self, x_NF: Tensor) -> Tensor:
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
        self, features: int, *, vectors: Positive = 10, form: Literal["soft", "hard"] = "soft", share: Part = 0.2
    ) -> None:
        """Draws the parameters from torch's default generator."""
        super().__init__()
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
        """Changes the features of graphs."""
        x_NF = features_of(batch)
        starts, columns, _ = batch.operators[0].parts()
        averaged = operator_over("symmetric", starts.cpu().numpy(), columns.cpu().numpy()).to(starts.device)
        score_NK = averaged @ ((x_NF + self.added.sum(0)) @ self.weight.t()) + self.bias
        share_NK = score_NK.softmax(1) if self.form == "soft" else self._of_chosen(score_NK.tanh(), batch.first)
        return PlainGraphs(x_NF + share_NK @ self.added, pairs_of(batch), batch.first)

    def _of_chosen(self, score_NK: Tensor, first: Tensor) -> Tensor:
        """Factors of vectors at nodes, 0 where a vector is not for a node."""
        graph_N, wanted_G = graphs_of_rows(first), ceil_of(self.share, first.diff())
        chosen_NK = torch.zeros_like(score_NK)
        for vector, score_N in enumerate(score_NK.detach().unbind(1)):
            chosen_NK[highest(score_N.contiguous(), graph_N, wanted_G), vector] = 1
        return score_NK * chosen_NK / (1 + chosen_NK.sum(1, keepdim=True))


@dataclass(frozen=True)
class WithAdded:
    """Graphs with G K new nodes, which no edge joins yet: features `[M, F]` of all, and first rows, int64 `[G + 1]`.

    `own_N` and `added_GK` are where the graphs' own and the new nodes are now, `graph_N` the graph of every own one,
    int64.
    """

    x_MF: Tensor
    first: Tensor
    own_N: Tensor
    added_GK: Tensor
    graph_N: Tensor

    def joins(self, joined_NK: Tensor) -> Tensor:
        """Lists rows of nodes and of the new nodes of their graph that they are joined to, int32 `[2, E]`."""
        node, new = joined_NK.nonzero(as_tuple=True)
        return torch.stack([self.own_N[node], self.added_GK[self.graph_N[node], new]]).int()


def with_added(x_NF: Tensor, first: Tensor, new_KF: Tensor) -> WithAdded:
    """Adds new nodes, whose features may be differentiated, to every graph."""
    graphs, new = len(first) - 1, len(new_KF)
    graph_N = graphs_of_rows(first)
    own_N = torch.arange(len(x_NF), device=first.device) + new * graph_N
    number_G = torch.arange(graphs, device=first.device)
    added_GK = (first[1:] + new * number_G)[:, None] + torch.arange(new, device=first.device)
    place_M = torch.cat([own_N, added_GK.flatten()]).argsort()
    x_MF = torch.cat([x_NF, new_KF.repeat(graphs, 1)]).index_select(0, place_M)
    return WithAdded(x_MF, first + new * torch.arange(graphs + 1, device=first.device), own_N, added_GK, graph_N)


class AllInOne(nn.Module):
    """Graph of prompt tokens (Sun et al., KDD 2023, section 3.3), added to every graph and pooled with it.

    Two tokens are joined where sigmoid(<p_i, p_j>) is at least `inner`; a token sends to a node, which does not send
    back, where sigmoid(<p_i, x_j>) is at least `cross`. What is joined is constant for the gradient.
    """

    def __init__(self, features: int, *, tokens: Positive = 10, inner: Chance = 0.3, cross: Chance = 0.1) -> None:
        """Draws the parameters from torch's default generator."""
        super().__init__()
        self.inner, self.cross = (math.log(least / (1 - least)) for least in (inner, cross))
        self.tokens = nn.Parameter(torch.empty(tokens, features))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draws the tokens anew, Kaiming-uniform."""
        nn.init.kaiming_uniform_(self.tokens)

    def forward(self, batch: GraphBatch) -> PlainGraphs:
        """Adds tokens to the graphs."""
        x_NF, tokens = features_of(batch), self.tokens.detach()
        added = with_added(x_NF, batch.first, self.tokens)
        nodes, senders = added.joins(x_NF @ tokens.t() >= self.cross)
        between_nodes: Tensor = added.own_N.int()[pairs_of(batch).long()]
        left, right = (tokens @ tokens.t() >= self.inner).triu(1).nonzero(as_tuple=True)
        inner = torch.stack([added.added_GK[:, left].flatten(), added.added_GK[:, right].flatten()]).int()
        return PlainGraphs(
            added.x_MF, torch.cat([between_nodes, inner], dim=1), added.first, torch.stack([senders, nodes])
        )


class VPG(nn.Module):
    """Virtual prompt graph (Guo et al., FedGPL, section 4.2).

    With the significance w_i = <x_i, p> / ||p|| of a node, every graph of n nodes keeps the ceil(nodes * n) with the
    largest w, as x_i tanh(w_i). Of the m edges between them it keeps the floor(edges * m) with the largest |w_i - w_j|
    (`rule: high`), or with the smallest (`low`). Of equals the first in the order of rows are kept. What is kept is
    constant for the gradient, so that p learns by the factors tanh(w) alone; its length changes nothing.

    There are K candidates, new nodes that every graph has and that compete with its own. Their features are `learnt`,
    or else pre-defined, the paper's default: constants, the same for all graphs and clients, and no parameters. The
    paper does not say which; here `seed`, an option of the prompt, draws them as learnt ones begin. A candidate is
    joined to nodes where sigmoid(<x_c, x_i>) is at least `joined` (`join: above`), or, as the paper prints it, `below`.

    Shares are of what is `kept` so far, as in the published code: n counts candidates, and m the edges between nodes
    that are kept. With `shares: original`, as in the paper, n and m are of the graph without candidates, and edges are
    chosen among all before those of dropped nodes go. The paper's VPG is `candidates: 10, learnt: false, join: below,
    shares: original`. The defaults are the published code, which has no candidates.
    """

    def __init__(
        self,
        features: int,
        *,
        nodes: Part = 0.5,
        edges: Share = 0.9,
        rule: Literal["high", "low"] = "high",
        candidates: Count = 0,
        learnt: bool = True,
        seed: int = 0,
        join: Literal["above", "below"] = "above",
        joined: Chance = 0.5,
        shares: Literal["kept", "original"] = "kept",
    ) -> None:
        """Draws the parameters from torch's default generator; a ShoalError names an option that has no effect."""
        super().__init__()
        for name, changed in {"learnt": not learnt, "join": join != "above"}.items():
            if changed and not candidates:
                raise ShoalError(f"model.prompt.{name}", "is of candidates, and there are none; set candidates")
        if seed and (learnt or not candidates):
            raise ShoalError("model.prompt.seed", "draws pre-defined candidates; set candidates and learnt: false")
        self.nodes, self.edges, self.rule, self.join, self.shares = nodes, edges, rule, join, shares
        self.least_product = math.log(joined / (1 - joined))
        self.direction = nn.Parameter(torch.empty(features))
        self.candidates: Tensor | None
        if candidates and not learnt:
            rng = torch.Generator("cpu").manual_seed(seed)
            drawn_KF = torch.rand(candidates, features, generator=rng, device="cpu") * 2 - 1
            # A model that is built again has the same: no state needs to carry them.
            self.register_buffer("candidates", drawn_KF / math.sqrt(features), persistent=False)
        else:
            self.candidates = nn.Parameter(torch.empty(candidates, features)) if candidates else None
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draws all parameters anew from U(-1/sqrt(F), 1/sqrt(F))."""
        bound = 1 / math.sqrt(len(self.direction))
        for p in self.parameters():
            nn.init.uniform_(p, -bound, bound)

    def forward(self, batch: GraphBatch) -> PlainGraphs:
        """Makes the smaller graphs."""
        x_NF, pairs, first = features_of(batch), pairs_of(batch).long(), batch.first
        sizes_G, graph_E = first.diff(), graphs_of_rows(first)[pairs[0]]
        if self.candidates is not None:
            product_NK = x_NF @ self.candidates.detach().t()
            above_NK = product_NK >= self.least_product
            added = with_added(x_NF, first, self.candidates)
            joined = added.joins(above_NK if self.join == "above" else ~above_NK)
            pairs = torch.cat([added.own_N[pairs], joined.long()], dim=1)
            x_NF, first = added.x_MF, added.first
        # Sums by rows do not depend on which other graphs are in a batch.
        w_N = (x_NF * self.direction).sum(1) / self.direction.norm().clamp(min=SHORTEST)
        graph_N = graphs_of_rows(first)
        wanted_G = ceil_of(self.nodes, sizes_G if self.shares == "original" else first.diff())
        kept = highest(w_N.detach(), graph_N, wanted_G)
        if self.shares == "original":
            pairs = self._highest(pairs, w_N.detach(), graph_N, graph_E.bincount(minlength=len(sizes_G)))
        place_N = torch.full_like(graph_N, -1)
        place_N[kept] = torch.arange(len(kept), device=kept.device)
        pairs = pairs[:, (place_N[pairs] >= 0).all(0)]
        if self.shares == "kept":
            pairs = self._highest(pairs, w_N.detach(), graph_N, graph_N[pairs[0]].bincount(minlength=len(sizes_G)))
        x_NF = x_NF.index_select(0, kept) * w_N.index_select(0, kept).tanh()[:, None]
        ends = wanted_G.cumsum(0)
        return PlainGraphs(x_NF, place_N[pairs].int(), torch.cat([ends.new_zeros(1), ends]))

    def _highest(self, pairs: Tensor, w_N: Tensor, graph_N: Tensor, count_G: Tensor) -> Tensor:
        """Selects the share `edges` of a count of the pairs `[2, E]` of every graph, the first ones by the rule."""
        apart = (w_N[pairs[0]] - w_N[pairs[1]]).abs()
        rows = highest(apart if self.rule == "high" else -apart, graph_N[pairs[0]], floor_of(self.edges, count_G))
        return pairs[:, rows]
