"""The bank: prototypes of all domains with their classes, which predict by vote (FGGP, equations 2, 3 and 5).

Axes: N nodes, H width of features, B entries of the bank, C classes.
"""

from typing import Literal, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from shoal.algorithms.losses.prototypes import unit
from shoal.algorithms.protocol import Tree

Vote = Literal["class_nearest", "class_avg", "softmax_sum", "sum_cos"]


class Bank(NamedTuple):
    """Prototypes, and the class of each.

    Attributes:
        proto_BH: float32.
        class_B: int64, ascending.
    """

    proto_BH: Tensor
    class_B: Tensor

    def sent(self) -> Tree:
        """As a part of a download: 4 (H + 1) bytes an entry."""
        return {"bank": self.proto_BH, "bank.class": self.class_B.int()}

    @classmethod
    def read(cls, tree: Tree) -> "Bank | None":
        """What `sent` gave; None of a tree without it."""
        return cls(tree["bank"], tree["bank.class"].long()) if "bank" in tree else None


def renewed(old: Bank | None, fresh: Bank, slots: int | None) -> Bank:
    """The bank after a round; every entry was uploaded by a client.

    Args:
        old: That of before; None if there is none.
        fresh: This round's entries.
        slots: None: they replace the old ones of their classes, and a class that no client uploaded keeps its
            own. A number: of every class the newest so many stay.
    """
    if old is None:
        old = Bank(fresh.proto_BH[:0], fresh.class_B[:0])
    if slots is None:
        stays_B = ~torch.isin(old.class_B, fresh.class_B)
        old = Bank(old.proto_BH[stays_B], old.class_B[stays_B])
    proto_BH, class_B = torch.cat([old.proto_BH, fresh.proto_BH]), torch.cat([old.class_B, fresh.class_B])
    order = class_B.argsort(stable=True)
    if slots is not None:
        counts_C = torch.bincount(class_B)
        last_C = counts_C.cumsum(0)
        places = torch.arange(len(order), device=order.device)
        order = order[places >= last_C[class_B[order]] - slots]
    return Bank(proto_BH[order], class_B[order])


def votes(z_NH: Tensor, bank: Bank, classes: int, how: Vote, k: int, temperature: float) -> Tensor:
    """Scores of every node, `[N, C]`; -inf for a class without an entry among those that vote.

    The k entries of the largest cosine to a node vote, of equal ones the first: with their cosine (`sum_cos`, equation
    3), or with the softmax of cosine / temperature (`softmax_sum`, the authors' code), added up by class. A class with
    more entries than others then wins nearly everywhere. `class_avg` is the mean by class instead of the sum, and
    `class_nearest` the largest cosine.

    Args:
        z_NH: Features.
        bank: At least one entry.
        classes: Number of classes C.
        how: As above.
        k: How many entries vote at most.
        temperature: Positive.
    """
    cos_NB = unit(z_NH) @ unit(bank.proto_BH).T
    votes_NB = torch.ones_like(cos_NB, dtype=torch.bool)
    if k < len(bank.class_B):
        first_NK = cos_NB.sort(dim=1, descending=True, stable=True).indices[:, :k]
        votes_NB = torch.zeros_like(votes_NB).scatter(1, first_NK, True)
    if how == "class_nearest":
        nearest_NB = cos_NB.masked_fill(~votes_NB, -torch.inf)
        score_NC = cos_NB.new_full((len(z_NH), classes), -torch.inf)
        for c in bank.class_B.unique().tolist():
            score_NC[:, c] = nearest_NB[:, bank.class_B == c].amax(1)
        return score_NC
    weight_NB = cos_NB
    if how != "sum_cos":
        weight_NB = (cos_NB / temperature).masked_fill(~votes_NB, -torch.inf).softmax(1)
    class_BC = F.one_hot(bank.class_B, classes).to(cos_NB.dtype)
    number_NC = votes_NB.to(cos_NB.dtype) @ class_BC
    score_NC = weight_NB.masked_fill(~votes_NB, 0) @ class_BC
    if how == "class_avg":
        score_NC = score_NC / number_NC.clamp_min(1)
    return score_NC.masked_fill(number_NC == 0, -torch.inf)
