"""The term of a client's loss that draws its prototypes towards their targets (FedPG, eq. 6).

Axes: N nodes, R of them in reach of a prototype, L levels, C classes, H width.
"""

import math
from collections.abc import Callable
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from shoal.algorithms.client import Client
from shoal.algorithms.losses.prototype_losses import SumAlignment, prototype_alignment
from shoal.algorithms.losses.prototypes import unit
from shoal.algorithms.methods.fedpg.aligned_sums import aligned_sums
from shoal.algorithms.methods.fedpg.hop_prototypes import Annotated, hop_prototypes, hop_weights
from shoal.algorithms.protocol import Tree
from shoal.algorithms.training.local_training import keep_moments, kept_moments

SCORER, WIDTH = "attention", 16


def attention_weights(scorer: Tensor, z_NH: Tensor) -> Tensor:
    """Computes g_u = exp(e_u - max e), e_u = LeakyReLU(v . tanh(V z_u)), differentiable in the scorer, `[hops, N]`.

    A scorer, `[hops, WIDTH, H + 1]`, has the rows of V, each with its entry of v behind it.
    The softmax over a set of neighbours is g_u over the sum of g in it. The paper scores the concatenated raw features
    of all neighbours of a node, whose number varies; this is the largest family that costs no score per edge.
    """
    hidden = torch.tanh(torch.einsum("nf,lkf->lnk", z_NH.detach(), scorer[:, :, :-1]))
    score = F.leaky_relu(torch.einsum("lnk,lk->ln", hidden, scorer[:, :, -1]), 0.2)
    return (score - score.detach().amax(1, keepdim=True)).exp()


def train_scorer(state: Tree, lr: float) -> None:
    """Takes a step of Adam on the scorer in a client's state, if it has a gradient; the state holds the moments."""
    scorer = state.get(SCORER)
    if scorer is None or scorer.grad is None:
        return
    optimizer = torch.optim.Adam([scorer], lr=lr)
    if kept := kept_moments(state, f"{SCORER}."):
        optimizer.state[scorer] = kept
    optimizer.step()
    keep_moments(state, f"{SCORER}.", optimizer.state[scorer])
    scorer.grad = None


# Prototypes `[L, C, H]`, and which of them exist, bool `[L, C]`.
Targets = tuple[Tensor, Tensor]


class Reach(NamedTuple):
    """The nodes that the prototypes of a client rest on, as its model of the visit's start annotates them.

    Attributes:
        rows: Nodes with weight in any prototype, ascending, int64 `[R]`.
        present_LC: Prototypes that the client has and that have a target.
        literal: As in `hop_weights`.
        raw: Whether embeddings count as they are, not at length one.
    """

    nodes: Annotated
    rows: Tensor
    weight_LR: Tensor
    target_LCH: Tensor
    present_LC: Tensor
    literal: bool
    raw: bool = False

    def scale(self, embedding_RH: Tensor) -> Tensor:
        """Scales embeddings as those are that prototypes are means of."""
        return embedding_RH if self.raw else unit(embedding_RH)


def reach_of(
    nodes: Annotated, weights: tuple[Tensor, Tensor], targets: Targets, literal: bool, raw: bool = False
) -> Reach | None:
    """Collects the nodes and targets of a visit's alignment; None if no prototype of the client has a target.

    `weights` are what `hop_weights` gives of the nodes, without attention.
    """
    target_LCH, known_LC = targets
    weight_LN, counts_LC = weights
    present_LC = (counts_LC > 0) & known_LC
    if not bool(present_LC.any()):
        return None
    rows = (weight_LN > 0).any(0).nonzero()[:, 0]
    return Reach(nodes, rows, weight_LN[:, rows], target_LCH, present_LC, literal, raw)


# The alignment of a visit, a scalar, for embeddings `[N, H]`, where those of a `Reach` are at places, int64 `[R]`.
Alignment = Callable[[Tensor, Tensor], Tensor]


def by_node(reach: Reach) -> SumAlignment:
    """Averages over present prototypes the mean squared distance of their nodes (hop 2), or of means of neighbours."""
    sums = aligned_sums(reach.nodes, reach.rows, reach.weight_LR, reach.present_LC)
    return SumAlignment(sums.sums_KR, reach.target_LCH.flatten(0, 1)[sums.slot_K], sums.weight_K, not reach.raw)


def by_prototype(client: Client, reach: Reach, weights: Callable[[], Tensor]) -> Alignment:
    """Sums the distances of present prototypes from their targets (eq. 6); `weights` gives `[L, R]` a step."""
    class_R = reach.nodes.class_N[reach.rows]

    def term(embedding_NH: Tensor, places_R: Tensor) -> Tensor:
        z_RH = reach.scale(embedding_NH.index_select(0, places_R))
        proto_LCH = hop_prototypes(z_RH, class_R, weights(), client.info.classes)
        return prototype_alignment(proto_LCH, reach.target_LCH, reach.present_LC)

    return term


def attended_weights(client: Client, reach: Reach, lr: float) -> Callable[[], Tensor]:
    """Computes weights `[L, R]` by the client's scorer, which learns from the step before, or is started here."""
    (class_N, centre_N, z_NH, graph), hops = reach.nodes, len(reach.target_LCH) - 1
    scorer = client.state.get(SCORER)
    if scorer is None:
        first = torch.randn(hops, WIDTH, z_NH.shape[1], generator=client.rng("attention")) / math.sqrt(z_NH.shape[1])
        # A v of zeros weighs all neighbours the same.
        scorer = torch.cat([first, torch.zeros(hops, WIDTH, 1)], dim=2)
    client.state[SCORER] = scorer.requires_grad_()

    def weights() -> Tensor:
        train_scorer(client.state, lr)
        g_HN = attention_weights(client.state[SCORER], z_NH)
        return hop_weights(graph, class_N, centre_N, hops, g_HN, reach.literal)[0][:, reach.rows]

    return weights
