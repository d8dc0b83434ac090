"""What trains a level of universal prototypes: uploads of that level, and some of the others (FedPG, eq. 4)."""

from typing import NamedTuple

import torch
from torch import Tensor


class Queries(NamedTuple):
    """Uploaded prototypes that train the anchors of one level.

    Attributes:
        level: The level.
        proto_QH: Prototypes, those of the level first.
        class_Q: Their classes, int64.
        own: How many are of the level.
    """

    level: int
    proto_QH: Tensor
    class_Q: Tensor
    own: int


def draw_queries(
    proto_BLCH: Tensor, present_BLC: Tensor, known_LC: Tensor, share: float, generator: torch.Generator
) -> list[Queries]:
    """All present prototypes of every level that has any, and for each `share` others, without replacement.

    Args:
        proto_BLCH: Uploads of a cohort.
        present_BLC: Which exist.
        known_LC: Anchors that have ever had an upload; a class without one at a level is not drawn for it.
        share: d_s, in [0, 1].
        generator: Of the draw.
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
