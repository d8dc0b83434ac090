"""Messages that attract similar nodes and repel others, over all pairs of nodes (AdaFGL, phase 2).

Axes: N nodes, R of them asked for, C classes, T pairs of a node with others at a time.
"""

from typing import Any

import numba
import numpy as np
import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from shoal.algorithms.losses.prototypes import unit
from shoal.algorithms.methods.adafgl.knowledge import Knowledge, Likeness

FAST = {"reassoc", "contract", "nsz"}
ONE, ZERO = np.float32(1), np.float32(0)
# Pairs at a time: what is made of them stays in the nearest cache.
TILE = 512
# Directions, those of the likeness, `[C, N]` each, its cut, beta, the mean m, and the rows that are asked for.
Pairs = tuple[np.ndarray, np.ndarray, float, float, np.float32, np.ndarray]


def signed_messages(y_NC: Tensor, known: Knowledge, beta: float, rows: Tensor | None = None) -> Tensor:
    """Computes (y + softmax(R+ y) - softmax(R- y)) / 2 of rows or all, `[R, C]`: similar nodes attract, others repel.

    R+ and R- are the positive and negative parts of R, which tells how much more, or less, similar than the mean pair
    two nodes are: 1 as much as the most similar pair, -1 not at all; 1 on the diagonal. The authors' code turns the
    negative half round, so that the least similar nodes weigh least.

    With M = beta S + (1 - beta) S(softmax(y)), m its mean off the diagonal and M* its largest entry, R is
    (M - m) / (M* - m) where M is above m, and (M - m) / m elsewhere. Both divisors are taken out of the products, which
    have fewer entries. S is zero on the diagonal. M is made `TILE` pairs at a time on a processor, and again for the
    gradient.
    """
    nodes, least = len(y_NC), torch.finfo(y_NC.dtype).eps
    direction_NC = unit(y_NC.softmax(1))
    of_pairs = (direction_NC.sum(0).square() - direction_NC.square().sum(0)).sum()
    mean = (beta * known.likeness_sum + (1 - beta) * of_pairs) / max(nodes * (nodes - 1), 1)
    likeness = _by_class(known.likeness.direction_NC), known.likeness.cut, beta
    a, b, similar = _most_similar(direction_NC, known.likeness, beta)
    most = beta * similar + (1 - beta) * (direction_NC[a] * direction_NC[b]).sum()
    asked = known.likeness.nodes if rows is None else rows
    near_RC, far_RC = _Messages.apply(y_NC, direction_NC, mean, likeness, asked)
    y_RC = y_NC if rows is None else y_NC[rows]
    near_RC = near_RC / (most - mean).clamp_min(least) + y_RC
    return (y_RC + near_RC.softmax(1) - (far_RC / -mean.clamp_min(least)).softmax(1)) / 2


def _by_class(x_NC: Tensor) -> np.ndarray:
    """Copies to the processor, a row a class: `[C, N]`."""
    x_CN: np.ndarray = x_NC.detach().cpu().T.contiguous().numpy()
    return x_CN


class _Messages(torch.autograd.Function):
    """The sums of y over nodes that are more similar than the mean pair, by how much, and over those that are less."""

    @staticmethod
    def forward(
        ctx: Any,
        y_NC: Tensor,
        direction_NC: Tensor,
        mean: Tensor,
        likeness: tuple[np.ndarray, float, float],
        rows: Tensor,
    ) -> tuple[Tensor, Tensor]:
        ctx.pairs = _by_class(direction_NC), *likeness, np.float32(mean.item()), rows.cpu().numpy()
        ctx.y_CN, ctx.device = _by_class(y_NC), y_NC.device
        near_RC, far_RC = np.zeros((2, len(rows), y_NC.shape[1]), np.float32)
        _gather(ctx.pairs, ctx.y_CN, near_RC, far_RC)
        return torch.from_numpy(near_RC).to(ctx.device), torch.from_numpy(far_RC).to(ctx.device)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        near_RC, far_RC = (gradient.cpu().contiguous().numpy() for gradient in gradients)
        of_y, of_direction = np.zeros((2, *ctx.y_CN.shape), np.float32)
        of_mean = _scatter(ctx.pairs, ctx.y_CN, near_RC, far_RC, of_y, of_direction)
        of_inputs = (
            torch.from_numpy(gradient).to(ctx.device)
            for gradient in (of_y.T, of_direction.T, np.array(of_mean, np.float32))
        )
        return *of_inputs, None, None


@numba.njit(cache=True, nogil=True, fastmath=FAST)
def _mix(row: int, first: int, pairs: Pairs, similar: np.ndarray, mixed: np.ndarray) -> None:
    """Computes entries of M, `[T]`, of a row from the column `first` on, and of S; that on M's diagonal is not zero."""
    direction, like, cut, beta, _, _ = pairs
    similar[:] = 0
    mixed[:] = 0
    stop, share, other = first + len(mixed), np.float32(beta), np.float32(1 - beta)
    for c in range(len(direction)):
        of_like, of_direction = like[c, first:stop], direction[c, first:stop]
        own_like, own_direction = like[c, row], direction[c, row]
        for t in range(len(mixed)):
            similar[t] += own_like * of_like[t]
            mixed[t] += own_direction * of_direction[t]
    if cut > 0:
        least = np.float32(cut)
        for t in range(len(mixed)):
            similar[t] = ONE if similar[t] > least else ZERO
    for t in range(len(mixed)):
        mixed[t] = share * similar[t] + other * mixed[t]


def _most_similar(direction_NC: Tensor, known: Likeness, beta: float) -> tuple[int, int, float]:
    """Finds the two nodes of the largest entry of the symmetric M off the diagonal, and their entry of S."""
    best = 0, 0, -1.0, 0.0
    like_NC, direction_NC = known.direction_NC.cpu(), direction_NC.detach().cpu()
    for first in range(0, len(like_NC), known.tile):
        some = slice(first, first + known.tile)
        products = ((x_NC[some] @ x_NC[first:].T).numpy() for x_NC in (like_NC, direction_NC))
        best = _mix_and_find_largest(*products, known.cut, beta, first, best)
    a, b, _, similar = best
    return a, b, similar


@numba.njit(cache=True, nogil=True, fastmath={*FAST, "nnan"})
def _mix_and_find_largest(
    similarity: np.ndarray, mixed: np.ndarray, cut: float, beta: float, start: int, best: tuple[int, int, float, float]
) -> tuple[int, int, float, float]:
    """Computes M above the diagonal, and finds its largest entry.

    Args:
        similarity: Products of classifications, rows from `start` on and columns from there; they are S if `cut` is 0,
            else S is 1 where they exceed it and 0 elsewhere.
        mixed: Products of directions in the same places; they become M = beta S + (1 - beta) of them.
        best: Row, column, M and S of the largest entry of earlier rows.

    Returns the same of the largest entry of all.
    """
    as_it_is, least, share, other = cut == 0, np.float32(cut), np.float32(beta), np.float32(1 - beta)
    for row in range(len(similarity)):
        similar, entry = similarity[row, row + 1 :], mixed[row, row + 1 :]
        most = np.float32(-1)
        for t in range(len(entry)):
            s = similar[t] if as_it_is else ONE if similar[t] > least else ZERO
            entry[t] = share * s + other * entry[t]
            most = entry[t] if entry[t] > most else most
        if most > best[2]:
            place = int(np.argmax(entry))
            s = similar[place] if as_it_is else ONE if similar[place] > least else ZERO
            best = start + row, start + row + 1 + place, float(most), float(s)
    return best


@numba.njit(cache=True, nogil=True, fastmath=FAST)
def _gather(pairs: Pairs, y: np.ndarray, near: np.ndarray, far: np.ndarray) -> None:
    """Adds to `near` and `far`, `[R, C]`, the products of the positive and negative part of M - m with y."""
    _, _, _, _, mean, rows = pairs
    classes, nodes = y.shape
    similar, mixed = np.empty(TILE, np.float32), np.empty(TILE, np.float32)
    for r in range(len(rows)):
        for first in range(0, nodes, TILE):
            count = min(TILE, nodes - first)
            above = mixed[:count]
            _mix(rows[r], first, pairs, similar[:count], above)
            _less(above, mean, rows[r] - first)
            for c in range(classes):
                of_class, attracted, repelled = y[c, first : first + count], ZERO, ZERO
                for t in range(count):
                    attracted += max(above[t], ZERO) * of_class[t]
                    repelled += min(above[t], ZERO) * of_class[t]
                near[r, c] += attracted
                far[r, c] += repelled


@numba.njit(cache=True, nogil=True, fastmath=FAST)
def _less(above: np.ndarray, mean: float, diagonal: int) -> None:
    """Subtracts the mean; the entry of the diagonal is 0."""
    for t in range(len(above)):
        above[t] -= mean
    if 0 <= diagonal < len(above):
        above[diagonal] = 0


@numba.njit(cache=True, nogil=True, fastmath=FAST)
def _scatter(
    pairs: Pairs, y: np.ndarray, near: np.ndarray, far: np.ndarray, of_y: np.ndarray, of_direction: np.ndarray
) -> float:
    """Goes backward: adds to the gradients `of_y` and `of_direction`, `[C, N]`, and returns that of the mean.

    `near` and `far`, `[R, C]`, are the gradients of the two sums that the forward pass made of each row.
    """
    direction, _, _, beta, mean, rows = pairs
    classes, nodes = y.shape
    similar, mixed, passed = np.empty(TILE, np.float32), np.empty(TILE, np.float32), np.empty(TILE, np.float32)
    of_mean, other = 0.0, np.float32(1 - beta)
    for r in range(len(rows)):
        row = rows[r]
        for first in range(0, nodes, TILE):
            count, stop = min(TILE, nodes - first), min(first + TILE, nodes)
            above, of_above, repelled = mixed[:count], passed[:count], similar[:count]
            _mix(row, first, pairs, repelled, above)
            _less(above, mean, row - first)
            of_above[:] = 0
            repelled[:] = 0
            for c in range(classes):
                of_class, into, of_near, of_far = y[c, first:stop], of_y[c, first:stop], near[r, c], far[r, c]
                # One array is written a loop: with more of them LLVM makes no vector code.
                for t in range(count):
                    of_above[t] += of_near * of_class[t]
                for t in range(count):
                    repelled[t] += of_far * of_class[t]
                for t in range(count):
                    into[t] += above[t] * (of_near if above[t] > 0 else of_far)
            total = ZERO
            for t in range(count):
                of_above[t] = of_above[t] if above[t] > 0 else repelled[t]
            if 0 <= row - first < count:
                of_above[row - first] = 0
            for t in range(count):
                total += of_above[t]
                of_above[t] *= other
            of_mean -= float(total)
            for c in range(classes):
                others, into = direction[c, first:stop], of_direction[c, first:stop]
                direction_of_row, gathered = direction[c, row], ZERO
                for t in range(count):
                    into[t] += of_above[t] * direction_of_row
                    gathered += of_above[t] * others[t]
                of_direction[c, row] += gathered
    return of_mean
