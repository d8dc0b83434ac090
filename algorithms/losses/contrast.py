"""Contrasts of two views of the same items: each is to be nearest to its own other view, or to all of its class.

Axes: G items, Q queries, B items of the other view.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from shoal.algorithms.losses.prototypes import direction, unit


def nt_xent(z_GH: Tensor, other_GH: Tensor, temperature: float) -> Tensor:
    """Normalised, temperature-scaled cross-entropy (You et al., NeurIPS 2020, equation 3): the mean over items n of

        -log(e^(cos(z_n, o_n) / tau) / sum_{m != n} e^(cos(z_n, o_m) / tau))

    The sum has the other views of the other items alone, so that it can be negative.

    Args:
        z_GH: An embedding of every item in one view; there are at least two.
        other_GH: Those in the other view, in the same order.
        temperature: tau.
    """
    score_GG = unit(z_GH) @ unit(other_GH).T / temperature
    others_G = score_GG.clone().fill_diagonal_(-torch.inf).logsumexp(1)
    return (others_G - score_GG.diagonal()).mean()


def contrast_by_class(z_QH: Tensor, class_Q: Tensor, other_BH: Tensor, class_B: Tensor, temperature: float) -> Tensor:
    """Supervised contrast of two views (FGSSL): the mean over queries q, and over their positives p, of

        -log(e^(cos(z_q, o_p) / tau) / (e^(cos(z_q, o_p) / tau) + sum_n e^(cos(z_q, o_n) / tau)))

    Positives are the items of the query's class, negatives n all others. Zero if there is but one class.

    Args:
        z_QH: Embeddings, differentiable; every query has a positive.
        class_Q: Their classes, int64.
        other_BH: Embeddings in the other view.
        class_B: Their classes, int64.
        temperature: tau, positive.
    """
    score_QB = direction(z_QH) @ unit(other_BH).T / temperature
    same_QB = class_Q[:, None] == class_B
    usable_Q = ~same_QB.all(1)
    if not bool(usable_Q.any()):
        return score_QB.sum() * 0
    score_QB, same_QB = score_QB[usable_Q], same_QB[usable_Q]
    negatives_Q1 = score_QB.masked_fill(same_QB, -torch.inf).logsumexp(1, keepdim=True)
    terms_QB = F.softplus(negatives_Q1 - score_QB) * same_QB
    return (terms_QB.sum(1) / same_QB.sum(1)).mean()
