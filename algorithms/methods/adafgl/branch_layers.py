"""The layers of a branch of AdaFGL behind its first weight, as one compiled call with its gradient.

Axes: N nodes, R rows of them, H width, C classes, L hidden layers.
"""

from collections.abc import Sequence
from typing import Any

import numba
import numpy as np
import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from shoal.algorithms.models.layers.dropout import draw_entries, least_kept, whole_words
from shoal.storage.kernels.dense_product import multiply_dense

ONE, ZERO = np.float32(1), np.float32(0)
FAST = {"reassoc", "contract", "nsz"}


def score_hidden(
    x_RH: Tensor, biases: Sequence[Tensor], weights: Sequence[Tensor], slope: Tensor, dropout: float,
    rows: Tensor | None, nodes: int,
) -> Tensor:  # fmt: skip
    """Computes scores `[R, C]` of rows x `[R, H]` on a processor: for every weight, drop(PReLU(x + bias)) times it.

    The last bias is added to the scores. Dropout draws for all nodes, from torch's default generator, as
    `dropout.drop` does for one layer after another; the rows are some of these, int64 `[R]`, or all.
    """
    entries = whole_words(nodes * x_RH.shape[1])
    drawn = torch.empty(len(weights), entries if dropout else 0, dtype=torch.int16)
    if dropout:
        draw_entries(drawn.view(-1))
    places = torch.empty(0, dtype=torch.int64) if rows is None else rows
    scores: Tensor = _Layers.apply(x_RH, slope, (drawn, places, dropout), *biases, *weights)
    return scores


class _Layers(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x_RH: Tensor, slope: Tensor, drops: tuple[Tensor, Tensor, float], *layers: Tensor) -> Tensor:
        parameters = [t.detach().contiguous().numpy() for t in layers]
        count = len(parameters) // 2
        biases, weights = tuple(parameters[: count + 1]), tuple(parameters[count + 1 :])
        drawn, rows, dropout = drops
        masks = drawn.numpy(), rows.numpy(), least_kept(dropout), 1 / (1 - dropout)
        before = np.empty((count, *x_RH.shape), np.float32)
        before[0] = x_RH.detach().numpy()
        hidden, scores = np.empty_like(before), torch.empty(len(x_RH), len(biases[-1]))
        ctx.arrays = biases, weights, float(slope), *masks, before, hidden
        _score(*ctx.arrays, scores.numpy())
        return scores

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Any, ...]:
        biases, weights, *_, before, _ = ctx.arrays
        of_biases, of_weights = ([torch.empty(x.shape) for x in part] for part in (biases, weights))
        of_x = torch.empty(before[0].shape)
        into = (tuple(x.numpy() for x in part) for part in (of_biases, of_weights))
        of_slope = _go_back(*ctx.arrays, gradients[0].contiguous().numpy(), *into, of_x.numpy())
        return of_x, torch.tensor([of_slope], dtype=torch.float32), None, *of_biases, *of_weights


Arrays = tuple[np.ndarray, ...]


@numba.njit(cache=True, nogil=True, fastmath=False)
def _score(
    biases: Arrays, weights: Arrays, slope: float, drawn: np.ndarray, rows: np.ndarray, least: int, times: float,
    before: np.ndarray, hidden: np.ndarray, scores: np.ndarray,
) -> None:  # fmt: skip
    """Computes scores; of every hidden layer it keeps what its bias is added to, and its result, `[L, R, H]`."""
    count, width = scores.shape[0], before.shape[2]
    for layer in range(len(weights)):
        _activate(before[layer], biases[layer], slope, drawn[layer], rows, least, times, hidden[layer])
        turned, wide = np.ascontiguousarray(weights[layer].T), len(weights[layer])
        out = before[layer + 1].ctypes.data if layer + 1 < len(weights) else scores.ctypes.data
        multiply_dense(
            hidden[layer].ctypes.data, width, 1, turned.ctypes.data, wide, out, wide, count, width, wide, ZERO
        )
    scores += biases[len(weights)]


@numba.njit(cache=True, nogil=True, fastmath=False)
def _go_back(
    biases: Arrays, weights: Arrays, slope: float, drawn: np.ndarray, rows: np.ndarray, least: int, times: float,
    before: np.ndarray, hidden: np.ndarray, gradient: np.ndarray, of_biases: Arrays, of_weights: Arrays,
    of_x: np.ndarray,
) -> float:  # fmt: skip
    """Writes the gradients of x and of the parameters; returns that of the slope."""
    count, width, of_slope = len(gradient), before.shape[2], 0.0
    _sum_rows(gradient, of_biases[len(weights)])
    passed = gradient
    for layer in range(len(weights) - 1, -1, -1):
        wide, g = passed.shape[1], passed.ctypes.data
        out = of_weights[layer].ctypes.data
        multiply_dense(g, 1, wide, hidden[layer].ctypes.data, width, out, width, wide, count, width, ZERO)
        of_hidden = of_x if layer == 0 else np.empty((count, width), np.float32)
        weight = weights[layer].ctypes.data
        multiply_dense(g, wide, 1, weight, width, of_hidden.ctypes.data, width, count, wide, width, ZERO)
        of_slope += _go_through(before[layer], biases[layer], slope, drawn[layer], rows, least, times, of_hidden)
        _sum_rows(of_hidden, of_biases[layer])
        passed = of_hidden
    return of_slope


@numba.njit(cache=True, nogil=True, fastmath=FAST)
def _activate(
    x: np.ndarray, bias: np.ndarray, slope: float, drawn: np.ndarray, rows: np.ndarray, least: int, times: float,
    out: np.ndarray,
) -> None:  # fmt: skip
    width, below, scale = x.shape[1], np.float32(slope), np.float32(times)
    for r in range(len(x)):
        row, of_row = x[r], out[r]
        for h in range(width):
            value = row[h] + bias[h]
            of_row[h] = value if value > ZERO else below * value
        if len(drawn):
            first = (rows[r] if len(rows) else r) * width
            for h in range(width):
                of_row[h] *= scale if drawn[first + h] >= least else ZERO


@numba.njit(cache=True, nogil=True, fastmath=FAST)
def _go_through(
    x: np.ndarray, bias: np.ndarray, slope: float, drawn: np.ndarray, rows: np.ndarray, least: int, times: float,
    gradient: np.ndarray,
) -> float:  # fmt: skip
    """Goes back through `_activate`, in place; returns the gradient of the slope."""
    width, below, scale, total = x.shape[1], np.float32(slope), np.float32(times), 0.0
    for r in range(len(x)):
        row, of_row, of_slope = x[r], gradient[r], ZERO
        if len(drawn):
            first = (rows[r] if len(rows) else r) * width
            for h in range(width):
                of_row[h] *= scale if drawn[first + h] >= least else ZERO
        for h in range(width):
            value = row[h] + bias[h]
            of_slope += of_row[h] * min(value, ZERO)
            of_row[h] *= ONE if value > ZERO else below
        total += float(of_slope)
    return total


@numba.njit(cache=True, nogil=True, fastmath=FAST)
def _sum_rows(x: np.ndarray, out: np.ndarray) -> None:
    out[:] = 0
    for r in range(len(x)):
        row = x[r]
        for h in range(len(out)):
            out[h] += row[h]
