"""FGGP's loss of a graph and its second view: labels, and the contrast of prototypes of both (equations 8 and 9).

Axes: N nodes, C classes, H width of features, J classes that have a prototype.
"""

import math
from typing import Any, NamedTuple

import numba
import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

from shoal.algorithms.losses.prototypes import EPS, unit
from shoal.algorithms.methods.fggp.prototypes import certain_classes, certain_prototypes, existing
from shoal.algorithms.models.compiled.row_losses import cross_entropy, is_compiled
from shoal.algorithms.models.layers.head import Output
from shoal.storage.kernels.exponentials import exp

ZERO = np.float32(0)
# The graph and its second view have one each.
Pair = tuple[np.ndarray, np.ndarray]


class ViewOptions(NamedTuple):
    """Options of FGGP that the loss of both views reads.

    They are `beta`, `tau`, `contrast_form: literal`, `least_mass`, `feature: relu` and `certainty: logit`.
    """

    beta: float
    temperature: float
    literal: bool
    least: float
    relu: bool
    by_logit: bool


def loss_of_views(
    own: Output, other: Output, train: Tensor, train_label: Tensor, classes: int, options: ViewOptions
) -> Tensor:
    """Computes CE(U) + CE(U^g) + beta contrast(c, c^g), a scalar, from the outputs of all nodes (equation 9).

    Classes and certainties of prototypes are those of `own`, without gradients. On a processor one compiled call
    computes it with its gradient.
    """
    outputs = own.logits_NC, other.logits_NC, own.embedding_NH, other.embedding_NH
    if all(map(is_compiled, outputs)):
        in_one_call: Tensor = _LossOfViews.apply(*outputs, train, train_label, classes, options)
        return in_one_call
    loss = sum((F.cross_entropy(logits_NC[train], train_label) for logits_NC in outputs[:2]), torch.zeros(()))
    if not options.beta:
        return loss
    class_N, certain_N = certain_classes(own.logits_NC, train, train_label, options.by_logit)
    return loss + options.beta * contrast_of_nodes(*outputs[2:], class_N, certain_N, classes, options)


def contrast_of_nodes(
    own_NH: Tensor, other_NH: Tensor, class_N: Tensor, certain_N: Tensor, classes: int, options: ViewOptions
) -> Tensor:
    """Contrasts the prototypes of two embeddings of the same nodes, a scalar."""
    (own_CH, mass_C), (other_CH, _) = (
        certain_prototypes(F.relu(x_NH) if options.relu else x_NH, class_N, certain_N, classes)
        for x_NH in (own_NH, other_NH)
    )
    there_C = existing(class_N, mass_C, options.least)
    return contrast_of_views(own_CH[there_C], other_CH[there_C], options.temperature, options.literal)


def contrast_of_views(own_JH: Tensor, other_JH: Tensor, temperature: float, literal: bool = False) -> Tensor:
    """Measures how badly prototypes of two views of a graph find each other, a scalar; 0 for fewer than two classes.

    By default the cross-entropy of cos(c_j, c'_l) / t with the own class as target, from either side, averaged.
    Equation 8 (`literal`) leaves the own class out of the denominators: it may be negative, and of two classes it is
    linear in the cosines. Rows of both are the same classes in the same order.
    """
    score_JJ = unit(own_JH) @ unit(other_JH).T / temperature
    if len(score_JJ) < 2:
        return score_JJ.sum() * 0
    own_J = score_JJ.diagonal()
    if literal:
        same_JJ = torch.eye(len(score_JJ), dtype=torch.bool, device=score_JJ.device)
        score_JJ = score_JJ.masked_fill(same_JJ, -torch.inf)
    return (score_JJ.logsumexp(1) + score_JJ.logsumexp(0)).mean() / 2 - own_J.mean()


class _LossOfViews(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, *tensors: Any) -> Tensor:
        *outputs, train, train_label, classes, options = tensors
        arrays = [t.detach().contiguous().numpy() for t in outputs]
        ctx.gradients = [torch.empty(t.shape) for t in outputs]
        of_logits, of_nodes = ([t.numpy() for t in ctx.gradients[i : i + 2]] for i in (0, 2))
        labels = train.numpy(), train_label.numpy()
        loss = _loss(
            tuple(arrays[:2]), tuple(arrays[2:]), *labels, tuple(of_logits), tuple(of_nodes), classes, tuple(options)
        )
        return torch.tensor(loss, dtype=torch.float32)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Any, ...]:
        return *torch._foreach_mul(ctx.gradients, gradients[0]), None, None, None, None


@numba.njit(cache=True, nogil=True, fastmath=False)
def _loss(
    logits: Pair, nodes: Pair, train: np.ndarray, label: np.ndarray, of_logits: Pair, of_nodes: Pair, classes: int,
    options: tuple[float, float, bool, float, bool, bool],
) -> float:  # fmt: skip
    """Computes the loss of two views, and its gradients by their logits and embeddings."""
    beta, temperature, literal, least, relu, by_logit = options
    loss, some = 0.0, np.empty((len(train), logits[0].shape[1]), np.float32)
    for view in range(2):
        for place in range(len(train)):
            some[place] = logits[view][train[place]]
        loss += cross_entropy(some, label)
        of_logits[view][:] = 0
        for place in range(len(train)):
            of_logits[view][train[place]] = some[place] / np.float32(len(train))
    if beta == 0:
        of_nodes[0][:] = 0
        of_nodes[1][:] = 0
        return loss
    class_of, certain = np.empty(len(logits[0]), np.int64), np.empty(len(logits[0]), np.float32)
    for n in range(len(class_of)):
        row = logits[0][n]
        class_of[n] = np.argmax(row)
        certain[n] = row[class_of[n]] if by_logit else _largest_share(row, row[class_of[n]])
    for place in range(len(train)):
        class_of[train[place]], certain[train[place]] = label[place], np.float32(1)
    return loss + beta * _contrast(nodes, class_of, certain, of_nodes, classes, beta, temperature, literal, least, relu)


@numba.njit(cache=True, nogil=True, fastmath={"reassoc", "contract", "nsz"})
def _largest_share(row: np.ndarray, highest: np.float32) -> np.float32:
    """Computes the largest number of a row's softmax, whose largest logit is given."""
    total = ZERO
    for c in range(len(row)):
        total += exp(row[c] - highest)
    return np.float32(1) / total


@numba.njit(cache=True, nogil=True, fastmath={"contract"})
def _contrast(
    nodes: Pair, class_of: np.ndarray, certain: np.ndarray, gradient: Pair, classes: int, beta: float,
    temperature: float, literal: bool, least: float, relu: bool,
) -> float:  # fmt: skip
    """Computes the contrast of two views, `[N, H]` each, and beta times its gradient."""
    views, (count, width) = 2, nodes[0].shape
    mass, members = np.zeros(classes, np.float32), np.zeros(classes, np.int64)
    direction = np.zeros((views, classes, width), np.float32)
    for n in range(count):
        mass[class_of[n]] += certain[n]
        members[class_of[n]] += 1
    for view in range(views):
        for n in range(count):
            row, weight, of_class = nodes[view][n], certain[n], direction[view, class_of[n]]
            for h in range(width):
                of_class[h] += weight * (max(row[h], ZERO) if relu else row[h])
    classes_there = [c for c in range(classes) if (mass[c] >= least if least > 0 else members[c] > 0 and mass[c] != 0)]
    there = np.array(classes_there)
    if len(there) < 2:
        gradient[0][:] = 0
        gradient[1][:] = 0
        return 0.0
    length = np.empty((views, classes), np.float32)
    for view in range(views):
        for c in there:
            of_class, square = direction[view, c], ZERO
            for h in range(width):
                of_class[h] /= mass[c]
                square += of_class[h] * of_class[h]
            length[view, c] = np.sqrt(square)
            scale = np.float32(1) / length[view, c] if length[view, c] > EPS else ZERO
            for h in range(width):
                of_class[h] *= scale
    loss, of_score = _of_scores(direction, there, temperature, literal)
    for view in range(views):
        of_class = np.zeros((classes, width), np.float32)
        for a in range(len(there)):
            c, of_unit, along = there[a], direction[view, there[a]], ZERO
            if not length[view, c] > EPS:
                continue
            for b in range(len(there)):
                passed = np.float32(of_score[b, a] if view else of_score[a, b])
                for h in range(width):
                    of_class[c, h] += passed * direction[1 - view, there[b], h]
            for h in range(width):
                along += of_class[c, h] * of_unit[h]
            for h in range(width):
                of_class[c, h] = (of_class[c, h] - along * of_unit[h]) / (length[view, c] * mass[c]) * np.float32(beta)
        for n in range(count):
            row, weight, of_row = nodes[view][n], certain[n], of_class[class_of[n]]
            for h in range(width):
                gradient[view][n, h] = ZERO if relu and row[h] <= 0 else weight * of_row[h]
    return loss


@numba.njit(cache=True, nogil=True)
def _of_scores(direction: np.ndarray, there: np.ndarray, temperature: float, literal: bool) -> tuple[float, np.ndarray]:
    """Computes the loss, and the gradients of the cosines, float64 `[J, J]`."""
    count = len(there)
    score, of_score = np.empty((count, count)), np.zeros((count, count))
    loss = 0.0
    for a in range(count):
        for b in range(count):
            cosine = ZERO
            for h in range(direction.shape[2]):
                cosine += direction[0, there[a], h] * direction[1, there[b], h]
            score[a, b] = cosine / temperature
        loss -= score[a, a] / count
        of_score[a, a] -= 1 / (count * temperature)
    for side in range(2):
        for a in range(count):
            of_row, passed = (score[:, a], of_score[:, a]) if side else (score[a], of_score[a])
            most, total = -math.inf, 0.0
            for b in range(count):
                if not literal or a != b:
                    most = max(most, of_row[b])
            for b in range(count):
                if not literal or a != b:
                    total += math.exp(of_row[b] - most)
            loss += (most + math.log(total)) / (2 * count)
            for b in range(count):
                if not literal or a != b:
                    passed[b] += math.exp(of_row[b] - most) / (2 * count * total * temperature)
    return loss, of_score
