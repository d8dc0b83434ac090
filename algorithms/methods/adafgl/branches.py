"""The networks that a client learns by itself from what the common model knows (AdaFGL, phase 2).

Axes: N nodes, C classes, F features, K steps of propagation.
"""

from contextlib import nullcontext
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from shoal.algorithms.losses.prototypes import unit
from shoal.algorithms.methods.adafgl.knowledge import Knowledge, Likeness, Rows, propagated
from shoal.algorithms.models.layers.dropout import fill_kept, masks
from shoal.algorithms.models.layers.head import Head
from shoal.storage.graph.sparse_matrix import Features


class Scores(NamedTuple):
    """Class scores of nodes, `[N, C]`: of the homophilous branch, and of the three of the heterophilous one."""

    homo: Tensor
    own: Tensor
    smooth: Tensor
    message: Tensor


class Branches(nn.Module):
    """Four perceptrons: of two layers for a graph whose neighbours are similar, and three of three layers for another.

    The latter read a node's features alone (`own`), propagated features (`smooth`), and signed messages (`message`),
    for which `beta` is the share of the common model in the similarity.
    """

    def __init__(self, features: int, classes: int, steps: int, hidden: int, dropout: float, beta: float) -> None:
        """Draws the parameters from torch's default generator."""
        super().__init__()
        self.beta = beta
        wide = (steps + 1) * features
        self.homo = Head(wide, hidden, classes, 2, dropout, activation="prelu")
        self.own = Head(features, hidden, classes, 3, dropout, activation="prelu")
        self.smooth = Head(wide, hidden, classes, 3, dropout, activation="prelu")
        self.message = Head(wide, hidden, classes, 3, dropout, activation="prelu")

    def forward(self, known: Knowledge, x_NF: Features, asked: Rows | None = None) -> Scores:
        """Scores by what is known and by the features, `[N, F]`; all but `homo` of the rows that are asked for alone.

        Dropout draws for all nodes, so that the rows that are asked for have no say in what is drawn.
        """
        weights = [branch.first_weights()[0] for branch in (self.homo, self.message, self.smooth)]
        homo_NH, message_NH, smooth_RH = propagated(known, x_NF, weights, asked)

        def mask_of(x: Tensor, p: float) -> Tensor:
            return fill_kept(x.new_empty(len(x_NF), x.shape[1]), p).div_(1 - p)[asked.rows]  # type: ignore

        homo_NC = _after(self.homo, homo_NH)
        with nullcontext() if asked is None else masks(mask_of):
            own_RC = self.own(x_NF if asked is None else asked.x_RF).logits_NC
            smooth_RC = _after(self.smooth, smooth_RH)
        message_NC = _after(self.message, message_NH)
        rows = None if asked is None else asked.rows
        return Scores(homo_NC, own_RC, smooth_RC, signed_messages(message_NC, known, self.beta, rows))


def _after(branch: Head, product_NH: Tensor) -> Tensor:
    """Scores of a branch whose first weight is multiplied already."""
    return branch.after_first(product_NH + branch.linears[0].get_parameter("bias")).logits_NC


def signed_messages(y_NC: Tensor, known: Knowledge, beta: float, rows: Tensor | None = None) -> Tensor:
    """(y + softmax(R+ y) - softmax(R- y)) / 2 of some rows, `[R, C]`, or of all: similar nodes attract, others repel.

    R+ and R- are the positive and negative parts of R, which tells how much more, or less, similar than the mean pair
    two nodes are: 1 as much as the most similar pair, -1 not at all; 1 on the diagonal. The authors' code turns the
    negative half round, so that the least similar nodes weigh least.

    With M = beta S + (1 - beta) S(softmax(y)), m its mean off the diagonal and M* its largest entry, R is
    (M - m) / (M* - m) where M is above m, and (M - m) / m elsewhere. Both divisors are taken out of the products, which
    have fewer entries. S is zero on the diagonal. M is made a few rows at a time, and again for the gradient.
    """
    nodes, least = len(y_NC), torch.finfo(y_NC.dtype).eps
    direction_NC = unit(y_NC.softmax(1))
    of_pairs = (direction_NC.sum(0).square() - direction_NC.square().sum(0)).sum()
    mean = (beta * known.likeness_sum + (1 - beta) * of_pairs) / max(nodes * (nodes - 1), 1)
    a, b = _most_similar(direction_NC.detach(), known.likeness, beta)
    most = beta * known.likeness.rows(a, 0)[0, b[0]] + (1 - beta) * (direction_NC[a] * direction_NC[b]).sum()
    asked = known.likeness.nodes if rows is None else rows
    near_RC, far_RC = _Messages.apply(y_NC, direction_NC, mean, known.likeness, beta, asked)
    y_RC = y_NC if rows is None else y_NC[rows]
    near_RC = near_RC / (most - mean).clamp_min(least) + y_RC
    return (y_RC + near_RC.softmax(1) - (far_RC / -mean.clamp_min(least)).softmax(1)) / 2


def _mixed(rows: Tensor, direction_NC: Tensor, likeness: Likeness, beta: float, first: int = 0) -> Tensor:
    """Some rows of M, `[R, N - first]`, from the column `first` on; their entries on M's diagonal are not zero."""
    similar_RN = likeness.rows(rows, first)
    return similar_RN.addmm_(direction_NC[rows], direction_NC[first:].T, beta=beta, alpha=1 - beta)


def _most_similar(direction_NC: Tensor, likeness: Likeness, beta: float) -> tuple[Tensor, Tensor]:
    """The two nodes, `[1]` each, of the largest entry of M, which is symmetric, off the diagonal."""
    most, pair = direction_NC.new_tensor(-1.0), (torch.zeros(1, dtype=torch.int64, device=direction_NC.device),) * 2
    for rows in likeness.nodes.split(likeness.tile):
        first = int(rows[0])
        mixed_RN = _mixed(rows, direction_NC, likeness, beta, first)
        mixed_RN.diagonal().fill_(-1)
        here = mixed_RN.max()
        if here > most:
            row, column = (place[None] + first for place in torch.unravel_index(mixed_RN.argmax(), mixed_RN.shape))
            most, pair = here, (row, column)
    return pair


class _Messages(torch.autograd.Function):
    """The sums of y over nodes that are more similar than the mean pair, by how much, and over those that are less."""

    @staticmethod
    def forward(
        ctx: Any, y_NC: Tensor, direction_NC: Tensor, mean: Tensor, likeness: Likeness, beta: float, rows: Tensor
    ) -> tuple[Tensor, Tensor]:
        ctx.save_for_backward(y_NC, direction_NC, mean)
        ctx.likeness, ctx.beta, ctx.rows = likeness, beta, rows
        near, far = [], []
        for some in rows.split(likeness.tile):
            above_RN = _above(some, direction_NC, mean, likeness, beta)
            near.append(above_RN.clamp_min(0) @ y_NC)
            far.append(above_RN.clamp_max_(0) @ y_NC)
        return torch.cat(near), torch.cat(far)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        y_NC, direction_NC, mean = ctx.saved_tensors
        of_y, of_direction, of_mean = torch.zeros_like(y_NC), torch.zeros_like(direction_NC), torch.zeros_like(mean)
        size = ctx.likeness.tile
        for some, near_RC, far_RC in zip(ctx.rows.split(size), *(gradient.split(size) for gradient in gradients)):
            above_RN = _above(some, direction_NC, mean, ctx.likeness, ctx.beta)
            of_above_RN = torch.where(above_RN > 0, near_RC @ y_NC.T, far_RC @ y_NC.T)
            of_above_RN.scatter_(1, some[:, None], 0.0)
            of_y += above_RN.clamp_min(0).T @ near_RC + above_RN.clamp_max(0).T @ far_RC
            of_mean -= of_above_RN.sum()
            of_above_RN *= 1 - ctx.beta
            of_direction += of_above_RN.T @ direction_NC[some]
            of_direction[some] += of_above_RN @ direction_NC
        return of_y, of_direction, of_mean, None, None, None


def _above(rows: Tensor, direction_NC: Tensor, mean: Tensor, likeness: Likeness, beta: float) -> Tensor:
    """By how much some rows of M, `[R, N]`, exceed the mean; 0 on the diagonal."""
    return _mixed(rows, direction_NC, likeness, beta).sub_(mean).scatter_(1, rows[:, None], 0.0)
