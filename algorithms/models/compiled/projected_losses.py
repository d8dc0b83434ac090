"""Losses by products: squared distances of rows to other rows that a matrix projects, each with one gradient, and
distances of rows and queries, all in one compiled call.

Axes: N rows `[N, H]` to `[N, K]` by a matrix W `[H, K]`.
"""

import math

import numba
import numpy as np

from shoal.algorithms.models.compiled.row_losses import FAST, ZERO, exponentiate, find_maximum, sum_squares
from shoal.storage.kernels.dense_product import multiply_dense, square_distances

# Rows whose distances are held at a time, and the share of both squared lengths below which a squared distance is near.
BLOCK, NEAR = 96, np.float32(1 / 64)


@numba.njit(cache=True, nogil=True, fastmath=FAST)
def squares_to_projected(
    x: np.ndarray, other: np.ndarray, projection: np.ndarray, width: float, gradient: np.ndarray
) -> float:
    """Averages (x - z W')^2 over all entries, z being rows of so many numbers."""
    gradient[:] = x
    loss = _apart(other, projection, gradient) / x.size
    gradient *= np.float32(2 / x.size)
    return loss


@numba.njit(cache=True, nogil=True, fastmath=FAST)
def squares_of_projected(x: np.ndarray, target: np.ndarray, projection: np.ndarray, gradient: np.ndarray) -> float:
    """Averages (t - x W')^2 over all entries."""
    apart, (outputs, width) = target.copy(), projection.shape
    loss = _apart(x, projection, apart) / apart.size
    places = apart.ctypes.data, outputs, 1, projection.ctypes.data, width, gradient.ctypes.data, width
    multiply_dense(*places, len(x), outputs, width, 0.0)
    gradient *= np.float32(-2 / apart.size)
    return loss


@numba.njit(cache=True, nogil=True, fastmath=FAST)
def squares_by_projection(x: np.ndarray, other: np.ndarray, target: np.ndarray, gradient: np.ndarray) -> float:
    """Averages (t - z W')^2 over all entries, W being x."""
    apart, (outputs, width) = target.copy(), x.shape
    loss = _apart(other, x, apart) / apart.size
    places = apart.ctypes.data, 1, outputs, other.ctypes.data, width, gradient.ctypes.data, width
    multiply_dense(*places, outputs, len(other), width, 0.0)
    gradient *= np.float32(-2 / apart.size)
    return loss


@numba.njit(cache=True, nogil=True, fastmath=FAST)
def _apart(rows: np.ndarray, projection: np.ndarray, out: np.ndarray) -> float:
    """Takes the product of rows with W' from what is there, and returns the sum of its squares."""
    (outputs, width), total = projection.shape, 0.0
    turned = np.empty((width, outputs), np.float32)
    for h in range(outputs):
        for k in range(width):
            turned[k, h] = -projection[h, k]
    places = rows.ctypes.data, width, 1, turned.ctypes.data, outputs, out.ctypes.data, outputs
    multiply_dense(*places, len(rows), width, outputs, 1.0)
    for n in range(len(out)):
        square = ZERO
        for h in range(outputs):
            square += out[n, h] * out[n, h]
        total += float(square)
    return total


@numba.njit(cache=True, nogil=True, fastmath=FAST, error_model="numpy")
def margin_cross_entropies(
    x: np.ndarray, query: np.ndarray, label: np.ndarray, known: np.ndarray, margin: float, gradient: np.ndarray
) -> float:
    """Computes `prototype_losses.MarginCrossEntropy` of rows, which are anchors; the gradient of a distance 0 is 0.

    Distances are sums of squared differences: products lose the digits of near pairs. The gradient sums up queries and
    anchors apart, from the mean anchor on, but for near pairs. An IndexError for a label that is no known class.
    """
    width, total, classes = x.shape[1], 0.0, np.flatnonzero(known)
    count, share = len(classes), np.float32(1 / max(len(query), 1))
    anchor, of_anchor = x[classes], np.zeros((count, width), np.float32)
    by_place, middle = np.ascontiguousarray(anchor.T), np.zeros(width, np.float32)
    for k in range(count):
        for h in range(width):
            middle[h] += anchor[k, h] / np.float32(count)
    apart, block = anchor - middle, np.empty((BLOCK, width), np.float32)
    added = np.empty((count, width), np.float32)
    length, factor = np.empty(count, np.float32), np.empty((BLOCK, count), np.float32)
    score, of_score = np.empty(count, np.float32), np.empty(count, np.float32)
    for k in range(count):
        length[k] = NEAR * sum_squares(apart[k])
    for first in range(0, len(query), BLOCK):
        rows, at = min(BLOCK, len(query) - first), query.ctypes.data + 4 * first * width
        places = by_place.ctypes.data, count, factor.ctypes.data, count
        square_distances(at, width, *places, rows, width, count)
        for n in range(rows):
            for h in range(width):
                block[n, h] = query[first + n, h] - middle[h]
        of_score[:] = ZERO
        for n in range(rows):
            row, of_query, of_label = factor[n], query[first + n], np.searchsorted(classes, label[first + n])
            if of_label == count or classes[of_label] != label[first + n]:
                raise IndexError("expected labels of known classes")
            least, near = NEAR * sum_squares(block[n]), 0
            for k in range(count):
                near += row[k] < least + length[k]
                row[k] = np.float32(math.sqrt(row[k]))
                score[k] = -row[k]
            score[of_label] -= np.float32(margin)
            of_own, highest = score[of_label], find_maximum(score)
            mass = exponentiate(score, highest)
            total += float(highest) + math.log(mass) - float(of_own)
            scale = share / mass
            score[of_label] -= mass
            for k in range(count):
                # What the gradient has of the query, less what it has of the anchor.
                score[k] = scale * score[k] / row[k] if row[k] > ZERO else ZERO
                row[k], score[k] = score[k], row[k]
            for k in range(count if near else 0):
                if score[k] * score[k] < least + length[k]:
                    for h in range(width):
                        of_anchor[k, h] -= row[k] * (anchor[k, h] - of_query[h])
                    row[k] = ZERO
            for k in range(count):
                of_score[k] += row[k]
        of_block = factor.ctypes.data, 1, count, block.ctypes.data, width, added.ctypes.data, width
        multiply_dense(*of_block, count, rows, width, ZERO)
        for k in range(count):
            for h in range(width):
                of_anchor[k, h] += added[k, h] - of_score[k] * apart[k, h]
    gradient[:] = ZERO
    for k in range(count):
        gradient[classes[k]] = of_anchor[k]
    return total / max(len(query), 1)
