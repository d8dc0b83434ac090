"""Losses of rows against constants, each with its gradient in one compiled call on a processor.

Axes: N rows of width H, C classes, B entries of a bank.
"""

import math
from collections.abc import Callable
from typing import Any

import numba
import numpy as np
import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.overrides import handle_torch_function, has_torch_function

from shoal.storage.kernels.exponentials import exp

FAST = {"reassoc", "contract", "nsz"}
ZERO, ONE = np.float32(0), np.float32(1)
# Bits of a float32 but its sign.
SIGN = np.int32(2**31 - 1)
# Lengths up to which a row has no direction.
EPS = 1e-12


def is_compiled(x_NH: Tensor, *constants: Tensor) -> bool:
    """Whether rows are float32 on a processor, the only ones with a gradient, and no function maps over them.

    Constants are matrices as wide as the rows. Compiled code checks no shapes: others are torch's, to refuse or not.
    """
    # Stand-ins of rows, by which a loss is traced, are no tensors.
    if isinstance(x_NH, Tensor) and (
        not x_NH.is_cpu or x_NH.dtype != torch.float32 or torch._C._functorch.is_functorch_wrapped_tensor(x_NH)
    ):
        return False
    return x_NH.dim() == 2 and is_constant(*constants) and all(t.shape[1] == x_NH.shape[1] for t in constants)


def is_constant(*tensors: Tensor) -> bool:
    """Whether all are matrices on a processor without a gradient."""
    return all(t.is_cpu and t.dim() == 2 and not t.requires_grad for t in tensors)


def row_loss(kernel: Callable[..., float], x_NH: Tensor, *constants: Tensor | float) -> Tensor:
    """Computes a scalar; `kernel` takes rows, constants and the memory of the gradient, which it writes."""
    if has_torch_function((x_NH,)):
        loss_of_stand_in: Tensor = handle_torch_function(row_loss, (x_NH,), kernel, x_NH, *constants)
        return loss_of_stand_in
    loss: Tensor = _RowLoss.apply(x_NH, kernel, *constants)
    return loss


class _RowLoss(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x_NH: Tensor, kernel: Callable[..., float], *constants: Tensor | float) -> Tensor:
        arrays = [t.detach().contiguous().numpy() if isinstance(t, Tensor) else t for t in (x_NH, *constants)]
        ctx.gradient_NH = torch.empty(x_NH.shape)
        return torch.tensor(kernel(*arrays, ctx.gradient_NH.numpy()), dtype=torch.float32)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Any, ...]:
        return ctx.gradient_NH * gradients[0], *[None] * (len(ctx.needs_input_grad) - 1)


@numba.njit(cache=True, nogil=True, fastmath=FAST)
def squares(
    x: np.ndarray, label: np.ndarray, target: np.ndarray, present: np.ndarray, weight: float, gradient: np.ndarray
) -> float:
    """Computes weight / H * mean of |x_n - t_{y_n}|^2 over the rows whose class is present, 0 without any.

    An IndexError for a label that is no class, but -1.
    """
    rows, width = x.shape
    count, total = 0, 0.0
    for n in range(rows):
        if label[n] >= min(len(target), len(present)):
            raise IndexError("expected labels below the number of targets")
        count += label[n] >= 0 and present[label[n]]
    scale = np.float32(2 * weight / (width * max(count, 1)))
    for n in range(rows):
        if label[n] < 0 or not present[label[n]]:
            gradient[n, :] = ZERO
            continue
        row, of_class, square = x[n], target[label[n]], np.float32(0)
        for h in range(width):
            apart = row[h] - of_class[h]
            square += apart * apart
            gradient[n, h] = scale * apart
        total += float(square)
    return weight * total / (width * max(count, 1))


@numba.njit(cache=True, nogil=True, fastmath=FAST)
def contrasts(
    x: np.ndarray, label: np.ndarray, bank: np.ndarray, class_of: np.ndarray, temperature: float, margin: float,
    gradient: np.ndarray,
) -> float:  # fmt: skip
    """Computes `prototype_losses.contrast` of rows with a bank of constants."""
    (rows, width), entries = x.shape, len(bank)
    direction, score = np.empty(bank.shape, np.float32), np.empty(entries, np.float64)
    share, of_row = np.empty(entries, np.float32), np.empty(width, np.float32)
    for b in range(entries):
        _unit(bank[b], direction[b])
    usable, total = 0, 0.0
    for n in range(rows):
        gradient[n, :] = ZERO
        same = 0
        for b in range(entries):
            same += class_of[b] == label[n]
        if same == 0 or same == entries:
            continue
        usable += 1
        length = _unit(x[n], of_row)
        highest = -math.inf
        for b in range(entries):
            cosine = ZERO
            for h in range(width):
                cosine += of_row[h] * direction[b, h]
            score[b] = (cosine - (margin if class_of[b] == label[n] else 0.0)) / temperature
            share[b] = cosine
            highest = max(highest, score[b])
        mass, positive, most = 0.0, 0.0, -math.inf
        for b in range(entries):
            mass += math.exp(score[b] - highest)
            if class_of[b] == label[n]:
                most = max(most, score[b])
        for b in range(entries):
            if class_of[b] == label[n]:
                positive += math.exp(score[b] - most)
        total += highest + math.log(mass) - most - math.log(positive)
        # The gradient of a cosine is what of the entry's direction is not along the row, over the row's length.
        along = 0.0
        for b in range(entries):
            g = math.exp(score[b] - highest) / mass
            if class_of[b] == label[n]:
                g -= math.exp(score[b] - most) / positive
            along += g * share[b]
            share[b] = np.float32(g)
        scale = np.float32(1 / (temperature * length))
        for b in range(entries):
            for h in range(width):
                gradient[n, h] += scale * share[b] * direction[b, h]
        for h in range(width):
            gradient[n, h] -= scale * np.float32(along) * of_row[h]
    if usable:
        for n in range(rows):
            for h in range(width):
                gradient[n, h] /= np.float32(usable)
    return total / max(usable, 1)


@numba.njit(cache=True, nogil=True, fastmath={"contract"})
def divergences(x: np.ndarray, teacher: np.ndarray, row: np.ndarray, gradient: np.ndarray) -> float:
    """Averages KL(softmax(t_r) || softmax(x_n)) over rows, r the row of the teacher; without one, -1, there is none.

    An IndexError for a row that the teacher has not.
    """
    rows, width = x.shape
    count, total = 0, 0.0
    for n in range(rows):
        if row[n] >= len(teacher):
            raise IndexError("expected rows below those of the teacher")
        count += row[n] >= 0
    share = np.float32(1 / max(count, 1))
    probability = np.empty(width, np.float32)
    for n in range(rows):
        if row[n] < 0:
            gradient[n, :] = ZERO
            continue
        taught = teacher[row[n]]
        log_mass, log_teacher = _softmax(x[n], gradient[n]), _softmax(taught, probability)
        for h in range(width):
            total += probability[h] * ((taught[h] - log_teacher) - (x[n, h] - log_mass))
            gradient[n, h] = share * (gradient[n, h] - probability[h])
    return total / max(count, 1)


@numba.njit(cache=True, nogil=True, fastmath=FAST)
def squares_of_sums(
    x: np.ndarray, places: np.ndarray, starts: np.ndarray, columns: np.ndarray, values: np.ndarray, target: np.ndarray,
    weight: np.ndarray, scales: float, gradient: np.ndarray,
) -> float:  # fmt: skip
    """Computes sum_k w_k |sum_r S_kr z_r - t_k|^2, z_r the row of x at a place, of length one if it `scales`.

    S is a CSR matrix `[K, R]`. An IndexError for a place that is no row.
    """
    width, total, apart = x.shape[1], 0.0, np.empty(x.shape[1], np.float32)
    z, of_z = np.empty((len(places), width), np.float32), np.zeros((len(places), width), np.float32)
    lengths = np.empty(len(places), np.float32)
    for r in range(len(places)):
        if not 0 <= places[r] < len(x):
            raise IndexError("expected places below the number of rows")
        if scales:
            lengths[r] = np.float32(_unit(x[places[r]], z[r]))
        else:
            z[r] = x[places[r]]
    for k in range(len(weight)):
        square = ZERO
        for h in range(width):
            apart[h] = -target[k, h]
        for entry in range(starts[k], starts[k + 1]):
            row = z[columns[entry]]
            for h in range(width):
                apart[h] += values[entry] * row[h]
        for h in range(width):
            square += apart[h] * apart[h]
        total += float(weight[k]) * float(square)
        for entry in range(starts[k], starts[k + 1]):
            of_row, factor = of_z[columns[entry]], 2 * weight[k] * values[entry]
            for h in range(width):
                of_row[h] += factor * apart[h]
    gradient[:] = ZERO
    for r in range(len(places)):
        of_place, of_row, row, along, length = gradient[places[r]], of_z[r], z[r], ZERO, np.float32(1)
        if scales:
            length = lengths[r]
            for h in range(width):
                along += of_row[h] * row[h]
        for h in range(width):
            of_place[h] += (of_row[h] - along * row[h]) / length
    return total


@numba.njit(cache=True, nogil=True, fastmath=FAST)
def softplus_along(x: np.ndarray, direction: np.ndarray, temperature: float, gradient: np.ndarray) -> float:
    """Averages log(1 + exp(<x_n / |x_n|, d_n> / temperature)) over rows."""
    rows, width = x.shape
    total, unit = 0.0, np.empty(width, np.float32)
    for n in range(rows):
        length, along, of_row = _unit(x[n], unit), ZERO, direction[n]
        for h in range(width):
            along += unit[h] * of_row[h]
        score = float(along) / temperature
        total += max(score, 0.0) + math.log1p(math.exp(-abs(score)))
        scale = np.float32(1 / ((1 + math.exp(-score)) * temperature * rows * length))
        for h in range(width):
            gradient[n, h] = scale * (of_row[h] - along * unit[h])
    return total / max(rows, 1)


@numba.njit(cache=True, nogil=True, fastmath=FAST)
def squares_of_directions(x: np.ndarray, target: np.ndarray, gradient: np.ndarray) -> float:
    """Averages |x_n / |x_n| - t_n / |t_n||^2 over rows."""
    (rows, width), total = x.shape, 0.0
    direction, of_target = np.empty(width, np.float32), np.empty(width, np.float32)
    for n in range(rows):
        length, _ = _unit(x[n], direction), _unit(target[n], of_target)
        square, along = ZERO, ZERO
        for h in range(width):
            apart = direction[h] - of_target[h]
            square += apart * apart
            along += apart * direction[h]
            gradient[n, h] = apart
        total += float(square)
        scale = np.float32(2 / (rows * length))
        for h in range(width):
            gradient[n, h] = scale * (gradient[n, h] - along * direction[h])
    return total / max(rows, 1)


@numba.njit(cache=True, nogil=True, fastmath=FAST)
def neighbour_divergences(
    x: np.ndarray, teacher: np.ndarray, starts: np.ndarray, columns: np.ndarray, values: np.ndarray, counts: np.ndarray,
    gradient: np.ndarray,
) -> float:  # fmt: skip
    """Averages sum_j a_nj KL(softmax(t_j) || softmax(x_n)) / c_n over rows, A being a CSR matrix plus one of loops."""
    (rows, width), total = x.shape, 0.0
    share, minus_entropy, sums = teacher.copy(), np.empty(rows, np.float32), np.empty(width, np.float32)
    for n in range(rows):
        log_mass, minus = _softmax_of(share[n]), ZERO
        for h in range(width):
            minus += share[n, h] * (teacher[n, h] - log_mass)
        minus_entropy[n] = minus
    for n in range(rows):
        sums[:] = share[n]
        minus, mass, crossed = minus_entropy[n], ZERO, ZERO
        for entry in range(starts[n], starts[n + 1]):
            value, sent = values[entry], share[columns[entry]]
            minus += value * minus_entropy[columns[entry]]
            for h in range(width):
                sums[h] += value * sent[h]
        gradient[n] = x[n]
        log_mass = _softmax_of(gradient[n])
        for h in range(width):
            mass += sums[h]
            crossed += sums[h] * (x[n, h] - log_mass)
        total += float(minus - crossed) / counts[n]
        scale = np.float32(1 / (rows * counts[n]))
        for h in range(width):
            gradient[n, h] = scale * (mass * gradient[n, h] - sums[h])
    return total / max(rows, 1)


@numba.njit(cache=True, nogil=True, fastmath=FAST)
def contrasts_by_class(
    x: np.ndarray, places: np.ndarray, label: np.ndarray, other: np.ndarray, class_of: np.ndarray, temperature: float,
    gradient: np.ndarray,
) -> float:  # fmt: skip
    """Computes `prototype_losses.contrast_by_class` of some rows.

    An IndexError for a place that is no row.
    """
    entries, width = other.shape
    direction, of_row = np.empty(other.shape, np.float32), np.empty(width, np.float32)
    score, share = np.empty(entries, np.float64), np.empty(entries, np.float32)
    usable, total = 0, 0.0
    gradient[:] = ZERO
    for b in range(entries):
        _unit(other[b], direction[b])
    for q in range(len(places)):
        if not 0 <= places[q] < len(x):
            raise IndexError("expected places below the number of rows")
        same, highest, mass = 0, -math.inf, 0.0
        for b in range(entries):
            same += class_of[b] == label[q]
        if same == entries:
            continue
        usable += 1
        length = _unit(x[places[q]], of_row)
        for b in range(entries):
            cosine = ZERO
            for h in range(width):
                cosine += of_row[h] * direction[b, h]
            score[b] = cosine / temperature
            if class_of[b] != label[q]:
                highest = max(highest, score[b])
        for b in range(entries):
            if class_of[b] != label[q]:
                mass += math.exp(score[b] - highest)
        negative, passed, along = highest + math.log(mass), 0.0, 0.0
        for b in range(entries):
            if class_of[b] == label[q]:
                apart = negative - score[b]
                total += (max(apart, 0.0) + math.log1p(math.exp(-abs(apart)))) / same
                g = 1 / (same * (1 + math.exp(-apart)))
                passed += g
                share[b] = np.float32(-g)
        for b in range(entries):
            if class_of[b] != label[q]:
                share[b] = np.float32(passed * math.exp(score[b] - negative))
            along += share[b] * score[b] * temperature
        scale, of_query = np.float32(1 / (temperature * length)), gradient[places[q]]
        for b in range(entries):
            factor = scale * share[b]
            for h in range(width):
                of_query[h] += factor * direction[b, h]
        for h in range(width):
            of_query[h] -= scale * np.float32(along) * of_row[h]
    gradient /= np.float32(max(usable, 1))
    return total / max(usable, 1)


@numba.njit(cache=True, nogil=True, fastmath=FAST)
def likeness_divergences(
    y: np.ndarray, teacher: np.ndarray, starts: np.ndarray, columns: np.ndarray, temperature: float,
    gradient: np.ndarray,
) -> float:  # fmt: skip
    """Averages KL(q_n || p_n) over rows with neighbours, p_n the softmax over these of cosines over the temperature."""
    direction, taught = np.empty_like(y), np.empty_like(y)
    length, most = _directions(y, direction), np.diff(starts).max()
    _directions(teacher, taught)
    p, q = np.empty(most, np.float32), np.empty(most, np.float32)
    count, total = 0, 0.0
    gradient[:] = 0
    for n in range(len(y)):
        near = columns[starts[n] : starts[n + 1]]
        if not len(near):
            continue
        count += 1
        log_p, log_q = _shares(direction, n, near, temperature, p), _shares(taught, n, near, temperature, q)
        for place in range(len(near)):
            cosines = ZERO
            for c in range(y.shape[1]):
                cosines += taught[n, c] * taught[near[place], c] - direction[n, c] * direction[near[place], c]
            total += q[place] * (cosines / temperature - log_q + log_p)
            weight = np.float32((p[place] - q[place]) / temperature)
            for c in range(y.shape[1]):
                gradient[n, c] += weight * direction[near[place], c]
                gradient[near[place], c] += weight * direction[n, c]
    for n in range(len(y)):
        # What is along a row does not turn it; a row without a direction has no gradient.
        along = ZERO
        for c in range(y.shape[1]):
            along += gradient[n, c] * direction[n, c]
        for c in range(y.shape[1]):
            gradient[n, c] = (gradient[n, c] - along * direction[n, c]) / (length[n] * np.float32(count))
    return total / count


@numba.njit(cache=True, nogil=True, fastmath={"reassoc", "contract"})
def _directions(x: np.ndarray, out: np.ndarray) -> np.ndarray:
    """Writes rows of length one; returns lengths, infinite for rows without a direction, which become zero."""
    length = np.empty(len(x), np.float32)
    for n in range(len(x)):
        length[n] = np.sqrt((x[n] * x[n]).sum())
        if length[n] <= EPS:
            length[n] = np.inf
        out[n] = x[n] / length[n]
    return length


@numba.njit(cache=True, nogil=True, fastmath=FAST)
def _shares(direction: np.ndarray, n: int, near: np.ndarray, temperature: float, out: np.ndarray) -> float:
    """Writes the softmax of a row's cosines with those near it; returns the logarithm of the sum of exponentials."""
    highest = np.float32(-2)
    for place in range(len(near)):
        cosine = ZERO
        for c in range(direction.shape[1]):
            cosine += direction[n, c] * direction[near[place], c]
        out[place] = cosine
        highest = max(highest, cosine)
    total, scale = ZERO, np.float32(1 / temperature)
    for place in range(len(near)):
        out[place] = exp((out[place] - highest) * scale)
        total += out[place]
    for place in range(len(near)):
        out[place] /= total
    return float(highest) / temperature + math.log(total)


@numba.njit(cache=True, nogil=True, fastmath={"contract"})
def _softmax_of(row: np.ndarray) -> np.float32:
    """Replaces a row by its softmax, and returns the logarithm of the sum of its exponentials."""
    highest = find_maximum(row)
    mass = exponentiate(row, highest)
    for h in range(len(row)):
        row[h] /= mass
    return np.float32(highest + math.log(mass))


@numba.njit(cache=True, nogil=True, fastmath={"contract"})
def _softmax(x: np.ndarray, out: np.ndarray) -> float:
    """Writes the softmax of a row, and returns the logarithm of the sum of exponentials."""
    highest = x[0]
    for h in range(len(x)):
        highest = max(highest, x[h])
    mass = ZERO
    for h in range(len(x)):
        out[h] = exp(x[h] - highest)
        mass += out[h]
    for h in range(len(x)):
        out[h] /= mass
    return float(highest) + math.log(mass)


@numba.njit(cache=True, nogil=True, fastmath=FAST)
def _unit(x: np.ndarray, out: np.ndarray) -> float:
    """Writes the direction of a row, zeros for one without, and returns its length, infinite for that one."""
    length = math.sqrt(sum_squares(x))
    if length <= EPS:
        length = math.inf
    for h in range(len(x)):
        out[h] = x[h] * np.float32(1 / length)
    return length


@numba.njit(cache=True, nogil=True, fastmath=FAST)
def sum_squares(x: np.ndarray) -> np.float32:
    """Sums the squares of a row."""
    square = ZERO
    for h in range(len(x)):
        square += x[h] * x[h]
    return square


@numba.njit(cache=True, nogil=True, fastmath=False)
def cross_entropy(logits: np.ndarray, label: np.ndarray) -> float:
    """Replaces logits by softmax - one-hot, N times the gradient of the mean cross-entropy, which it returns.

    Logits are float32 `[N, C]`, labels int64 `[N]`, an IndexError if not of a class. A row without a finite maximum, as
    of NaN, has NaN for both.
    """
    rows, classes = logits.shape
    total = 0.0
    for n in range(rows):
        row, true_class = logits[n], label[n]
        if not 0 <= true_class < classes:
            raise IndexError("expected labels below the number of logits")
        highest = find_maximum(row)
        of_label = row[true_class] - highest
        mass = exponentiate(row, highest)
        scale = np.float32(1) / mass
        for c in range(classes):
            row[c] *= scale
        row[true_class] -= np.float32(1)
        total += math.log(mass) - of_label
    return total / rows if rows else math.nan


@numba.njit(cache=True, nogil=True, fastmath=False)
def find_maximum(row: np.ndarray) -> np.float32:
    """Finds the maximum by integers in the order of floats, of which LLVM makes vector code."""
    highest = np.int32(-(2**31))
    for c in range(len(row)):
        bits = np.float32(row[c]).view(np.int32)
        highest = max(highest, np.int32(bits ^ ((bits >> np.int32(31)) & SIGN)))
    return np.int32(highest ^ ((highest >> np.int32(31)) & SIGN)).view(np.float32)


@numba.njit(cache=True, nogil=True, fastmath={"reassoc", "contract", "nsz"})
def exponentiate(row: np.ndarray, highest: np.float32) -> np.float32:
    """Replaces a row by exp(row - highest); returns their sum."""
    total = np.float32(0)
    for c in range(len(row)):
        row[c] = exp(row[c] - highest)
        total += row[c]
    return total
