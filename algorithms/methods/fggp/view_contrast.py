"""FGGP's contrast of a graph with its second view, by prototypes of both (equation 8).

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
from shoal.algorithms.methods.fggp.prototypes import certain_prototypes, existing
from shoal.algorithms.models.compiled.row_losses import is_compiled

ZERO = np.float32(0)


class ContrastOptions(NamedTuple):
    """Options of FGGP that the contrast reads: `tau`, `contrast_form: literal`, `least_mass`, and `feature: relu`."""

    temperature: float
    literal: bool
    least: float
    relu: bool


def contrast_of_nodes(
    own_NH: Tensor, other_NH: Tensor, class_N: Tensor, certain_N: Tensor, classes: int, options: ContrastOptions
) -> Tensor:
    """Contrasts the prototypes of two embeddings of the same nodes, a scalar; classes and certainties have no gradient.

    On a processor one compiled call computes it with its gradient.
    """
    if is_compiled(own_NH) and is_compiled(other_NH):
        loss: Tensor = _Contrast.apply(own_NH, other_NH, class_N, certain_N, classes, options)
        return loss
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


class _Contrast(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, own_NH: Tensor, other_NH: Tensor, class_N: Tensor, certain_N: Tensor, classes: int,
        options: ContrastOptions,
    ) -> Tensor:  # fmt: skip
        nodes = torch.stack([own_NH, other_NH]).detach().numpy()
        ctx.gradient_2NH = torch.empty(nodes.shape)
        arrays = class_N.numpy(), certain_N.numpy(), ctx.gradient_2NH.numpy()
        return torch.tensor(_contrast(nodes, *arrays, classes, *options), dtype=torch.float32)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Any, ...]:
        return *(ctx.gradient_2NH * gradients[0]), None, None, None, None


@numba.njit(cache=True, nogil=True, fastmath={"contract"})
def _contrast(
    nodes: np.ndarray, class_of: np.ndarray, certain: np.ndarray, gradient: np.ndarray, classes: int,
    temperature: float, literal: bool, least: float, relu: bool,
) -> float:  # fmt: skip
    """Computes the contrast of two views, `[2, N, H]`, and its gradient."""
    views, count, width = nodes.shape
    mass, members = np.zeros(classes, np.float32), np.zeros(classes, np.int64)
    direction = np.zeros((views, classes, width), np.float32)
    for n in range(count):
        mass[class_of[n]] += certain[n]
        members[class_of[n]] += 1
    for view in range(views):
        for n in range(count):
            row, weight, of_class = nodes[view, n], certain[n], direction[view, class_of[n]]
            for h in range(width):
                of_class[h] += weight * (max(row[h], ZERO) if relu else row[h])
    classes_there = [c for c in range(classes) if (mass[c] >= least if least > 0 else members[c] > 0 and mass[c] != 0)]
    there = np.array(classes_there)
    gradient[:] = 0
    if len(there) < 2:
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
                of_class[c, h] = (of_class[c, h] - along * of_unit[h]) / (length[view, c] * mass[c])
        for n in range(count):
            row, weight, of_row = nodes[view, n], certain[n], of_class[class_of[n]]
            for h in range(width):
                gradient[view, n, h] = ZERO if relu and row[h] <= 0 else weight * of_row[h]
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
