"""Passes over hops of some nodes on one core: the weights of all hops and a weighted sum, and the way back.

Axes: N nodes, K hops counting hop 0, of which D are dense and summed, F features. A node's rows of all hops
are read together, so that what is read a second time is in the cache.
"""

import math

import numba
import numpy as np

FAST = {"reassoc", "contract", "nsz"}
ONE = np.float32(1)


@numba.njit(cache=True, nogil=True, fastmath=FAST)
def weigh(
    hops: tuple[np.ndarray, ...],
    places: np.ndarray,
    own: np.ndarray,
    reference: np.ndarray,
    shared: np.ndarray,
    gate: np.ndarray,
    weight: np.ndarray,
    total: np.ndarray,
) -> None:
    """Weights softmax(sigmoid(scores)) of all hops at every node, and the sum of D of its hops.

    Args:
        hops: Those that are summed, float32 `[N, F]` each; one of width 0 if there are none.
        places: Which of the K hops they are, int64 `[D]`.
        own: What a hop is multiplied by for its own score, float32 `[F]`; empty if scores read no hop.
        reference: What the first ones of them are multiplied by for the score of every hop, `[R, F]`.
        shared: The part of all scores that is not of these hops, `[N]`.
        gate: That part of each hop's score, which gives way to its sigmoid, `[N, K]`.
        weight: Receives the weights, `[N, K]`.
        total: Receives their weighted sum, `[N, F]`.
    """
    reads = len(own) > 0
    for n in range(len(shared)):
        common = shared[n]
        for d in range(len(hops)):
            x = hops[d]
            if reads:
                score = np.float32(0)
                for column in range(x.shape[1]):
                    score += x[n, column] * own[column]
                gate[n, places[d]] += score
            if d < len(reference):
                part = np.float32(0)
                for column in range(x.shape[1]):
                    part += x[n, column] * reference[d, column]
                common += part
        norm = np.float32(0)
        for k in range(gate.shape[1]):
            gate[n, k] = ONE / (ONE + math.exp(-(gate[n, k] + common)))
            weight[n, k] = math.exp(gate[n, k])
            norm += weight[n, k]
        for k in range(gate.shape[1]):
            weight[n, k] /= norm
        total[n, :] = 0
        for d in range(len(hops)):
            x, w = hops[d], weight[n, places[d]]
            for column in range(x.shape[1]):
                total[n, column] += w * x[n, column]


@numba.njit(cache=True, nogil=True, fastmath=FAST)
def unweigh(
    hops: tuple[np.ndarray, ...],
    places: np.ndarray,
    of_total: np.ndarray,
    gate: np.ndarray,
    weight: np.ndarray,
    of_score: np.ndarray,
    of_own: np.ndarray,
    of_reference: np.ndarray,
) -> None:
    """The gradients of scores, and of what summed hops are multiplied by, from that of their sum.

    Args:
        hops: As for `weigh`.
        places: As for `weigh`.
        of_total: Gradient of the weighted sum, `[N, F]`.
        gate: What `weigh` gave, `[N, K]`.
        weight: What `weigh` gave, `[N, K]`.
        of_score: Gradient of the weights of other hops, 0 for these, which gives way to that of all scores, `[N, K]`.
        of_own: That of `own` is added to it, `[F]`; empty if scores read no hop.
        of_reference: That of `reference` is added to it, `[R, F]`.
    """
    reads = len(of_own) > 0
    for n in range(len(of_total)):
        for d in range(len(hops)):
            x, product = hops[d], np.float32(0)
            for column in range(x.shape[1]):
                product += x[n, column] * of_total[n, column]
            of_score[n, places[d]] += product
        mean = np.float32(0)
        for k in range(gate.shape[1]):
            mean += weight[n, k] * of_score[n, k]
        everyone = np.float32(0)
        for k in range(gate.shape[1]):
            g = gate[n, k]
            of_score[n, k] = weight[n, k] * (of_score[n, k] - mean) * g * (ONE - g)
            everyone += of_score[n, k]
        for d in range(len(hops)):
            x, score = hops[d], of_score[n, places[d]]
            if reads:
                for column in range(x.shape[1]):
                    of_own[column] += score * x[n, column]
            if d < len(of_reference):
                for column in range(x.shape[1]):
                    of_reference[d, column] += everyone * x[n, column]
