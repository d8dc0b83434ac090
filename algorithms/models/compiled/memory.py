"""Arrays over memory that is known by its address, in compiled code."""

from typing import Any

import numba
import numpy as np
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

# Arguments of an operation.
ARGUMENTS = 18
ZERO, ONE = np.float32(0), np.float32(1)


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


@numba.njit
def shorts_at(address: int, count: int) -> np.ndarray:
    return numba.carray(_pointer(address), (count,), np.int16)


@numba.njit
def longs_at(address: int, count: int) -> np.ndarray:
    return numba.carray(_pointer(address), (count,), np.int64)


@numba.njit
def doubles_at(address: int, count: int) -> np.ndarray:
    return numba.carray(_pointer(address), (count,), np.float64)


@numba.njit
def flags_at(address: int, count: int) -> np.ndarray:
    return numba.carray(_pointer(address), (count,), np.bool_)


@numba.njit
def heads_at(address: int, rows: int, heads: int, width: int) -> np.ndarray:
    return numba.carray(_pointer(address), (rows, heads, width), np.float32)


@numba.njit
def arguments_at(pointer: Any) -> np.ndarray:
    return numba.carray(pointer, ARGUMENTS)
