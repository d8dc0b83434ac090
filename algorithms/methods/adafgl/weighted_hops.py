"""Products of propagated sparse features and weights, forward and backward, each in one compiled call.

Axes: N nodes, F features, H columns of a weight, K steps of propagation, B rows that others share.

P is `[rest, left]` times x above `right` x, so that buffers of rows have `[N + B, H]`. Matrices are float32 and
C-contiguous, given by their addresses; sparse ones by row starts, columns and values, None: ones.
"""

from typing import Any

import numba
import numpy as np

from shoal.algorithms.models.compiled.memory import matrix_at
from shoal.storage.kernels.sparse_product import multiply

ONE, ZERO = np.float32(1), np.float32(0)
# Bytes of a number.
FLOAT = 4
# Row starts, columns, values.
Sparse = tuple[np.ndarray, np.ndarray, Any]


@numba.njit(cache=True, nogil=True, fastmath=False)
def multiply_by_hops(
    x: Sparse, right: Sparse, rest: Sparse, weights: np.ndarray, outs: np.ndarray, features: int, width: int,
    steps: int,
) -> None:  # fmt: skip
    """Writes [X, P X, …, P^K X] W, `[N, H]` each, for weights W `[(K + 1) F, H]`."""
    (starts, columns, values), nodes = x, len(x[0]) - 1
    buffers = np.empty((2, nodes + len(right[0]) - 1, width), np.float32)
    for number in range(len(weights)):
        near, far = buffers[0].ctypes.data, buffers[1].ctypes.data
        part = FLOAT * features * width
        multiply(starts, columns, values, weights[number] + steps * part, far, width, ONE, ZERO)
        for step in range(steps - 1, -1, -1):
            out = near if step else outs[number]
            multiply(starts, columns, values, weights[number] + step * part, out, width, ONE, ZERO)
            _propagate(right, rest, far, out, nodes, width, ONE)
            near, far = far, near


@numba.njit(cache=True, nogil=True, fastmath=False)
def go_back_through_hops(
    transposed: Sparse, right: Sparse, rest: Sparse, gradients: np.ndarray, outs: np.ndarray, features: int,
    width: int, steps: int,
) -> None:  # fmt: skip
    """Writes the gradients of weights, `[(K + 1) F, H]` each, from those of the products; P is symmetric."""
    (starts, columns, values), nodes = transposed, len(rest[0]) - 1
    buffers = np.empty((2, nodes + len(right[0]) - 1, width), np.float32)
    for number in range(len(gradients)):
        near, far = buffers[0].ctypes.data, buffers[1].ctypes.data
        buffers[0, :nodes] = matrix_at(gradients[number], nodes, width)
        for step in range(steps + 1):
            if step:
                _propagate(right, rest, near, far, nodes, width, ZERO)
                near, far = far, near
            out = outs[number] + FLOAT * step * features * width
            multiply(starts, columns, values, near, out, width, ONE, ZERO)


@numba.njit(cache=True, nogil=True, fastmath=False)
def _propagate(right: Sparse, rest: Sparse, x: int, out: int, nodes: int, width: int, beta: np.float32) -> None:
    """Computes out = P x + beta out; behind x there is room for the rows that others share."""
    multiply(right[0], right[1], right[2], x, x + FLOAT * nodes * width, width, ONE, ZERO)
    multiply(rest[0], rest[1], rest[2], x, out, width, ONE, beta)
