"""Operations of attention over the neighbours of every node; see `layers.edge_attention`.

Axes: N receivers, M senders, E entries, H heads of width D.
"""

import math
from typing import Any

import numba
import numpy as np

from shoal.algorithms.models.compiled.memory import ZERO, arguments_at, heads_at, integers_at, matrix_at
from shoal.algorithms.models.layers.edge_attention import (
    additive_gradients,
    additive_scores,
    product_gradients,
    product_scores,
    sums,
)
from shoal.storage.kernels.exponentials import exp


def attend(pointer: Any, f: float, g: float) -> None:
    """Sums senders by additive attention; f is the slope of LeakyReLU.

    Arguments: row starts, columns, x `[M, H, D]`, vectors of senders and of receivers `[H, D]`; memory for scores of
    receivers `[N, H]` and senders `[M, H]` and for weights `[E, H]`; out `[N, H, D]`; N, M, E, H, D.
    """
    at = arguments_at(pointer)
    n, m, e, heads, width = at[9], at[10], at[11], at[12], at[13]
    starts, columns, x = integers_at(at[0], n + 1), integers_at(at[1], e), heads_at(at[2], m, heads, width)
    receiver, sender, weight = matrix_at(at[5], n, heads), matrix_at(at[6], m, heads), matrix_at(at[7], e, heads)
    _scores(x, matrix_at(at[3], heads, width), sender)
    _scores(x, matrix_at(at[4], heads, width), receiver)
    additive_scores(starts, columns, receiver, sender, f, weight)
    _exponentials(weight)
    sums(starts, columns, weight, x, heads_at(at[8], n, heads, width))


def unattend(pointer: Any, f: float, g: float) -> None:
    """Adds the gradient of x, and writes those of both vectors, or adds them to g times what they are.

    Arguments are those of `attend` with the gradient in the place of the output, and behind them of_x, of_senders,
    of_receivers.
    """
    at = arguments_at(pointer)
    n, m, e, heads, width = at[9], at[10], at[11], at[12], at[13]
    starts, columns, x = integers_at(at[0], n + 1), integers_at(at[1], e), heads_at(at[2], m, heads, width)
    receiver, sender, weight = matrix_at(at[5], n, heads), matrix_at(at[6], m, heads), matrix_at(at[7], e, heads)
    of_x, of_receiver, of_sender = (
        heads_at(at[14], m, heads, width),
        np.zeros((n, heads), np.float32),
        np.zeros((m, heads), np.float32),
    )
    kept = (starts, columns, receiver, sender, x, weight, f)
    additive_gradients(kept, heads_at(at[8], n, heads, width), (of_receiver, of_sender, of_x))
    _unscore(x, of_sender, matrix_at(at[3], heads, width), of_x, matrix_at(at[15], heads, width), g)
    _unscore(x, of_receiver, matrix_at(at[4], heads, width), of_x, matrix_at(at[16], heads, width), g)


def attend_products(pointer: Any, f: float, g: float) -> None:
    """Sums values by attention of products.

    Arguments: row starts, columns, queries `[N, H, D]`, keys and values `[M, H, D]`, memory for weights `[E, H]`, out
    `[N, H, D]`; N, M, E, H, D.
    """
    at = arguments_at(pointer)
    n, m, e, heads, width = at[7], at[8], at[9], at[10], at[11]
    starts, columns, weight = integers_at(at[0], n + 1), integers_at(at[1], e), matrix_at(at[5], e, heads)
    query, key = heads_at(at[2], n, heads, width), heads_at(at[3], m, heads, width)
    product_scores(starts, columns, query, key, np.float32(1 / math.sqrt(width)), weight)
    _exponentials(weight)
    sums(starts, columns, weight, heads_at(at[4], m, heads, width), heads_at(at[6], n, heads, width))


def unattend_products(pointer: Any, f: float, g: float) -> None:
    """Adds the gradients of queries, keys and values.

    Arguments are those of `attend_products` with the gradient in the place of the output, and behind them the three.
    """
    at = arguments_at(pointer)
    n, m, e, heads, width = at[7], at[8], at[9], at[10], at[11]
    starts, columns, weight = integers_at(at[0], n + 1), integers_at(at[1], e), matrix_at(at[5], e, heads)
    query, key = heads_at(at[2], n, heads, width), heads_at(at[3], m, heads, width)
    value, share = heads_at(at[4], m, heads, width), np.float32(1 / math.sqrt(width))
    into = (
        heads_at(at[12], n, heads, width),
        heads_at(at[13], m, heads, width),
        heads_at(at[14], m, heads, width),
    )
    product_gradients((starts, columns, query, key, value, weight, share), heads_at(at[6], n, heads, width), into)


@numba.njit(fastmath={"reassoc", "contract", "nsz"})
def _scores(x: np.ndarray, vector: np.ndarray, out: np.ndarray) -> None:
    """Multiplies the first rows by a vector of each head."""
    for n in range(len(out)):
        for h in range(x.shape[1]):
            total = ZERO
            for d in range(x.shape[2]):
                total += x[n, h, d] * vector[h, d]
            out[n, h] = total


@numba.njit(fastmath={"reassoc", "contract", "nsz"})
def _unscore(
    x: np.ndarray, of_score: np.ndarray, vector: np.ndarray, of_x: np.ndarray, of_vector: np.ndarray, g: np.float32
) -> None:
    for h in range(x.shape[1]):
        for d in range(x.shape[2]):
            of_vector[h, d] = ZERO if g == ZERO else g * of_vector[h, d]
    for n in range(len(of_score)):
        for h in range(x.shape[1]):
            for d in range(x.shape[2]):
                of_vector[h, d] += of_score[n, h] * x[n, h, d]
                of_x[n, h, d] += of_score[n, h] * vector[h, d]


@numba.njit(fastmath={"contract"})
def _exponentials(x: np.ndarray) -> None:
    for e in range(len(x)):
        for h in range(x.shape[1]):
            x[e, h] = exp(x[e, h])
