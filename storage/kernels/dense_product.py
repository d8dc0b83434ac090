"""Products of small dense matrices, C = A B + beta C, on one core, for compiled loops that cannot call torch.

A number of A B is one chain of fused multiply-adds in the order of its row of A: its bits depend on that row and on one
column of B, not on other sizes, on the processor, or on threads. Several rows of C are summed in registers at once. So
are squared distances of rows of A from columns of B.
"""

from typing import Any

import numba
import numpy as np
from llvmlite import binding, ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from shoal.storage.kernels.sparse_product import INT64, LANES, tiles

FLOAT = ir.FloatType()
# What is summed over a row and a column.
PRODUCTS, SQUARES = 0, 1
NONE = np.float32(0)
# Rows of a tile, which fill the registers with its vectors: 32 of 64 bytes, or 16 of 32.
ROWS = 6
MOST = 4 if binding.get_host_cpu_features().get("avx512f", False) else 1
SHAPES = [(4, 1), (8, 1), *((LANES, vectors) for vectors in range(1, MOST + 1))]


@numba.njit(cache=True, nogil=True, fastmath=False)
def multiply_dense(
    a: int, a_row: int, a_step: int, b: int, b_row: int, out: int, out_row: int,
    rows: int, depth: int, columns: int, beta: float,
) -> None:  # fmt: skip
    """Computes out = A B + beta out, `[rows, columns]`, A `[rows, depth]`; where beta is 0, `out` is not read.

    Matrices are float32, given by their addresses. Entries of a row of A are `a_step` numbers apart, its rows `a_row`,
    so that a transpose is read where it lies; rows of B and of `out` are contiguous, `b_row` and `out_row` apart.
    """
    for first in range(0, columns, MOST * LANES):
        width = min(columns - first, MOST * LANES)
        vectors = (width + LANES - 1) // LANES
        tile = 0 if width <= 4 else 1 if width <= 8 else vectors + 1
        last = width if width <= 8 else width - (vectors - 1) * LANES
        whole = rows - rows % ROWS
        for row in range(0, whole, ROWS):
            at, into = a + 4 * row * a_row, out + 4 * (row * out_row + first)
            _sum_rows(at, a_row, a_step, b + 4 * first, b_row, into, out_row, depth, beta, tile, last, ROWS, PRODUCTS)
        for row in range(whole, rows):
            at, into = a + 4 * row * a_row, out + 4 * (row * out_row + first)
            _sum_rows(at, a_row, a_step, b + 4 * first, b_row, into, out_row, depth, beta, tile, last, 1, PRODUCTS)


@numba.njit(cache=True, nogil=True, fastmath=False)
def square_distances(
    a: int, a_row: int, b: int, b_row: int, out: int, out_row: int, rows: int, depth: int, columns: int
) -> None:
    """Computes the squared distances of rows of A from columns of B, `[rows, columns]`.

    Matrices are given as to `multiply_dense`. Differences come first, so that near rows and columns lose no digits.
    """
    for first in range(0, columns, MOST * LANES):
        width = min(columns - first, MOST * LANES)
        vectors = (width + LANES - 1) // LANES
        tile = 0 if width <= 4 else 1 if width <= 8 else vectors + 1
        last = width if width <= 8 else width - (vectors - 1) * LANES
        whole = rows - rows % ROWS
        for row in range(0, whole, ROWS):
            at, into = a + 4 * row * a_row, out + 4 * (row * out_row + first)
            _sum_rows(at, a_row, 1, b + 4 * first, b_row, into, out_row, depth, NONE, tile, last, ROWS, SQUARES)
        for row in range(whole, rows):
            at, into = a + 4 * row * a_row, out + 4 * (row * out_row + first)
            _sum_rows(at, a_row, 1, b + 4 * first, b_row, into, out_row, depth, NONE, tile, last, 1, SQUARES)


@intrinsic(prefer_literal=True)
def _sum_rows(
    context: Any, a: Any, a_row: Any, a_step: Any, b: Any, b_row: Any, out: Any, out_row: Any,
    depth: Any, beta: Any, tile: Any, last: Any, rows: Any, what: Any,
) -> Any:  # fmt: skip
    """Computes some rows of the result, in the columns of a tile, by its place; `last` are in its last vector."""
    count, of_squares = rows.literal_value, what.literal_value == SQUARES

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        a, a_row, a_step, b, b_row, out, out_row, depth, beta, tile, last, _, _ = args
        begins = [builder.inttoptr(address, FLOAT.as_pointer()) for address in (a, b, out)]
        for code in tiles(builder, FLOAT, tile, last, SHAPES):
            sums = [[cgutils.alloca_once(builder, code.vector) for _ in range(code.vectors)] for _ in range(count)]
            for total in (total for row in sums for total in row):
                builder.store(code.zero, total)
            with cgutils.for_range(builder, depth, intp=INT64) as loop:
                vectors = code.load(builder.gep(begins[1], [builder.mul(loop.index, b_row)]))
                entry = builder.gep(begins[0], [builder.mul(loop.index, a_step)])
                for number, row in enumerate(sums):
                    factor = builder.load(builder.gep(entry, [builder.mul(INT64(number), a_row)]))
                    add = code.add_squares if of_squares else code.add_scaled
                    added = add(vectors, factor, [builder.load(total) for total in row])
                    for total, vector in zip(row, added):
                        builder.store(vector, total)
            for number, row in enumerate(sums):
                loaded = [builder.load(total) for total in row]
                result = builder.gep(begins[2], [builder.mul(INT64(number), out_row)])
                with builder.if_else(builder.fcmp_ordered("==", beta, FLOAT(0))) as (alone, mixed):
                    with alone:
                        code.store(loaded, result)
                    with mixed:
                        code.store(code.add_scaled(code.load(result), beta, loaded), result)
        return context.get_dummy_value()

    i, number = types.int64, types.float32
    return types.void(i, i, i, i, i, i, i, i, number, i, i, rows, what), generate
