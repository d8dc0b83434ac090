"""Operations of GAMLP, which weighs hops at every node; see `decoupled.gamlp`.

Axes: N nodes, K hops, H width, R vectors that hops are multiplied by for their scores.
"""

import math
from typing import Any

import numpy as np

from shoal.algorithms.models.compiled.memory import ONE, ZERO, arguments_at, heads_at, matrix_at, numbers_at

# Which products with vectors are part of the scores of all hops at a node: none, the first hop's, every hop's.
ALONE, FIRST, ALL = 0, 1, 2


def weigh(pointer: Any, f: float, g: float) -> None:
    """Sums hops by softmax(sigmoid(scores)).

    Arguments: products of hops with a weight `[K, N, H]`, and with vectors `[K, N, R]`, the last of which is that of a
    hop's own score; what is added to all scores, `[1]`, or to those of every hop, `[K]`, without vectors; memory for
    sigmoids and weights, `[N, K]` each; out `[N, H]`; K, N, H, R and `ALONE`, `FIRST` or `ALL`.
    """
    at = arguments_at(pointer)
    hops, nodes, width, vectors, common = at[6], at[7], at[8], at[9], at[10]
    product, score = heads_at(at[0], hops, nodes, width), heads_at(at[1], hops, nodes, vectors)
    gate, weight, out = matrix_at(at[3], nodes, hops), matrix_at(at[4], nodes, hops), matrix_at(at[5], nodes, width)
    added = numbers_at(at[2], hops)
    for n in range(nodes):
        shared = ZERO
        if common == FIRST:
            shared = score[0, n, 0]
        elif common == ALL:
            for k in range(hops):
                shared += score[k, n, k]
        norm = ZERO
        for k in range(hops):
            of_hop = added[k] if vectors == 0 else score[k, n, vectors - 1] + shared + added[0]
            gate[n, k] = ONE / (ONE + np.float32(math.exp(-of_hop)))
            weight[n, k] = np.float32(math.exp(gate[n, k]))
            norm += weight[n, k]
        for k in range(hops):
            weight[n, k] /= norm
        for h in range(width):
            out[n, h] = ZERO
        for k in range(hops):
            for h in range(width):
                out[n, h] += weight[n, k] * product[k, n, h]


def unweigh(pointer: Any, f: float, g: float) -> None:
    """Writes the gradients of both products and, or adds to g times what it is, of what is added to scores.

    Arguments: as of `weigh`, with the gradient in the place of the output, and behind them those that are written.
    """
    at = arguments_at(pointer)
    hops, nodes, width, vectors, common = at[6], at[7], at[8], at[9], at[10]
    product, of_product = heads_at(at[0], hops, nodes, width), heads_at(at[11], hops, nodes, width)
    of_score, of_added = heads_at(at[12], hops, nodes, vectors), numbers_at(at[13], hops)
    gate, weight, out = matrix_at(at[3], nodes, hops), matrix_at(at[4], nodes, hops), matrix_at(at[5], nodes, width)
    count = hops if vectors == 0 else 1
    for k in range(count):
        of_added[k] = ZERO if g == ZERO else g * of_added[k]
    of_own = np.empty(hops, np.float32)
    for n in range(nodes):
        mean, everyone = ZERO, ZERO
        for k in range(hops):
            total = ZERO
            for h in range(width):
                total += product[k, n, h] * out[n, h]
                of_product[k, n, h] = weight[n, k] * out[n, h]
            of_own[k] = total
            mean += weight[n, k] * total
        for k in range(hops):
            of_own[k] = weight[n, k] * (of_own[k] - mean) * gate[n, k] * (ONE - gate[n, k])
            everyone += of_own[k]
            if vectors == 0:
                of_added[k] += of_own[k]
            for r in range(vectors):
                of_score[k, n, r] = ZERO
        if vectors == 0:
            continue
        of_added[0] += everyone
        for k in range(hops):
            of_score[k, n, vectors - 1] += of_own[k]
        if common == FIRST:
            of_score[0, n, 0] += everyone
        elif common == ALL:
            for k in range(hops):
                of_score[k, n, k] += everyone
