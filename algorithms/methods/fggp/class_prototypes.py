"""Prototypes of a client in which every node counts as much as its class is certain (FGGP, equations 4 and 8).

Axes: N nodes, C classes, H width of features, J classes that have a prototype.
"""

import torch
from torch import Tensor

from shoal.algorithms.losses.prototype_losses import contrast
from shoal.algorithms.losses.prototypes import unit

# Less than one certain node makes no prototype.
LEAST_MASS = 1.0


def certain_classes(logits_NC: Tensor, train: Tensor, train_label: Tensor) -> tuple[Tensor, Tensor]:
    """The class of every node, int64 `[N]`, and how certain it is, `[N]`; neither has a gradient.

    A training node has its label, and certainty 1; any other the class of its largest probability, and that.

    Args:
        logits_NC: Scores of all nodes.
        train: Rows of training, int64.
        train_label: Their labels, int64.
    """
    certain_N, class_N = logits_NC.detach().softmax(1).max(1)
    return class_N.index_copy(0, train, train_label), certain_N.index_fill(0, train, 1.0)


def certain_prototypes(z_NH: Tensor, class_N: Tensor, certain_N: Tensor, classes: int) -> tuple[Tensor, Tensor]:
    """c_j = sum of w_i z_i / W_j over the nodes of class j, `[C, H]`, and W_j = sum of w_i, `[C]` (equation 4).

    A class of W_j below `LEAST_MASS` has no prototype worth the name; a row without any node is zero.

    Args:
        z_NH: Features.
        class_N: Classes, int64.
        certain_N: w, the weight of every node.
        classes: Number of classes C.
    """
    mass_C = certain_N.new_zeros(classes).index_add(0, class_N, certain_N)
    sum_CH = z_NH.new_zeros(classes, z_NH.shape[1]).index_add(0, class_N, certain_N[:, None] * z_NH)
    return sum_CH / torch.where(mass_C > 0, mass_C, 1)[:, None], mass_C


def contrast_of_views(own_JH: Tensor, other_JH: Tensor, temperature: float, literal: bool = False) -> Tensor:
    """How badly prototypes of two views of a graph find each other, a scalar; 0 of fewer than two classes.

    By default the cross-entropy of cos(c_j, c'_l) / t with the own class as target, from either side, averaged.
    Equation 8 (`literal`) leaves the own class out of the denominators: it may be negative, and of two classes it is
    linear in the cosines.

    Args:
        own_JH: Prototypes of one view.
        other_JH: Of the other, the same classes in the same order.
        temperature: t, positive.
        literal: As above.
    """
    if not literal:
        class_J = torch.arange(len(own_JH), device=own_JH.device)
        sides = ((own_JH, other_JH), (other_JH, own_JH))
        return sum(contrast(a, class_J, b, class_J, temperature) for a, b in sides) / 2  # type: ignore[return-value]
    score_JJ = unit(own_JH) @ unit(other_JH).T / temperature
    if len(score_JJ) < 2:
        return score_JJ.sum() * 0
    same_JJ = torch.eye(len(score_JJ), dtype=torch.bool, device=score_JJ.device)
    others_JJ = score_JJ.masked_fill(same_JJ, -torch.inf)
    return (others_JJ.logsumexp(1) + others_JJ.logsumexp(0)).mean() / 2 - score_JJ.diagonal().mean()
