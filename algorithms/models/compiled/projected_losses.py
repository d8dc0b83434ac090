"""Squared distances of rows to other rows that a matrix projects, each with one gradient in one compiled call.

Axes: N rows `[N, H]` to `[N, K]` by a matrix W `[H, K]`.
"""

import numba
import numpy as np

from shoal.algorithms.models.compiled.row_losses import FAST, ZERO
from shoal.storage.kernels.dense_product import multiply_dense


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
