"""Attention among the neighbours that a hop prototype averages: a score of the neighbour alone (FedPG, eq. 2)."""

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from algorithms.protocol import Tree

SCORER, WIDTH = "attention", 16


def start_scorer(hops: int, width: int, generator: torch.Generator) -> Tensor:
    """Parameters of one scorer a hop, `[hops, WIDTH, H + 1]`: rows of V, each with its entry of the vector behind it.

    The vector starts at zero, so that all neighbours weigh the same.
    """
    first = torch.randn(hops, WIDTH, width, generator=generator) / math.sqrt(width)
    return torch.cat([first, torch.zeros(hops, WIDTH, 1)], dim=2)


def attention_weights(scorer: Tensor, z_NH: Tensor) -> Tensor:
    """g_u = exp(e_u - max e), e_u = LeakyReLU(v . tanh(V z_u)), positive, differentiable in the scorer, `[hops, N]`.

    The softmax over a set of neighbours is g_u over the sum of g in it. The paper scores the concatenated raw features
    of all neighbours of a node, whose number varies; this is the largest family that costs no score per edge.
    """
    hidden = torch.tanh(torch.einsum("nf,lkf->lnk", z_NH.detach(), scorer[:, :, :-1]))
    score = F.leaky_relu(torch.einsum("lnk,lk->ln", hidden, scorer[:, :, -1]), 0.2)
    return (score - score.detach().amax(1, keepdim=True)).exp()


def train_scorer(state: Tree, lr: float) -> None:
    """One step of Adam on the scorer in a client's state, if the loss left it a gradient; moments lie beside it."""
    scorer = state.get(SCORER)
    if scorer is None or scorer.grad is None:
        return
    optimizer = torch.optim.Adam([scorer], lr=lr)
    prefix = f"{SCORER}."
    if kept := {name.removeprefix(prefix): t for name, t in state.items() if name.startswith(prefix)}:
        optimizer.state[scorer] = kept
    optimizer.step()
    state.update({prefix + name: t for name, t in optimizer.state[scorer].items()})
    scorer.grad = None
