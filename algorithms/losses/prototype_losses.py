"""Losses that set embeddings or prototypes apart by class: with a margin on distances, or contrastive on cosines.

Axes: Q queries with a class each, B entries of a bank of prototypes with a class each, C classes.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from shoal.algorithms.losses.prototypes import class_means, direction, unit


def distances(a_QH: Tensor, b_BH: Tensor) -> Tensor:
    """Euclidean distances |a_q - b_b|, `[Q, B]`; the gradient at distance zero is zero.

    Differences come first: |a|^2 + |b|^2 - 2 ab in float32 loses all digits of distances below a thousandth of the
    norms. On the processor no tensor of Q x B x H is held.
    """
    return torch.cdist(a_QH, b_BH, compute_mode="donot_use_mm_for_euclid_dist")


def class_margin(proto_QH: Tensor, class_Q: Tensor, classes: int, cap: float) -> float:
    """min(max_c min_{c' != c} |Q_c - Q_c'|, cap), Q_c the mean prototype of class c (FedTGP).

    Zero while fewer than two classes have a prototype.
    """
    means_CH = _seen_means(proto_QH, class_Q, classes)
    return _margin(distances(means_CH, means_CH), cap)


def cosine_margin(proto_QH: Tensor, class_Q: Tensor, classes: int, cap: float) -> float:
    """The same with 1 - cos(Q_c, Q_c') for the distance."""
    means_CH = unit(_seen_means(proto_QH, class_Q, classes))
    return _margin(1 - means_CH @ means_CH.T, cap)


def _seen_means(proto_QH: Tensor, class_Q: Tensor, classes: int) -> Tensor:
    means_CH, counts_C = class_means(proto_QH, class_Q, classes)
    return means_CH[counts_C > 0]


def _margin(apart_CC: Tensor, cap: float) -> float:
    if len(apart_CC) < 2:
        return 0.0
    nearest_C = apart_CC.fill_diagonal_(float("inf")).min(1).values
    return min(max(float(nearest_C.max()), 0.0), cap)


def margin_cross_entropy(
    query_QH: Tensor, class_Q: Tensor, anchor_CH: Tensor, known_C: Tensor, margin: float
) -> Tensor:
    """Mean cross-entropy of logits -(|q - a_c'| + margin 1[c' = c]) over the anchors (FedTGP).

    The own class has to win by the margin.

    Args:
        query_QH: Prototypes of clients.
        class_Q: Their classes, int64.
        anchor_CH: Trainable prototypes.
        known_C: Anchors that take part, those of the queries among them.
        margin: Not negative.
    """
    distance_QC = distances(query_QH, anchor_CH)
    distance_QC = distance_QC + margin * F.one_hot(class_Q, len(anchor_CH))
    return F.cross_entropy((-distance_QC).masked_fill(~known_C, -torch.inf), class_Q)


def contrast(
    query_QH: Tensor,
    class_Q: Tensor,
    bank_BH: Tensor,
    class_B: Tensor,
    temperature: float,
    margin: float = 0.0,
) -> Tensor:
    """Mean over queries of -log(S+ / (S+ + S-)), a scalar; zero if no query has a positive and a negative.

    S+ = sum of exp((cos - margin) / t) over the bank's entries of the query's class, S- = sum of exp(cos / t) over all
    others. FedPG's eq. 4 adds the margin instead and leaves the cosine out of S-; here it makes the task harder.

    Args:
        query_QH: Embeddings or anchors.
        class_Q: Their classes, int64.
        bank_BH: Prototypes.
        class_B: Their classes, int64.
        temperature: t, positive.
        margin: Taken off the cosine of positives.
    """
    cosine_QB = direction(query_QH) @ direction(bank_BH).T
    same_QB = class_Q[:, None] == class_B
    usable_Q = same_QB.any(1) & ~same_QB.all(1)
    if not bool(usable_Q.any()):
        return cosine_QB.sum() * 0
    score_QB = ((cosine_QB - margin * same_QB) / temperature)[usable_Q]
    positive_Q = score_QB.masked_fill(~same_QB[usable_Q], -torch.inf).logsumexp(1)
    return (score_QB.logsumexp(1) - positive_Q).mean()
