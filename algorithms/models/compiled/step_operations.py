"""Steps of optimizers in compiled code, on all P parameters of a model, and as operations."""

import math
from typing import Any

import numba
import numpy as np

from shoal.algorithms.models.compiled.memory import arguments_at, doubles_at, numbers_at

FAST = {"reassoc", "contract", "nsz"}
# Constants of Adam, as torch has them by default.
BETA1, BETA2, EPS = 0.9, 0.999, 1e-8


@numba.njit(cache=True, nogil=True, fastmath=FAST)
def pull(
    w: np.ndarray, gradient: np.ndarray, total: np.ndarray, linear: np.ndarray, origin: np.ndarray, mu: float
) -> None:
    """Computes `Pull.apply`; an empty array stands for None."""
    for i in range(len(total)):
        total[i] += gradient[i]
    for i in range(len(linear)):
        gradient[i] += linear[i]
    to_origin = np.float32(mu)
    for i in range(len(origin)):
        gradient[i] += to_origin * (w[i] - origin[i])


@numba.njit(cache=True, nogil=True, fastmath=FAST)
def sgd(w: np.ndarray, gradient: np.ndarray, lr: np.float32, weight_decay: np.float32) -> None:
    for i in range(len(w)):
        w[i] -= lr * (gradient[i] + weight_decay * w[i])


# Divisions that raise nothing become vector code.
@numba.njit(cache=True, nogil=True, fastmath=FAST, error_model="numpy")
def adam(
    w: np.ndarray, gradient: np.ndarray, mean: np.ndarray, square: np.ndarray, step: int, lr: float, weight_decay: float
) -> None:
    """Takes step `step`, from 1, of Adam with the decay in the gradient (Kingma and Ba, 2015, algorithm 1)."""
    # Differences in float64, as torch has them: in float32 1 - beta2, and so every square, is off by 1.3e-5.
    of_mean, of_square = np.float32(1 - BETA1), np.float32(1 - BETA2)
    beta2, decay = np.float32(BETA2), np.float32(weight_decay)
    rate = np.float32(lr / (1 - BETA1**step))
    root, eps = np.float32(math.sqrt(1 - BETA2**step)), np.float32(EPS)
    for i in range(len(w)):
        change = gradient[i] + decay * w[i]
        mean[i] += of_mean * (change - mean[i])
        square[i] = beta2 * square[i] + of_square * change * change
        w[i] -= rate * mean[i] / (math.sqrt(square[i]) / root + eps)


def pull_step(pointer: Any, f: float, g: float) -> None:
    """Pulls a gradient with the strength f.

    Arguments: w, gradient, P, total, its length, linear, its length, origin, its length.
    """
    at = arguments_at(pointer)
    w, gradient = numbers_at(at[0], at[2]), numbers_at(at[1], at[2])
    pull(w, gradient, numbers_at(at[3], at[4]), numbers_at(at[5], at[6]), numbers_at(at[7], at[8]), f)


def sgd_step(pointer: Any, f: float, g: float) -> None:
    """Takes a step of rate f and decay g; arguments: w, gradient, P."""
    at = arguments_at(pointer)
    sgd(numbers_at(at[0], at[2]), numbers_at(at[1], at[2]), f, g)


def adam_step(pointer: Any, f: float, g: float) -> None:
    """Takes a step of Adam; arguments: w, gradient, P, both moments, and in float64 the steps before, rate, decay."""
    at = arguments_at(pointer)
    w, gradient, mean, square = (
        numbers_at(at[0], at[2]),
        numbers_at(at[1], at[2]),
        numbers_at(at[3], at[2]),
        numbers_at(at[4], at[2]),
    )
    options = doubles_at(at[5], 3)
    options[0] += 1
    adam(w, gradient, mean, square, int(options[0]), options[1], options[2])
