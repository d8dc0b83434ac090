"""The operations that passes of models are made of, and the loop that runs a list of them.

Matrices are float32 and C-contiguous, given by their addresses. An operation is a line of codes: what it does, and its
arguments, of which addresses count from one of several places, so that the same list serves any memory (`Base`).
"""

import math
from enum import Enum, IntEnum
from functools import cache
from typing import Any

import numba
import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from shoal.storage.kernels.dense_product import multiply_dense
from shoal.storage.kernels.sparse_product import multiply

FAST = {"reassoc", "contract", "nsz"}
ZERO, ONE = np.float32(0), np.float32(1)


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


class Code(Enum):
    """An operation, with its arguments and what it does; `f` and `g` are its two factors."""

    SPARSE = "row starts, columns, values, rows, x, out, width: out = f A x + g out"
    SPARSE_ONES = "the same, where all entries are 1"
    DENSE = "a, a_row, a_step, b, b_row, out, out_row, rows, depth, columns: out = a b + g out"
    TRANSPOSE = "x, out, rows, width: out = x'"
    BIAS = "out, bias, rows, width: out = out + bias"
    RELU = "out, numbers: out = max(out, 0)"
    THROUGH = "gradient, x, numbers: the gradient where x > 0, else 0"
    MASK = "out, kept, numbers: out = f out kept"
    SUMS = "x, out, rows, width: out = sums of the columns + g out"
    MIX = "x, out, numbers: out = f x + g out"
    SCALED = "x, factor, out, numbers: out = f factor x + g out, of a factor in memory"
    DOT = "x, y, out, numbers: out = f <x, y> + g out"
    ZERO = "out, numbers: out = 0"
    NORM = "x, weight, bias, out, moments, rows, width: out = weight (x - mean) / deviation + bias; f is epsilon"
    UNNORM = "gradient, x, weight, moments, out, of_weight, of_bias, rows, width: gradients of NORM; g of parameters"


ARGUMENTS = 10
ARRAYS = 6


@intrinsic
def _pointer(context: Any, address: Any) -> Any:
    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.inttoptr(args[0], cgutils.voidptr_t)

    return types.voidptr(types.int64), generate


@numba.njit
def matrix_at(address: int, rows: int, width: int) -> np.ndarray:
    return numba.carray(_pointer(address), (rows, width), np.float32)


@numba.njit
def numbers_at(address: int, count: int) -> np.ndarray:
    return numba.carray(_pointer(address), (count,), np.float32)


@numba.njit
def integers_at(address: int, count: int) -> np.ndarray:
    return numba.carray(_pointer(address), (count,), np.int32)


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
        arguments: `[O, ARGUMENTS]`, int64; addresses count in bytes from a base, whose number is in `bases_of`, int8.
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
    compiled = numba.cfunc(signature, cache=True, nopython=True, fastmath=FAST)(_OPERATIONS[code])
    _COMPILED.append(compiled)
    return int(compiled.address)


# Code stays where it is as long as its object.
_COMPILED: list[Any] = []


def _sparse(pointer: Any, f: float, g: float) -> None:
    at = numba.carray(pointer, ARGUMENTS)
    multiply(integers_at(at[0], at[3] + 1), integers_at(at[1], 0), numbers_at(at[2], 0), at[4], at[5], at[6], f, g)


def _sparse_ones(pointer: Any, f: float, g: float) -> None:
    at = numba.carray(pointer, ARGUMENTS)
    multiply(integers_at(at[0], at[3] + 1), integers_at(at[1], 0), None, at[4], at[5], at[6], f, g)


def _dense(pointer: Any, f: float, g: float) -> None:
    at = numba.carray(pointer, ARGUMENTS)
    multiply_dense(at[0], at[1], at[2], at[3], at[4], at[5], at[6], at[7], at[8], at[9], g)


def _transpose(pointer: Any, f: float, g: float) -> None:
    at = numba.carray(pointer, ARGUMENTS)
    rows, width = at[2], at[3]
    x, out = matrix_at(at[0], rows, width), matrix_at(at[1], width, rows)
    for h in range(width):
        for n in range(rows):
            out[h, n] = x[n, h]


def _bias(pointer: Any, f: float, g: float) -> None:
    at = numba.carray(pointer, ARGUMENTS)
    rows, width = at[2], at[3]
    out, bias = numbers_at(at[0], rows * width), numbers_at(at[1], width)
    for n in range(rows):
        row = n * width
        for h in range(width):
            out[row + h] += bias[h]


def _relu(pointer: Any, f: float, g: float) -> None:
    at = numba.carray(pointer, ARGUMENTS)
    out = numbers_at(at[0], at[1])
    for i in range(len(out)):
        # NaN stays NaN.
        out[i] = ZERO if out[i] <= ZERO else out[i]


def _through(pointer: Any, f: float, g: float) -> None:
    at = numba.carray(pointer, ARGUMENTS)
    gradient, x = numbers_at(at[0], at[2]), numbers_at(at[1], at[2])
    for i in range(at[2]):
        gradient[i] = ZERO if x[i] <= ZERO else gradient[i]


def _mask(pointer: Any, f: float, g: float) -> None:
    at = numba.carray(pointer, ARGUMENTS)
    out, kept = numbers_at(at[0], at[2]), numbers_at(at[1], at[2])
    for i in range(len(out)):
        out[i] *= kept[i] * f


def _sums(pointer: Any, f: float, g: float) -> None:
    at = numba.carray(pointer, ARGUMENTS)
    rows, width = at[2], at[3]
    x, out = numbers_at(at[0], rows * width), numbers_at(at[1], width)
    for h in range(width):
        out[h] = ZERO if g == ZERO else g * out[h]
    for n in range(rows):
        row = n * width
        for h in range(width):
            out[h] += x[row + h]


def _mix(pointer: Any, f: float, g: float) -> None:
    at = numba.carray(pointer, ARGUMENTS)
    _add(at[0], at[1], at[2], f, g)


def _scaled(pointer: Any, f: float, g: float) -> None:
    at = numba.carray(pointer, ARGUMENTS)
    _add(at[0], at[2], at[3], f * numbers_at(at[1], 1)[0], g)


def _dot(pointer: Any, f: float, g: float) -> None:
    at = numba.carray(pointer, ARGUMENTS)
    x, y, out, total = numbers_at(at[0], at[3]), numbers_at(at[1], at[3]), numbers_at(at[2], 1), ZERO
    for i in range(at[3]):
        total += x[i] * y[i]
    out[0] = f * total if g == ZERO else f * total + g * out[0]


def _zero(pointer: Any, f: float, g: float) -> None:
    at = numba.carray(pointer, ARGUMENTS)
    out = numbers_at(at[0], at[1])
    for i in range(at[1]):
        out[i] = ZERO


def _norm(pointer: Any, f: float, g: float) -> None:
    """Normalises rows; keeps the mean of each and one over its deviation."""
    at = numba.carray(pointer, ARGUMENTS)
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
    at = numba.carray(pointer, ARGUMENTS)
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


_OPERATIONS: dict[Code, Any] = {code: globals()[f"_{code.name.lower()}"] for code in Code}
