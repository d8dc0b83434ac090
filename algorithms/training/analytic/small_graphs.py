"""The whole local training of a small GCN or GraphSAGE on sparse features, all its steps in one compiled call.

Axes: E steps, M nodes whose features are read, N whose hidden rows are computed, T training nodes, F features, H hidden
units, C classes, P parameters. Training nodes come first among N, these first among M.
"""

import math
from typing import Any

import numba
import numpy as np
from torch import Tensor

from shoal.algorithms.client import FlatModel
from shoal.algorithms.models.build import name_of
from shoal.algorithms.models.inputs.neighbourhood import Inputs, Neighbourhood
from shoal.algorithms.train_options import TrainOptions
from shoal.algorithms.training.analytic.layers import cross_entropy
from shoal.algorithms.training.analytic.small_heads import FAST, SmallModel, adam, in_one_batch, pull, sgd
from shoal.storage.graph.sparse_matrix import SparseMatrix
from shoal.storage.kernels.sparse_product import multiply

# Products of so many multiplications take most of a step, so that one call gains little.
TOO_LARGE = 2**21
# Row starts, columns and values of a matrix.
Csr = tuple[np.ndarray, np.ndarray, np.ndarray]
ONE, ZERO = np.float32(1), np.float32(0)


class SmallGraph(SmallModel):
    """A layer of messages, and a classifier that passes messages, on the part of a graph that training rows read."""

    def __init__(self, model: FlatModel) -> None:
        """Takes a model for which `is_small_graph` holds."""
        module: Any = model.coupled
        (conv,), last = module.convs, module.head.linears[-1]
        self.classes, self.hidden = last.weight.shape
        super().__init__(module.dropout if module.head.drops_embedding else 0.0)
        if module.head.messages is None:
            parameters = [conv.lin.weight, conv.bias, last.weight, last.bias]
        else:
            parameters = [conv.lin_l.weight, conv.lin_l.bias, module.head.messages.weight, last.bias]
            parameters += [conv.lin_r.weight, last.weight]
        start = model.w.data_ptr()
        places = [(p.data_ptr() - start) // p.element_size() for p in parameters]
        # Places of parameters: first weight, bias, last weight, bias; those of a node itself, or -1.
        self._places = tuple([*places, -1, -1][:6])

    def takes(self, inputs: Inputs, options: TrainOptions) -> bool:
        if not isinstance(inputs, Neighbourhood) or inputs.rows is not None:
            return False
        if not isinstance(x := inputs.x_NF, SparseMatrix):
            return False
        near, last = inputs.operators
        most = max(len(x.arrays[1]), len(near.arrays[1]), len(near) * self.classes) * self.hidden
        return in_one_batch(len(last), options) and most < TOO_LARGE

    def dropped_rows(self, inputs: Inputs) -> int:
        assert isinstance(inputs, Neighbourhood)
        return len(inputs.operators[0])

    def train(self, inputs: Inputs, label_T: Tensor, *trained: Any) -> tuple[float, float]:
        assert isinstance(inputs, Neighbourhood)
        assert isinstance(inputs.x_NF, SparseMatrix)
        near, last = inputs.operators
        pairs = [part for m in (inputs.x_NF, near, last) for part in (m.arrays, m.transposed_arrays)]
        losses: tuple[float, float] = _train(*pairs, label_T.numpy(), self._places, self.hidden, self.classes, *trained)
        return losses


def is_small_graph(model: FlatModel) -> bool:
    """Whether a model is a GCN or GraphSAGE on sparse features, on a processor; the last of two layers classifies."""
    module: Any = model.coupled
    if name_of(model.module) not in ("gcn", "sage") or not model.sparse or model.w.device.type != "cpu":
        return False
    return module.conv_head and len(module.convs) == 1 and getattr(module, "jump", None) is None


@numba.njit(cache=True, nogil=True)
def _train(
    x: Csr, x_back: Csr, near: Csr, near_back: Csr, last: Csr, last_back: Csr, label: np.ndarray,
    places: tuple[int, int, int, int, int, int], hidden: int, classes: int, w: np.ndarray, gradient: np.ndarray,
    mean: np.ndarray, square: np.ndarray, kept: np.ndarray, epochs: int, before: int, dropout: float, lr: float,
    weight_decay: float, total: np.ndarray, linear: np.ndarray, origin: np.ndarray, mu: float,
) -> tuple[float, float]:  # fmt: skip
    """See `SmallModel.train`; a matrix comes with its transpose, `places` are those of `SmallGraph`.

    Numba keeps this function compiled, with `adam` and `pull` in it, as long as this file stays as it is: a change of
    the other file is seen with one of this.
    """
    of_messages, of_bias, of_last, of_last_bias, of_own, of_last_own = places
    m, n, t = len(x[0]) - 1, len(near[0]) - 1, len(last[0]) - 1
    size = hidden * (len(x_back[0]) - 1)
    messages, read = np.empty((m, hidden), np.float32), np.empty((n, hidden), np.float32)
    back = np.zeros((m, hidden), np.float32)
    narrow, logits = np.empty((n, classes), np.float32), np.empty((t, classes), np.float32)
    factor = np.float32(1 / (1 - dropout))
    loss = first = math.nan
    # A GCN's node reads itself by messages.
    reads_itself = of_own >= 0
    more = ONE if reads_itself else ZERO
    for epoch in range(epochs):
        _product(x, w[of_messages:], messages, ZERO)
        if reads_itself:
            _product((x[0][: n + 1], x[1], x[2]), w[of_own:], read, ZERO)
        _product(near, messages.reshape(-1), read, more)
        _hidden(read, w[of_bias : of_bias + hidden], kept[epoch] if len(kept) else read[:0], factor)
        _times(read, w[of_last:], narrow)
        if reads_itself:
            _times(read[:t], w[of_last_own:], logits)
        _product(last, narrow.reshape(-1), logits, more)
        logits += w[of_last_bias : of_last_bias + classes]
        loss = cross_entropy(logits, label)
        if not epoch:
            first = loss
        logits *= np.float32(1 / t)
        _product(last_back, logits.reshape(-1), narrow, ZERO)
        _column_sums(logits, gradient[of_last_bias : of_last_bias + classes])
        back[:n] = 0
        _back(narrow, read, w[of_last:], gradient[of_last:], back)
        if reads_itself:
            _back(logits, read, w[of_last_own:], gradient[of_last_own:], back)
        _through(back[:n], read, factor)
        _column_sums(back[:n], gradient[of_bias : of_bias + hidden])
        if reads_itself:
            _product(x_back, back.reshape(-1), gradient[of_own : of_own + size].reshape(-1, hidden), ZERO)
        _product(near_back, back.reshape(-1), messages, ZERO)
        _product(x_back, messages.reshape(-1), gradient[of_messages : of_messages + size].reshape(-1, hidden), ZERO)
        pull(w, gradient, total, linear, origin, mu)
        if len(mean):
            adam(w, gradient, mean, square, before + epoch + 1, lr, weight_decay)
        else:
            sgd(w, gradient, np.float32(lr), np.float32(weight_decay))
    return loss, first


@numba.njit(cache=True, nogil=True)
def _product(matrix: Csr, x: np.ndarray, out: np.ndarray, beta: np.float32) -> None:
    """Computes out = A x + beta out; `x` begins with the other factor, row by row."""
    addresses = np.int64(x.ctypes.data), np.int64(out.ctypes.data)
    multiply(matrix[0], matrix[1], matrix[2], addresses[0], addresses[1], out.shape[1], ONE, beta)


@numba.njit(cache=True, nogil=True, fastmath=FAST)
def _hidden(x: np.ndarray, bias: np.ndarray, kept: np.ndarray, factor: np.float32) -> None:
    """Adds the bias; then ReLU, and dropout where there is any."""
    for n in range(len(x)):
        for h in range(x.shape[1]):
            x[n, h] = max(x[n, h] + bias[h], ZERO)
            if len(kept):
                x[n, h] *= kept[n, h] * factor


@numba.njit(cache=True, nogil=True, fastmath=FAST)
def _times(x: np.ndarray, w: np.ndarray, out: np.ndarray) -> None:
    """Computes out = x W'; `w` begins with W, row by row."""
    width = x.shape[1]
    for n in range(len(out)):
        for c in range(out.shape[1]):
            total = ZERO
            for h in range(width):
                total += x[n, h] * w[c * width + h]
            out[n, c] = total


@numba.njit(cache=True, nogil=True, fastmath=FAST)
def _back(out: np.ndarray, x: np.ndarray, w: np.ndarray, gradient: np.ndarray, back: np.ndarray) -> None:
    """Writes G' x, and adds G W to `back`, where `out` is G."""
    width = x.shape[1]
    gradient[: out.shape[1] * width] = 0
    for n in range(len(out)):
        for c in range(out.shape[1]):
            for h in range(width):
                gradient[c * width + h] += out[n, c] * x[n, h]
                back[n, h] += out[n, c] * w[c * width + h]


@numba.njit(cache=True, nogil=True, fastmath=FAST)
def _through(gradient: np.ndarray, x: np.ndarray, factor: np.float32) -> None:
    """Multiplies the gradient by what ReLU and dropout let through; x is their result."""
    for n in range(len(x)):
        for h in range(x.shape[1]):
            gradient[n, h] = gradient[n, h] * factor if x[n, h] > 0 else ZERO


@numba.njit(cache=True, nogil=True, fastmath=FAST)
def _column_sums(x: np.ndarray, out: np.ndarray) -> None:
    out[:] = 0
    for n in range(len(x)):
        for c in range(x.shape[1]):
            out[c] += x[n, c]
