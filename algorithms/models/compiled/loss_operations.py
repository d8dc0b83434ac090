"""Losses of rows as operations: calls of their kernels by addresses.

The arguments are rows x, their count and width, the memory of their gradient, a sum in float64 that gets f times the
loss, the kernel's factors, float64, and behind those its matrices and vectors, each with its length.
"""

from typing import Any

import numpy as np

from shoal.algorithms.models.compiled import projected_losses, row_losses
from shoal.algorithms.models.compiled.memory import (
    arguments_at,
    doubles_at,
    flags_at,
    integers_at,
    longs_at,
    matrix_at,
    numbers_at,
)


def cross_entropies(pointer: Any, f: float, g: float) -> None:
    at = arguments_at(pointer)
    x, gradient = matrix_at(at[0], at[1], at[2]), matrix_at(at[3], at[1], at[2])
    if at[0] != at[3]:
        gradient[:] = x
    doubles_at(at[4], 1)[0] += f * row_losses.cross_entropy(gradient, longs_at(at[6], at[7]))
    gradient *= np.float32(1 / max(at[1], 1))


def cross_entropies_of_rows(pointer: Any, f: float, g: float) -> None:
    at = arguments_at(pointer)
    x, gradient = matrix_at(at[0], at[1], at[2]), matrix_at(at[3], at[1], at[2])
    label, places = longs_at(at[6], at[7]), longs_at(at[8], at[9])
    some = np.empty((at[7], at[2]), np.float32)
    for n in range(len(places)):
        some[n] = x[places[n]]
    doubles_at(at[4], 1)[0] += f * row_losses.cross_entropy(some, label)
    gradient[:] = 0
    for n in range(len(places)):
        gradient[places[n]] += some[n] / np.float32(at[7])


def squares(pointer: Any, f: float, g: float) -> None:
    at = arguments_at(pointer)
    x, gradient, target = matrix_at(at[0], at[1], at[2]), matrix_at(at[3], at[1], at[2]), matrix_at(at[8], at[9], at[2])
    label, present, weight = longs_at(at[6], at[7]), flags_at(at[10], at[11]), doubles_at(at[5], 1)[0]
    doubles_at(at[4], 1)[0] += f * row_losses.squares(x, label, target, present, weight, gradient)


def contrasts(pointer: Any, f: float, g: float) -> None:
    at = arguments_at(pointer)
    x, gradient, bank = matrix_at(at[0], at[1], at[2]), matrix_at(at[3], at[1], at[2]), matrix_at(at[8], at[9], at[2])
    label, class_of, factors = longs_at(at[6], at[7]), longs_at(at[10], at[11]), doubles_at(at[5], 2)
    loss = row_losses.contrasts(x, label, bank, class_of, factors[0], factors[1], gradient)
    doubles_at(at[4], 1)[0] += f * loss


def divergences(pointer: Any, f: float, g: float) -> None:
    at = arguments_at(pointer)
    x, gradient = matrix_at(at[0], at[1], at[2]), matrix_at(at[3], at[1], at[2])
    teacher, row = matrix_at(at[6], at[7], at[2]), longs_at(at[8], at[9])
    doubles_at(at[4], 1)[0] += f * row_losses.divergences(x, teacher, row, gradient)


def neighbour_divergences(pointer: Any, f: float, g: float) -> None:
    at = arguments_at(pointer)
    x, gradient, taught = matrix_at(at[0], at[1], at[2]), matrix_at(at[3], at[1], at[2]), matrix_at(at[6], at[7], at[2])
    starts, columns = integers_at(at[8], at[9]), integers_at(at[10], at[11])
    values, counts = numbers_at(at[12], at[13]), numbers_at(at[14], at[15])
    loss = row_losses.neighbour_divergences(x, taught, starts, columns, values, counts, gradient)
    doubles_at(at[4], 1)[0] += f * loss


def squares_of_directions(pointer: Any, f: float, g: float) -> None:
    at = arguments_at(pointer)
    x, gradient, target = matrix_at(at[0], at[1], at[2]), matrix_at(at[3], at[1], at[2]), matrix_at(at[6], at[7], at[2])
    doubles_at(at[4], 1)[0] += f * row_losses.squares_of_directions(x, target, gradient)


def squares_of_sums(pointer: Any, f: float, g: float) -> None:
    at = arguments_at(pointer)
    x, gradient = matrix_at(at[0], at[1], at[2]), matrix_at(at[3], at[1], at[2])
    places, starts, columns = longs_at(at[6], at[7]), integers_at(at[8], at[9]), integers_at(at[10], at[11])
    values, target, weight = numbers_at(at[12], at[13]), matrix_at(at[14], at[15], at[2]), numbers_at(at[16], at[17])
    scales = doubles_at(at[5], 1)[0]
    loss = row_losses.squares_of_sums(x, places, starts, columns, values, target, weight, scales, gradient)
    doubles_at(at[4], 1)[0] += f * loss


def softplus_along(pointer: Any, f: float, g: float) -> None:
    at = arguments_at(pointer)
    x, gradient, apart = matrix_at(at[0], at[1], at[2]), matrix_at(at[3], at[1], at[2]), matrix_at(at[6], at[7], at[2])
    doubles_at(at[4], 1)[0] += f * row_losses.softplus_along(x, apart, doubles_at(at[5], 1)[0], gradient)


def squares_to_projected(pointer: Any, f: float, g: float) -> None:
    at = arguments_at(pointer)
    x, gradient, width = matrix_at(at[0], at[1], at[2]), matrix_at(at[3], at[1], at[2]), doubles_at(at[5], 1)[0]
    other, projection = matrix_at(at[6], at[7], int(width)), matrix_at(at[8], at[9], int(width))
    doubles_at(at[4], 1)[0] += f * projected_losses.squares_to_projected(x, other, projection, width, gradient)


def squares_of_projected(pointer: Any, f: float, g: float) -> None:
    at = arguments_at(pointer)
    x, gradient = matrix_at(at[0], at[1], at[2]), matrix_at(at[3], at[1], at[2])
    target, projection = matrix_at(at[6], at[7], at[9]), matrix_at(at[8], at[9], at[2])
    doubles_at(at[4], 1)[0] += f * projected_losses.squares_of_projected(x, target, projection, gradient)


def squares_by_projection(pointer: Any, f: float, g: float) -> None:
    at = arguments_at(pointer)
    x, gradient = matrix_at(at[0], at[1], at[2]), matrix_at(at[3], at[1], at[2])
    other, target = matrix_at(at[6], at[7], at[2]), matrix_at(at[8], at[9], at[1])
    doubles_at(at[4], 1)[0] += f * projected_losses.squares_by_projection(x, other, target, gradient)


def contrasts_by_class(pointer: Any, f: float, g: float) -> None:
    at = arguments_at(pointer)
    x, gradient = matrix_at(at[0], at[1], at[2]), matrix_at(at[3], at[1], at[2])
    places, label, other = longs_at(at[6], at[7]), longs_at(at[8], at[9]), matrix_at(at[10], at[11], at[2])
    class_of, temperature = longs_at(at[12], at[13]), doubles_at(at[5], 1)[0]
    loss = row_losses.contrasts_by_class(x, places, label, other, class_of, temperature, gradient)
    doubles_at(at[4], 1)[0] += f * loss


def likeness_divergences(pointer: Any, f: float, g: float) -> None:
    at = arguments_at(pointer)
    x, gradient, taught = matrix_at(at[0], at[1], at[2]), matrix_at(at[3], at[1], at[2]), matrix_at(at[6], at[7], at[2])
    starts, columns, temperature = integers_at(at[8], at[9]), integers_at(at[10], at[11]), doubles_at(at[5], 1)[0]
    loss = row_losses.likeness_divergences(x, taught, starts, columns, temperature, gradient)
    doubles_at(at[4], 1)[0] += f * loss


def quotient(pointer: Any, f: float, g: float) -> None:
    """Divides a loss and its gradient by a number that is f at least.

    Arguments: the gradient, its numbers, the divisor and behind it the loss, float64, which is zero again, and a sum.
    """
    at = arguments_at(pointer)
    gradient, both = numbers_at(at[0], at[1]), doubles_at(at[2], 2)
    share = 1 / max(both[0], float(f))
    doubles_at(at[3], 1)[0] += share * both[1]
    both[1] = 0.0
    gradient *= np.float32(share)
