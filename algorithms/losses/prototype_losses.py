"""Losses that set embeddings apart by class, by a margin or a contrast, or draw them towards target prototypes.

Axes: Q queries with a class each, B entries of a bank with a class each, G items in two views, C classes.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from shoal.algorithms.losses.prototypes import EPS, class_means, direction, unit
from shoal.algorithms.models.compiled.projected_losses import margin_cross_entropies
from shoal.algorithms.models.compiled.row_losses import (
    contrasts,
    contrasts_by_class,
    is_compiled,
    row_loss,
    softplus_along,
    squares,
    squares_of_sums,
)
from shoal.storage.graph.sparse_matrix import SparseMatrix


def distances(a_QH: Tensor, b_BH: Tensor) -> Tensor:
    """Computes Euclidean distances |a_q - b_b|, `[Q, B]`; the gradient at distance zero is zero.

    Differences come first: |a|^2 + |b|^2 - 2 ab in float32 loses all digits of distances below a thousandth of the
    norms. On the processor no tensor of Q x B x H is held.
    """
    return torch.cdist(a_QH, b_BH, compute_mode="donot_use_mm_for_euclid_dist")


def class_margin(proto_QH: Tensor, class_Q: Tensor, classes: int, cap: float) -> float:
    """Computes min(max_c min_{c' != c} |Q_c - Q_c'|, cap), Q_c the mean prototype of class c (FedTGP); 0 below two."""
    means_CH = _seen_means(proto_QH, class_Q, classes)
    return _margin(distances(means_CH, means_CH), cap)


def cosine_margin(proto_QH: Tensor, class_Q: Tensor, classes: int, cap: float) -> float:
    """Computes `class_margin` with 1 - cos(Q_c, Q_c') for the distance."""
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


# A loss of anchors, float32 `[S, H]`, a scalar.
AnchorLoss = Callable[[Tensor], Tensor]


class LossWithGradient(ABC):
    """An `AnchorLoss` that knows its gradient on processors, without autograd."""

    @abstractmethod
    def __call__(self, anchor_SH: Tensor) -> Tensor:
        """Computes the loss, a scalar."""

    @abstractmethod
    def differentiate(self, anchor_SH: Tensor) -> tuple[float, Tensor]:
        """Computes the loss and its gradient, float32 `[S, H]`."""


def differentiate(loss: AnchorLoss, anchor_SH: Tensor) -> tuple[float, Tensor]:
    """Computes a loss and its gradient, float32 `[S, H]`, by the loss's own way or by autograd."""
    if isinstance(loss, LossWithGradient) and anchor_SH.is_cpu and anchor_SH.dtype == torch.float32:
        return loss.differentiate(anchor_SH)
    leaf_SH = anchor_SH.detach().requires_grad_()
    value = loss(leaf_SH)
    (gradient_SH,) = torch.autograd.grad(value, leaf_SH)
    return float(value.detach()), gradient_SH


@dataclass(frozen=True)
class SumOfLevels(LossWithGradient):
    """The sum of the losses of some levels, by their numbers, each of the anchors `[C, H]` of one of L levels."""

    losses: Mapping[int, AnchorLoss]
    levels: int

    def __call__(self, anchor_SH: Tensor) -> Tensor:
        anchor_LCH = anchor_SH.view(self.levels, -1, anchor_SH.shape[1])
        return sum((loss(anchor_LCH[level]) for level, loss in self.losses.items()), anchor_SH.new_zeros(()))

    def differentiate(self, anchor_SH: Tensor) -> tuple[float, Tensor]:
        gradient_SH, value = torch.zeros_like(anchor_SH), 0.0
        anchors, gradients = (t.view(self.levels, -1, t.shape[1]) for t in (anchor_SH, gradient_SH))
        for level, loss in self.losses.items():
            of_level, gradients[level] = differentiate(loss, anchors[level])
            value += of_level
        return value, gradient_SH


@dataclass(frozen=True)
class MarginCrossEntropy(LossWithGradient):
    """The mean cross-entropy of logits -(|q - a_c'| + margin 1[c' = c]) over anchors, for the same queries (FedTGP).

    The own class has to win by the margin. Of the anchors, trainable prototypes, those in `known_C` take part, those of
    the queries among them. Queries get no gradient.
    """

    query_QH: Tensor
    class_Q: Tensor
    known_C: Tensor
    margin: float

    def __call__(self, anchor_CH: Tensor) -> Tensor:
        """The loss, a scalar, for anchors of all classes."""
        if is_compiled(anchor_CH, self.query_QH):
            # Compiled code reads queries by address.
            constants = self.query_QH.float(), self.class_Q, self.known_C, float(self.margin)
            return row_loss(margin_cross_entropies, anchor_CH, *constants)
        own_QC = F.one_hot(self.class_Q, len(anchor_CH))
        logits_QC = -(distances(self.query_QH, anchor_CH) + self.margin * own_QC)
        return F.cross_entropy(logits_QC.masked_fill(~self.known_C, -torch.inf), self.class_Q)

    def differentiate(self, anchor_CH: Tensor) -> tuple[float, Tensor]:
        gradient_CH = torch.empty_like(anchor_CH)
        constants = *self._arrays, float(self.margin)
        return margin_cross_entropies(anchor_CH.numpy(), *constants, gradient_CH.numpy()), gradient_CH

    @cached_property
    def _arrays(self) -> tuple[np.ndarray, ...]:
        return tuple(t.contiguous().numpy() for t in (self.query_QH.float(), self.class_Q, self.known_C))


def contrast(
    query_QH: Tensor, class_Q: Tensor, bank_BH: Tensor, class_B: Tensor, temperature: float, margin: float = 0.0
) -> Tensor:
    """Averages -log(S+ / (S+ + S-)) over queries, a scalar; zero if no query has a positive and a negative.

    S+ = sum of exp((cos - margin) / t) over the bank's entries of the query's class, S- = sum of exp(cos / t) over all
    others. FedPG's eq. 4 adds the margin instead and leaves the cosine out of S-; here it makes the task harder.
    """
    if len(class_Q) == len(query_QH) and len(class_B) == len(bank_BH) and is_compiled(query_QH, bank_BH):
        return row_loss(contrasts, query_QH, class_Q, bank_BH, class_B, float(temperature), float(margin))
    value_Q, usable_Q = contrast_of_rows(query_QH, class_Q, bank_BH, class_B, temperature, margin)
    return value_Q.sum() / usable_Q.sum().clamp_min(1)


def contrast_of_rows(
    query_QH: Tensor, class_Q: Tensor, bank_BH: Tensor, class_B: Tensor, temperature: float, margin: float = 0.0
) -> tuple[Tensor, Tensor]:
    """Computes what `contrast` averages, `[Q]`, and which queries have part in it; zero at others."""
    same_QB = class_Q[:, None] == class_B
    usable_Q = same_QB.any(1) & ~same_QB.all(1)
    # All entries are those of a query without part, whose number then is zero, and so is its gradient.
    same_QB = same_QB | ~usable_Q[:, None]
    score_QB = (direction(query_QH) @ direction(bank_BH).T - margin * same_QB) / temperature
    return score_QB.logsumexp(1) - score_QB.masked_fill(~same_QB, -torch.inf).logsumexp(1), usable_Q


def largest_cosine(proto_QH: Tensor, class_Q: Tensor, classes: int, cap: float) -> float:
    """Computes min(max_{c != c'} cos(Q_c, Q_c'), cap), the margin of FedPG's eq. 4 to the letter; 0 below two."""
    means_CH = unit(_seen_means(proto_QH, class_Q, classes))
    if len(means_CH) < 2:
        return 0.0
    return min(float((means_CH @ means_CH.T).fill_diagonal_(-1.0).max()), cap)


def literal_contrast(
    anchor_AH: Tensor, class_A: Tensor, query_QH: Tensor, class_Q: Tensor, margin: float, constant: bool
) -> Tensor:
    """FedPG's eq. 4 to the letter: the sum over anchors of -log(S+ / (S+ + S-)), S+ = sum of exp(cos + margin) over
    queries of the anchor's class. Anchors without a query of their class, or without another, have no term.

    With `constant` S- is exp(margin) for every other query, as eq. 4 has it: the margin cancels, and nothing drives
    classes apart. Else it is the sum of exp(cos), as in the second line of eq. 7: a larger margin eases the task.
    """
    cosine_AQ = direction(anchor_AH) @ direction(query_QH).T
    same_AQ = class_A[:, None] == class_Q
    usable_A = same_AQ.any(1) & ~same_AQ.all(1)
    if not bool(usable_A.any()):
        return cosine_AQ.sum() * 0
    cosine_AQ, same_AQ = cosine_AQ[usable_A], same_AQ[usable_A]
    positive_A = (cosine_AQ + margin).masked_fill(~same_AQ, -torch.inf).logsumexp(1)
    negative_AQ = torch.full_like(cosine_AQ, margin) if constant else cosine_AQ
    return F.softplus(negative_AQ.masked_fill(same_AQ, -torch.inf).logsumexp(1) - positive_A).sum()


def contrast_by_class(
    z_NH: Tensor, class_Q: Tensor, other_BH: Tensor, class_B: Tensor, temperature: float, rows_Q: Tensor | None = None
) -> Tensor:
    """Supervised contrast of two views (FGSSL): the mean over queries q, and over their positives p, of

        -log(e^(cos(z_q, o_p) / tau) / (e^(cos(z_q, o_p) / tau) + sum_n e^(cos(z_q, o_n) / tau)))

    Positives are the items of the query's class in the other view, at least one; negatives n are all others. Zero if
    there is but one class. Queries are some rows, int64, or all.
    """
    if len(class_B) == len(other_BH) and is_compiled(z_NH, other_BH):
        rows_Q = torch.arange(len(z_NH)) if rows_Q is None else rows_Q
        if len(rows_Q) == len(class_Q):
            return row_loss(contrasts_by_class, z_NH, rows_Q, class_Q, other_BH, class_B, float(temperature))
    score_QB = direction(z_NH if rows_Q is None else z_NH[rows_Q]) @ unit(other_BH).T / temperature
    same_QB = class_Q[:, None] == class_B
    usable_Q = ~same_QB.all(1)
    if not bool(usable_Q.any()):
        return score_QB.sum() * 0
    score_QB, same_QB = score_QB[usable_Q], same_QB[usable_Q]
    negatives_Q1 = score_QB.masked_fill(same_QB, -torch.inf).logsumexp(1, keepdim=True)
    terms_QB = F.softplus(negatives_Q1 - score_QB) * same_QB
    return (terms_QB.sum(1) / same_QB.sum(1)).mean()


def nt_xent(z_GH: Tensor, other_GH: Tensor, temperature: float) -> Tensor:
    """Normalised, temperature-scaled cross-entropy (You et al., NeurIPS 2020, equation 3): the mean over items n of

        -log(e^(cos(z_n, o_n) / tau) / sum_{m != n} e^(cos(z_n, o_m) / tau))

    The two views have the same items, at least two, in the same order. The sum has the other views of the other items
    alone, so that it can be negative.
    """
    score_GG = unit(z_GH) @ unit(other_GH).T / temperature
    others_G = score_GG.clone().fill_diagonal_(-torch.inf).logsumexp(1)
    return (others_G - score_GG.diagonal()).mean()


def mean_square(z_NH: Tensor, y_N: Tensor, target_CH: Tensor, present_C: Tensor, weight: float = 1.0) -> Tensor:
    """Computes weight / H * mean of |z_v - t_{y_v}|^2 over the rows whose class has a target (FedProto), or zero.

    That is the mean squared error, so that a weight means the same at every width H. Rows of negative labels have no
    part; `present_C` are the classes that have a target.
    """
    if len(y_N) == len(z_NH) and is_compiled(z_NH, target_CH):
        return row_loss(squares, z_NH, y_N, target_CH, present_C, float(weight))
    square_N, part_N = squares_of_rows(z_NH, y_N, target_CH, present_C)
    return weight / z_NH.shape[1] * ((part_N * square_N).sum() / part_N.sum().clamp_min(1))


def squares_of_rows(z_NH: Tensor, y_N: Tensor, target_CH: Tensor, present_C: Tensor) -> tuple[Tensor, Tensor]:
    """Computes |z_v - t_{y_v}|^2 of every row, `[N]`, and which rows' classes have a target, bool."""
    class_N = y_N.clamp_min(0)
    return (z_NH - target_CH[class_N]).square().sum(1), present_C[class_N] & (y_N >= 0)


def softplus_of_cosines(z_NH: Tensor, apart_NH: Tensor, temperature: float) -> Tensor:
    """Averages log(1 + exp(<z_n / |z_n|, d_n> / temperature)) over rows, d_n constant, a scalar (MOON).

    With d the difference of two directions it is -log of the softmax over both cosines at that which is taken away.
    """
    if apart_NH.shape == z_NH.shape and is_compiled(z_NH, apart_NH):
        return row_loss(softplus_along, z_NH, apart_NH, float(temperature))
    return _softplus(z_NH, apart_NH, temperature).mean()


def softplus_of_rows(z_NH: Tensor, y_N: Tensor, apart_NH: Tensor, temperature: float) -> tuple[Tensor, Tensor]:
    """Computes what `softplus_of_cosines` averages, `[N]`, and which rows are no padding."""
    return _softplus(z_NH, apart_NH, temperature), y_N >= 0


def _softplus(z_NH: Tensor, apart_NH: Tensor, temperature: float) -> Tensor:
    return F.softplus((direction(z_NH) * apart_NH).sum(1) / temperature)


@dataclass(frozen=True)
class SumAlignment:
    """Sum over k of w_k |sum_r S_kr z_r - t_k|^2, for the same sums of R rows in every step.

    Attributes:
        sums_KR: S, sparse float32.
        target_KH, weight_K: t and w, float32.
        scales: Rows count at length one.
    """

    sums_KR: SparseMatrix
    target_KH: Tensor
    weight_K: Tensor
    scales: bool

    @property
    def parts(self) -> tuple[SparseMatrix, Tensor, Tensor, bool]:
        """Returns its attributes, in their order."""
        return self.sums_KR, self.target_KH, self.weight_K, self.scales

    def __call__(self, z_NH: Tensor, places_R: Tensor) -> Tensor:
        """The sum, a scalar, for the embeddings at some places, int64."""
        if is_compiled(z_NH, self.target_KH):
            parts = *self.sums_KR.parts(), self.target_KH, self.weight_K
            return row_loss(squares_of_sums, z_NH, places_R, *parts, float(self.scales))
        z_RH = z_NH.index_select(0, places_R)
        apart_KH = self.sums_KR @ (unit(z_RH) if self.scales else z_RH) - self.target_KH
        return (self.weight_K * apart_KH.square().sum(1)).sum()


def of_classes(y_N: Tensor, present_C: Tensor) -> Tensor:
    """Computes weights of rows, float32 `[N]`, by which a sum over them is one of means of the present classes."""
    return (present_C / torch.bincount(y_N, minlength=len(present_C)).clamp_min(1))[y_N]


def prototype_alignment(proto: Tensor, target: Tensor, present: Tensor | tuple[Tensor, ...]) -> Tensor:
    """Sums |P - t|_2, not squared (FedPG, eq. 6), over present prototypes, `[…, H]`.

    `present` says which have a target: a mask `[…]`, or the places of its ones, as a mask is looked through in every
    step.
    """
    square = (proto - target)[present].square().sum(-1)
    # The root has no gradient at zero.
    return (square + EPS).sqrt().sum()
