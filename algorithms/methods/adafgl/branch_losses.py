"""The loss of AdaFGL's branches, see `adafgl.AdaFGL`.

Axes: N nodes, R training rows, C classes.
"""

from collections.abc import Sequence
from typing import Any

import numba
import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

from shoal.algorithms.models.compiled.row_losses import cross_entropy, is_compiled
from shoal.storage.kernels.exponentials import exp

ZERO = np.float32(0)


def loss_of_branches(
    homo_NC: Tensor, others_RC: Sequence[Tensor], rows: Tensor, label_R: Tensor, p_NC: Tensor, preserve: float
) -> Tensor:
    """Computes CE(homo) + CE(other) of each other branch + preserve MSE(softmax(homo), P), a scalar.

    Other branches have the training rows alone. On a processor one compiled call computes it with its gradient.
    """
    if all(map(is_compiled, (homo_NC, *others_RC))):
        in_one_call: Tensor = _LossOfBranches.apply(homo_NC, *others_RC, rows, label_R, p_NC, preserve)
        return in_one_call
    loss = torch.stack([F.cross_entropy(x, label_R) for x in (homo_NC[rows], *others_RC)]).sum()
    return loss + preserve * F.mse_loss(homo_NC.softmax(1), p_NC) if preserve else loss


class _LossOfBranches(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, *tensors: Any) -> Tensor:
        *branches, rows, label_R, p_NC, preserve = tensors
        ctx.gradients = [torch.empty(x.shape) for x in branches]
        homo, *others = (x.detach().contiguous().numpy() for x in branches)
        of_homo, *of_others = (gradient.numpy() for gradient in ctx.gradients)
        label = label_R.numpy()
        loss = _of_homophilous(homo, rows.numpy(), label, p_NC.contiguous().numpy(), preserve, of_homo)
        for x, gradient in zip(others, of_others):
            loss += _of_rows(x, label, gradient)
        return torch.tensor(loss, dtype=torch.float32)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Any, ...]:
        return *torch._foreach_mul(ctx.gradients, gradients[0]), None, None, None, None


@numba.njit(cache=True, nogil=True, fastmath=False)
def _of_rows(x: np.ndarray, label: np.ndarray, gradient: np.ndarray) -> float:
    """Computes the mean cross-entropy of rows, and its gradient."""
    gradient[:] = x
    loss: float = cross_entropy(gradient, label)
    gradient /= np.float32(len(x))
    return loss


@numba.njit(cache=True, nogil=True, fastmath=False)
def _of_homophilous(
    x: np.ndarray, rows: np.ndarray, label: np.ndarray, p: np.ndarray, preserve: float, gradient: np.ndarray
) -> float:
    """Computes the cross-entropy of some rows and the distance of all to P, and the gradient of both."""
    loss = preserve * _distance(x, p, np.float32(2 * preserve / x.size), gradient) / x.size if preserve else 0.0
    if not preserve:
        gradient[:] = 0
    some = np.empty((len(rows), x.shape[1]), np.float32)
    for place in range(len(rows)):
        some[place] = x[rows[place]]
    loss += cross_entropy(some, label)
    for place in range(len(rows)):
        gradient[rows[place]] += some[place] / np.float32(len(rows))
    return loss


@numba.njit(cache=True, nogil=True, fastmath={"reassoc", "contract", "nsz"})
def _distance(x: np.ndarray, p: np.ndarray, weight: np.float32, gradient: np.ndarray) -> float:
    """Sums the squares of softmax(x) - p; writes half of its gradient, so many times."""
    total = 0.0
    for n in range(len(x)):
        row, of_row, highest, mass, square, along = x[n], gradient[n], x[n, 0], ZERO, ZERO, ZERO
        for c in range(len(row)):
            highest = max(highest, row[c])
        for c in range(len(row)):
            of_row[c] = exp(row[c] - highest)
            mass += of_row[c]
        for c in range(len(row)):
            of_row[c] /= mass
            apart = of_row[c] - p[n, c]
            square += apart * apart
            along += of_row[c] * apart
        for c in range(len(row)):
            of_row[c] *= weight * (of_row[c] - p[n, c] - along)
        total += float(square)
    return total
