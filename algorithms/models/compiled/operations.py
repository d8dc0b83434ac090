"""The operations that passes of models are made of, and the loop that runs a list of them.

Matrices are float32 and C-contiguous, given by their addresses. An operation is a line of codes: what it does, and its
arguments, of which addresses count from one of several places, so that the same list serves any memory (`Base`).
"""

import math
from enum import Enum, IntEnum, auto
from functools import cache
from typing import Any

import numba
import numpy as np
from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from shoal.algorithms.models.compiled import attention_operations, hop_operations, loss_operations, step_operations
from shoal.algorithms.models.compiled.memory import (
    ARGUMENTS,
    ONE,
    ZERO,
    arguments_at,
    integers_at,
    longs_at,
    matrix_at,
    numbers_at,
    shorts_at,
)
from shoal.storage.kernels.dense_product import multiply_dense
from shoal.storage.kernels.sparse_product import multiply

FAST = {"reassoc", "contract", "nsz"}


class Base(IntEnum):
    """The memory that an argument counts from; nowhere: a number.

    Behind these lie the bases of the inputs' arrays, `ARRAYS` of each: row starts, columns and values of a sparse
    matrix, then those of its transpose; or the values of a dense one.
    """

    NOWHERE = 0
    WEIGHTS = 1
    GRADIENTS = 2
    WORK = 3
    KEPT = 4
    LOGITS = 5
    EMBEDDING = 6
    OF_LOGITS = 7
    OF_EMBEDDING = 8
    # Is never given.
    OF_NOTHING = 9


class Code(Enum):
    """Operations, with their arguments and what they do; `f` and `g` are two factors."""

    SPARSE = auto()  # row starts, columns, values, rows, x, out, width: out = f A x + g out
    SPARSE_ONES = auto()  # the same, where all entries are 1
    DENSE = auto()  # a, a_row, a_step, b, b_row, out, out_row, rows, depth, columns: out = a b + g out
    TRANSPOSE = auto()  # x, out, rows, width: out = x' + g out
    BIAS = auto()  # out, bias, rows, width: out = out + bias
    RELU = auto()  # out, numbers: out = max(out, 0)
    THROUGH = auto()  # gradient, x, numbers: the gradient where x > 0, else 0
    MASK = auto()  # out, draws, numbers: out = f out where draws are at least g, else 0 out
    SUMS = auto()  # x, out, rows, width: out = sums of the columns + g out
    MIX = auto()  # x, out, numbers: out = f x + g out
    SCALED = auto()  # x, factor, out, numbers: out = f factor x + g out, of a factor in memory
    DOT = auto()  # x, y, out, numbers: out = f <x, y> + g out
    ZERO = auto()  # out, numbers: out = 0
    # x, weight, bias, out, moments, rows, width: out = weight (x - mean) / deviation + bias; f is epsilon
    NORM = auto()
    LEAKY = auto()  # out, numbers: out = out where it is above 0, else f out
    THROUGH_LEAKY = auto()  # gradient, x, numbers: the gradient where x > 0, else f times it
    PRELU = auto()  # x, slope, out, numbers: out = x where it is above 0, else slope x
    THROUGH_PRELU = auto()  # gradient, x, slope, of_slope, numbers: the gradient of PRELU, in place; g of the slope
    COLUMNS = auto()  # x, x_row, out, out_row, rows, width: out = f x + g out, in matrices of x_row and out_row columns
    SCALE_ROWS = auto()  # x, factors, out, rows, width: every row of out = factor x + g out
    GATHER = auto()  # x, rows, out, count, width: out = some rows of x
    SCATTER = auto()  # x, rows, out, count, width: adds x to some rows of out
    ATTEND = auto()  # see `attention_operations.attend`
    UNATTEND = auto()  # its way back
    ATTEND_PRODUCTS = auto()  # see `attention_operations.attend_products`
    UNATTEND_PRODUCTS = auto()  # its way back
    WEIGH = auto()  # see `hop_operations.weigh`
    UNWEIGH = auto()  # its way back
    # gradient, x, weight, moments, out, of_weight, of_bias, rows, width: gradients of NORM; g of parameters
    UNNORM = auto()
    # Losses of rows, see `loss_operations`; f is their weight.
    CROSS_ENTROPIES = auto()
    CROSS_ENTROPIES_OF_ROWS = auto()
    SQUARES = auto()
    CONTRASTS = auto()
    DIVERGENCES = auto()
    NEIGHBOUR_DIVERGENCES = auto()
    SQUARES_OF_DIRECTIONS = auto()
    CONTRASTS_BY_CLASS = auto()
    LIKENESS_DIVERGENCES = auto()
    SQUARES_OF_SUMS = auto()
    SOFTPLUS_ALONG = auto()
    SQUARES_TO_PROJECTED = auto()
    SQUARES_OF_PROJECTED = auto()
    SQUARES_BY_PROJECTION = auto()
    QUOTIENT = auto()  # see `loss_operations.quotient`
    # Steps of optimizers, see `step_operations`.
    PULL = auto()
    SGD = auto()
    ADAM = auto()


ARRAYS = 6


@intrinsic
def _call(context: Any, function: Any, at: Any, f: Any, g: Any) -> Any:
    """Calls a compiled operation by its address."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        function, at, f, g = args
        form = ir.FunctionType(ir.VoidType(), [ir.IntType(64).as_pointer(), ir.FloatType(), ir.FloatType()])
        pointers = builder.inttoptr(function, form.as_pointer()), builder.inttoptr(at, form.args[0])
        builder.call(pointers[0], [pointers[1], f, g])
        return context.get_dummy_value()

    return types.void(types.int64, types.int64, types.float32, types.float32), generate


@numba.njit(cache=True, nogil=True)
def execute(
    functions: np.ndarray, arguments: np.ndarray, bases_of: np.ndarray, factors: np.ndarray, bases: np.ndarray
) -> None:
    """Runs operations one after another.

    Args:
        functions: Addresses of what they do, int64 `[O]`, see `address_of`.
        arguments: `[O, ARGUMENTS]`, int64; addresses count in bytes from a base, whose number is in `bases_of`, int16.
        factors: f and g, float32 `[O, 2]`.
        bases: Addresses of the bases, int64, 0 for `Base.NOWHERE`, and for memory that does not exist.
    """
    at = np.empty(ARGUMENTS, np.int64)
    for line in range(len(functions)):
        for place in range(ARGUMENTS):
            base = bases_of[line, place]
            exists = bases[base] != 0 or base == 0
            at[place] = arguments[line, place] + bases[base] if exists else 0
        _call(functions[line], at.ctypes.data, factors[line, 0], factors[line, 1])


@cache
def address_of(code: Code) -> int:
    """Returns the address of an operation, which is compiled when it is first asked for."""
    signature = types.void(types.CPointer(types.int64), types.float32, types.float32)
    # Functions that an operation calls take over how it computes, unless they say so themselves.
    function, fastmath = (_LOOPS[code], FAST) if code in _LOOPS else (_OF_KERNELS[code], False)
    compiled = numba.cfunc(signature, cache=True, nopython=True, fastmath=fastmath)(function)
    _COMPILED.append(compiled)
    return int(compiled.address)


# Code stays where it is as long as its object.
_COMPILED: list[Any] = []


def _sparse(pointer: Any, f: float, g: float) -> None:
    at = arguments_at(pointer)
    multiply(integers_at(at[0], at[3] + 1), integers_at(at[1], 0), numbers_at(at[2], 0), at[4], at[5], at[6], f, g)


def _sparse_ones(pointer: Any, f: float, g: float) -> None:
    at = arguments_at(pointer)
    multiply(integers_at(at[0], at[3] + 1), integers_at(at[1], 0), None, at[4], at[5], at[6], f, g)


def _dense(pointer: Any, f: float, g: float) -> None:
    at = arguments_at(pointer)
    multiply_dense(at[0], at[1], at[2], at[3], at[4], at[5], at[6], at[7], at[8], at[9], g)


def _transpose(pointer: Any, f: float, g: float) -> None:
    at = arguments_at(pointer)
    rows, width = at[2], at[3]
    x, out = matrix_at(at[0], rows, width), matrix_at(at[1], width, rows)
    for h in range(width):
        for n in range(rows):
            out[h, n] = x[n, h] if g == ZERO else x[n, h] + g * out[h, n]


def _bias(pointer: Any, f: float, g: float) -> None:
    at = arguments_at(pointer)
    rows, width = at[2], at[3]
    out, bias = numbers_at(at[0], rows * width), numbers_at(at[1], width)
    for n in range(rows):
        row = n * width
        for h in range(width):
            out[row + h] += bias[h]


def _relu(pointer: Any, f: float, g: float) -> None:
    at = arguments_at(pointer)
    out = numbers_at(at[0], at[1])
    for i in range(len(out)):
        # NaN stays NaN.
        out[i] = ZERO if out[i] <= ZERO else out[i]


def _through(pointer: Any, f: float, g: float) -> None:
    at = arguments_at(pointer)
    gradient, x = numbers_at(at[0], at[2]), numbers_at(at[1], at[2])
    for i in range(at[2]):
        gradient[i] = ZERO if x[i] <= ZERO else gradient[i]


def _mask(pointer: Any, f: float, g: float) -> None:
    at = arguments_at(pointer)
    out, drawn, least = numbers_at(at[0], at[2]), shorts_at(at[1], at[2]), np.int16(g)
    for i in range(len(out)):
        out[i] *= f if drawn[i] >= least else ZERO


def _sums(pointer: Any, f: float, g: float) -> None:
    at = arguments_at(pointer)
    rows, width = at[2], at[3]
    x, out = numbers_at(at[0], rows * width), numbers_at(at[1], width)
    for h in range(width):
        out[h] = ZERO if g == ZERO else g * out[h]
    for n in range(rows):
        row = n * width
        for h in range(width):
            out[h] += x[row + h]


def _mix(pointer: Any, f: float, g: float) -> None:
    at = arguments_at(pointer)
    _add(at[0], at[1], at[2], f, g)


def _scaled(pointer: Any, f: float, g: float) -> None:
    at = arguments_at(pointer)
    _add(at[0], at[2], at[3], f * numbers_at(at[1], 1)[0], g)


def _dot(pointer: Any, f: float, g: float) -> None:
    at = arguments_at(pointer)
    x, y, out, total = numbers_at(at[0], at[3]), numbers_at(at[1], at[3]), numbers_at(at[2], 1), ZERO
    for i in range(at[3]):
        total += x[i] * y[i]
    out[0] = f * total if g == ZERO else f * total + g * out[0]


def _zero(pointer: Any, f: float, g: float) -> None:
    at = arguments_at(pointer)
    out = numbers_at(at[0], at[1])
    for i in range(at[1]):
        out[i] = ZERO


def _norm(pointer: Any, f: float, g: float) -> None:
    """Normalises rows; keeps the mean of each and one over its deviation."""
    at = arguments_at(pointer)
    rows, width = at[5], at[6]
    x, out, moments = matrix_at(at[0], rows, width), matrix_at(at[3], rows, width), matrix_at(at[4], rows, 2)
    weight, bias = numbers_at(at[1], width), numbers_at(at[2], width)
    for n in range(rows):
        mean, square = ZERO, ZERO
        for h in range(width):
            mean += x[n, h]
        mean /= np.float32(width)
        for h in range(width):
            apart = x[n, h] - mean
            square += apart * apart
        scale = ONE / np.float32(math.sqrt(square / np.float32(width) + f))
        moments[n, 0], moments[n, 1] = mean, scale
        for h in range(width):
            out[n, h] = (x[n, h] - mean) * scale * weight[h] + bias[h]


def _unnorm(pointer: Any, f: float, g: float) -> None:
    at = arguments_at(pointer)
    rows, width = at[7], at[8]
    gradient, x, out = matrix_at(at[0], rows, width), matrix_at(at[1], rows, width), matrix_at(at[4], rows, width)
    weight, of_weight, of_bias = numbers_at(at[2], width), numbers_at(at[5], width), numbers_at(at[6], width)
    moments = matrix_at(at[3], rows, 2)
    for h in range(width):
        of_weight[h] = ZERO if g == ZERO else g * of_weight[h]
        of_bias[h] = ZERO if g == ZERO else g * of_bias[h]
    for n in range(rows):
        mean, scale = moments[n, 0], moments[n, 1]
        sums, products = ZERO, ZERO
        for h in range(width):
            normal, passed = (x[n, h] - mean) * scale, gradient[n, h]
            of_weight[h] += passed * normal
            of_bias[h] += passed
            sums += passed * weight[h]
            products += passed * weight[h] * normal
        sums /= np.float32(width)
        products /= np.float32(width)
        for h in range(width):
            normal = (x[n, h] - mean) * scale
            out[n, h] = scale * (gradient[n, h] * weight[h] - sums - normal * products)


@numba.njit(fastmath=FAST)
def _add(x_at: int, out_at: int, count: int, f: np.float32, g: np.float32) -> None:
    """Computes out = f x + g out; where nothing is given, x is 0."""
    out = numbers_at(out_at, count)
    if x_at == 0:
        for i in range(count):
            out[i] = ZERO if g == ZERO else g * out[i]
        return
    x = numbers_at(x_at, count)
    if g == ZERO:
        for i in range(count):
            out[i] = f * x[i]
    else:
        for i in range(count):
            out[i] = f * x[i] + g * out[i]


def _leaky(pointer: Any, f: float, g: float) -> None:
    at = arguments_at(pointer)
    out = numbers_at(at[0], at[1])
    for i in range(len(out)):
        out[i] = f * out[i] if out[i] <= ZERO else out[i]


def _through_leaky(pointer: Any, f: float, g: float) -> None:
    at = arguments_at(pointer)
    gradient, x = numbers_at(at[0], at[2]), numbers_at(at[1], at[2])
    for i in range(len(x)):
        gradient[i] = f * gradient[i] if x[i] <= ZERO else gradient[i]


def _prelu(pointer: Any, f: float, g: float) -> None:
    at = arguments_at(pointer)
    x, out, slope = numbers_at(at[0], at[3]), numbers_at(at[2], at[3]), numbers_at(at[1], 1)[0]
    for i in range(len(x)):
        out[i] = slope * x[i] if x[i] <= ZERO else x[i]


def _through_prelu(pointer: Any, f: float, g: float) -> None:
    at = arguments_at(pointer)
    gradient, x, of_slope, total = numbers_at(at[0], at[4]), numbers_at(at[1], at[4]), numbers_at(at[3], 1), ZERO
    slope = numbers_at(at[2], 1)[0]
    for i in range(len(x)):
        total += gradient[i] * min(x[i], ZERO)
        gradient[i] = slope * gradient[i] if x[i] <= ZERO else gradient[i]
    of_slope[0] = total if g == ZERO else total + g * of_slope[0]


def _columns(pointer: Any, f: float, g: float) -> None:
    at = arguments_at(pointer)
    x, x_row, out, out_row, width = at[0], at[1], at[2], at[3], at[5]
    for n in range(at[4]):
        _add(x + 4 * n * x_row, out + 4 * n * out_row, width, f, g)


def _scale_rows(pointer: Any, f: float, g: float) -> None:
    at = arguments_at(pointer)
    factors, width = numbers_at(at[1], at[3]), at[4]
    for n in range(len(factors)):
        _add(at[0] + 4 * n * width, at[2] + 4 * n * width, width, factors[n], g)


def _gather(pointer: Any, f: float, g: float) -> None:
    at = arguments_at(pointer)
    rows = longs_at(at[1], at[3])
    for i in range(len(rows)):
        _add(at[0] + 4 * rows[i] * at[4], at[2] + 4 * i * at[4], at[4], ONE, ZERO)


def _scatter(pointer: Any, f: float, g: float) -> None:
    at = arguments_at(pointer)
    rows = longs_at(at[1], at[3])
    for i in range(len(rows)):
        _add(at[0] + 4 * i * at[4], at[2] + 4 * rows[i] * at[4], at[4], ONE, ONE)


# Calls of kernels, which say themselves how they compute.
_OF_KERNELS: dict[Code, Any] = {
    Code.SPARSE: _sparse,
    Code.SPARSE_ONES: _sparse_ones,
    Code.DENSE: _dense,
    Code.ATTEND: attention_operations.attend,
    Code.UNATTEND: attention_operations.unattend,
    Code.ATTEND_PRODUCTS: attention_operations.attend_products,
    Code.UNATTEND_PRODUCTS: attention_operations.unattend_products,
    Code.CROSS_ENTROPIES: loss_operations.cross_entropies,
    Code.CROSS_ENTROPIES_OF_ROWS: loss_operations.cross_entropies_of_rows,
    Code.SQUARES: loss_operations.squares,
    Code.CONTRASTS: loss_operations.contrasts,
    Code.DIVERGENCES: loss_operations.divergences,
    Code.NEIGHBOUR_DIVERGENCES: loss_operations.neighbour_divergences,
    Code.SQUARES_OF_DIRECTIONS: loss_operations.squares_of_directions,
    Code.CONTRASTS_BY_CLASS: loss_operations.contrasts_by_class,
    Code.LIKENESS_DIVERGENCES: loss_operations.likeness_divergences,
    Code.SQUARES_OF_SUMS: loss_operations.squares_of_sums,
    Code.SOFTPLUS_ALONG: loss_operations.softplus_along,
    Code.SQUARES_TO_PROJECTED: loss_operations.squares_to_projected,
    Code.SQUARES_OF_PROJECTED: loss_operations.squares_of_projected,
    Code.SQUARES_BY_PROJECTION: loss_operations.squares_by_projection,
    Code.QUOTIENT: loss_operations.quotient,
    Code.PULL: step_operations.pull_step,
    Code.SGD: step_operations.sgd_step,
    Code.ADAM: step_operations.adam_step,
}
# Loops of their own.
_LOOPS: dict[Code, Any] = {
    Code.TRANSPOSE: _transpose,
    Code.BIAS: _bias,
    Code.RELU: _relu,
    Code.THROUGH: _through,
    Code.MASK: _mask,
    Code.SUMS: _sums,
    Code.MIX: _mix,
    Code.SCALED: _scaled,
    Code.DOT: _dot,
    Code.ZERO: _zero,
    Code.NORM: _norm,
    Code.UNNORM: _unnorm,
    Code.LEAKY: _leaky,
    Code.THROUGH_LEAKY: _through_leaky,
    Code.PRELU: _prelu,
    Code.THROUGH_PRELU: _through_prelu,
    Code.COLUMNS: _columns,
    Code.SCALE_ROWS: _scale_rows,
    Code.GATHER: _gather,
    Code.SCATTER: _scatter,
    Code.WEIGH: hop_operations.weigh,
    Code.UNWEIGH: hop_operations.unweigh,
}
