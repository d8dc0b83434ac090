"""Target prototypes of one client: the universal ones, mixed with those of similar clients (FedPG, eq. 5)."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from shoal.algorithms.losses.prototypes import unit


@dataclass(frozen=True)
class Uploads:
    """The last upload of every client, kept by the server; B clients, L levels, C classes, H width.

    Attributes:
        proto_BLCH: Prototypes, zero where there is none.
        present_BLC: Which exist.
        counts_BC: Nodes of the class.
        fresh_B: Clients whose upload is from the last round.
    """

    proto_BLCH: Tensor
    present_BLC: Tensor
    counts_BC: Tensor
    fresh_B: Tensor


def personal_targets(
    uploads: Uploads,
    receivers: Sequence[int],
    anchor_LCH: Tensor,
    known_LC: Tensor,
    alpha: float,
    lam: float,
    weights: bool = False,
) -> tuple[Tensor, float, Tensor | None]:
    """alpha a + (1 - alpha) sum_j n_j P_j / sum_j n_j over the fresh clients j with cos(P_i, P_j) >= lam, and i itself.

    A receiver i without its own prototype gets the universal one, a; `known_LC` tells which of these mean something.
    With `weights` the mixing weights of clients are summed up, too, quadratic in clients.

    Returns:
        Targets `[receivers, L, C, H]`, the mean number of clients mixed, 0 if no receiver had its own prototype, and
        the weights n_j / sum_j n_j `[receivers, B]`, means over the receiver's own prototypes, or None.
    """
    everyone = torch.as_tensor(receivers)
    target_RLCH = anchor_LCH.repeat(len(everyone), 1, 1, 1)
    mixed = []
    weight_RB = uploads.proto_BLCH.new_zeros(len(everyone), len(uploads.fresh_B)) if weights else None
    for level, c in known_LC.nonzero().tolist():
        has_B = uploads.present_BLC[:, level, c]
        place = has_B[everyone].nonzero()[:, 0]
        own = everyone[place]
        may_B = has_B & uploads.fresh_B
        may_B[own] = True
        others = may_B.nonzero()[:, 0]
        proto = uploads.proto_BLCH[:, level, c]
        similar = (unit(proto[own]) @ unit(proto[others]).T >= lam) & uploads.fresh_B[others]
        admitted = similar | (own[:, None] == others)
        weight = admitted * uploads.counts_BC[others, c].float()
        rows = weight / weight.sum(1, keepdim=True)
        target_RLCH[place, level, c] = alpha * anchor_LCH[level, c] + (1 - alpha) * (rows @ proto[others])
        mixed.append(admitted.sum(1))
        if weight_RB is not None:
            weight_RB[place[:, None], others] += rows
    sizes = torch.cat(mixed) if mixed else torch.zeros(0)
    if weight_RB is not None:
        weight_RB /= weight_RB.sum(1, keepdim=True).clamp(min=torch.finfo(weight_RB.dtype).tiny)
    return target_RLCH, float(sizes.float().mean()) if len(sizes) else 0.0, weight_RB


class Queries(NamedTuple):
    """Uploaded prototypes that train the anchors of one level, `own` ones of the level first, and their classes."""

    level: int
    proto_QH: Tensor
    class_Q: Tensor
    own: int


def draw_queries(
    proto_BLCH: Tensor, present_BLC: Tensor, known_LC: Tensor, share: float, generator: torch.Generator
) -> list[Queries]:
    """All present prototypes of every level that has any, and for each `share` (d_s) others, without replacement.

    `known_LC` are the anchors that have ever had an upload; a class without one at a level is not drawn for it.
    """
    found = []
    for level in range(len(known_LC)):
        here_BC = present_BLC[:, level]
        own = int(here_BC.sum())
        if not own:
            continue
        elsewhere_BLC = present_BLC & known_LC[level]
        elsewhere_BLC[:, level] = False
        other = elsewhere_BLC.nonzero()
        drawn = other[torch.randperm(len(other), generator=generator)[: int(share * own)]]
        proto_QH = torch.cat([proto_BLCH[:, level][here_BC], proto_BLCH[tuple(drawn.T)]])
        found.append(Queries(level, proto_QH, torch.cat([here_BC.nonzero()[:, 1], drawn[:, 2]]), own))
    return found
