"""Products of sparse matrices with dense ones, Y = alpha A X + beta Y, on one core.

A row of A X is summed in registers, up to 128 columns at a time. The sum of its even entries and that of its odd ones
are fused multiply-adds in the order of the row, and are added last: two chains, since few columns would wait for one.
So a number's bits depend on the entries of its row and on one column of X: not on the width of X, on the processor, or
on threads.

Written in LLVM's vectors: numba has neither float16 nor masks, and would keep the sums of a row in memory.
"""

from collections.abc import Iterator, Sequence
from typing import Any

import numba
import numpy as np
from llvmlite import binding, ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

LANES = 16
# Whether there are registers for masks, and as many as 32 of 64 bytes for vectors, beside 16 of 32 bytes.
MASKS = binding.get_host_cpu_features().get("avx512f", False)
# Vectors of a tile: as many as fit the registers twice.
MOST = 8 if MASKS else 3
# Lanes and vectors of every tile. Loads of few columns are short: one across cache lines takes twice as long.
TILES = [(4, 1), (8, 1), (8, 2), *((LANES, vectors) for vectors in range(1, MOST + 1))]
BIT, INT32, INT64 = ir.IntType(1), ir.IntType(32), ir.IntType(64)
LLVM_TYPES = {types.uint16: ir.HalfType(), types.float32: ir.FloatType(), types.float64: ir.DoubleType()}


# Without a word on it, a caller's reassociation would be this function's, too, and stay in its cache.
@numba.njit(cache=True, nogil=True, fastmath=False)
def multiply(
    indptr: np.ndarray,
    indices: np.ndarray,
    values: np.ndarray | None,
    x: int,
    out: int,
    width: int,
    alpha: np.floating,
    beta: np.floating,
) -> None:
    """Computes out = alpha A x + beta out, `[N, H]`, H = `width`, for A `[N, M]`; where beta is 0, `out` is not read.

    Dense matrices, C-contiguous, are given by their addresses: to make arrays of them takes longer than a small
    product. They are of the type of alpha and beta, float32 or float64, no narrower than A's entries, which are
    float32, float64, float16 seen as uint16, or None: ones. Columns, in 0..M-1, are not checked; `out` is no part of x.
    """
    for first in range(0, width, MOST * LANES):
        columns = min(width - first, MOST * LANES)
        if columns < LANES:
            tile = 0 if columns <= 4 else 1 if columns <= 8 else 2
            last = columns if columns <= 8 else columns - 8
        else:
            vectors = (columns + LANES - 1) // LANES
            tile, last = vectors + 2, columns - (vectors - 1) * LANES
        for row in range(len(indptr) - 1):
            start, stop = indptr[row], indptr[row + 1]
            _sum_row(indices, values, x, out, width, alpha, beta, row, start, stop, first, tile, last)


@intrinsic
def _sum_row(
    context: Any,
    indices: Any,
    values: Any,
    x: Any,
    out: Any,
    width: Any,
    alpha: Any,
    beta: Any,
    row: Any,
    start: Any,
    stop: Any,
    first: Any,
    tile: Any,
    last: Any,
) -> Any:
    """Columns of a row of the result from `first` on: those of a tile, by its place; `last` are in its last vector."""
    scalar = LLVM_TYPES[alpha]
    stored = None if values == types.none else LLVM_TYPES[values.dtype]

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        x, out, width, alpha, beta, row, start, stop, first, tile, last = args[2:]
        senders = context.make_array(signature.args[0])(context, builder, args[0]).data
        if stored is not None:
            numbers = context.make_array(signature.args[1])(context, builder, args[1]).data
            numbers = builder.bitcast(numbers, stored.as_pointer())

        def place(address: Any, row: Any) -> Any:
            begin = builder.inttoptr(address, scalar.as_pointer())
            return builder.gep(begin, [builder.add(builder.mul(row, width), first)])

        def add(code: Tile, entry: Any, sums: Sequence[Any]) -> None:
            sender = builder.load(builder.gep(senders, [entry]))
            vectors = code.load(place(x, context.cast(builder, sender, signature.args[0].dtype, types.int64)))
            number = None
            if stored is not None:
                number = builder.load(builder.gep(numbers, [entry]))
                number = number if stored == scalar else builder.fpext(number, scalar)
            loaded = [builder.load(total) for total in sums]
            for total, vector in zip(sums, code.add_scaled(vectors, number, loaded)):
                builder.store(vector, total)

        for code in tiles(builder, scalar, tile, last):
            even, odd = ([cgutils.alloca_once(builder, code.vector) for _ in range(code.vectors)] for _ in range(2))
            for total in even + odd:
                builder.store(code.zero, total)
            end = builder.sub(stop, INT64(1))
            with cgutils.for_range_slice(builder, start, end, INT64(2), INT64) as (entry, _):
                add(code, entry, even)
                add(code, builder.add(entry, INT64(1)), odd)
            with builder.if_then(builder.trunc(builder.sub(stop, start), BIT)):
                add(code, end, even)
            sums = [builder.fadd(builder.load(a), builder.load(b)) for a, b in zip(even, odd)]
            scaled, result = code.scale(sums, alpha), place(out, row)
            with builder.if_else(builder.fcmp_ordered("==", beta, scalar(0))) as (alone, mixed):
                with alone:
                    code.store(scaled, result)
                with mixed:
                    code.store(code.add_scaled(code.load(result), beta, scaled), result)
        return context.get_dummy_value()

    i = types.int64
    return types.void(indices, values, i, i, i, alpha, alpha, i, i, i, i, i, i), generate


class Tile:
    """Code for the vectors of a tile, of which the last one may be used in part."""

    def __init__(self, builder: Any, scalar: Any, lanes: int, vectors: int, last: Any) -> None:
        """Takes how many lanes of the last vector are used; None: all."""
        self._builder, self._lanes, self.vectors = builder, lanes, vectors
        self._itemsize = 8 if scalar == ir.DoubleType() else 4
        self.vector = ir.VectorType(scalar, lanes)
        self.zero = self.vector([0.0] * lanes)
        self._used = None
        if last is not None:
            # Numbers as wide as entries: others are narrowed at each use of the mask, which has no register.
            if self._itemsize == 4:
                last = builder.trunc(last, INT32)
            numbers = ir.VectorType(last.type, lanes)
            self._used = builder.icmp_signed("<", numbers([*range(lanes)]), self._in_all(last, numbers))

    def _in_all(self, number: Any, vector: Any) -> Any:
        single = self._builder.insert_element(vector(ir.Undefined), number, INT32(0))
        return self._builder.shuffle_vector(single, vector(ir.Undefined), ir.VectorType(INT32, self._lanes)(None))

    def _call(self, name: str, result: Any, *args: Any) -> Any:
        function = ir.FunctionType(result, [arg.type for arg in args])
        name = name.replace("*", f"v{self._lanes}f{8 * self._itemsize}")
        return self._builder.call(cgutils.get_or_insert_function(self._builder.module, function, name), args)

    def _pointers(self, row: Any) -> list[Any]:
        places = [self._builder.gep(row, [INT64(number * self._lanes)]) for number in range(self.vectors)]
        return [self._builder.bitcast(place, self.vector.as_pointer()) for place in places]

    def load(self, row: Any) -> list[Any]:
        """Loads the vectors at a place, 0 where the last one is not used."""
        pointers = self._pointers(row)
        last = pointers.pop() if self._used is not None else None
        vectors = [self._builder.load(pointer) for pointer in pointers]
        for vector in vectors:
            vector.align = self._itemsize
        if last is None:
            return vectors
        align = INT32(self._itemsize)
        return [*vectors, self._call("llvm.masked.load.*.p0", self.vector, last, align, self._used, self.zero)]

    def store(self, vectors: Sequence[Any], row: Any) -> None:
        """Writes vectors to a place, and nothing behind what is used."""
        pointers = self._pointers(row)
        last = pointers.pop() if self._used is not None else None
        for vector, pointer in zip(vectors, pointers):
            self._builder.store(vector, pointer).align = self._itemsize
        if last is not None:
            align = INT32(self._itemsize)
            self._call("llvm.masked.store.*.p0", ir.VoidType(), vectors[-1], last, align, self._used)

    def scale(self, vectors: Sequence[Any], factor: Any) -> list[Any]:
        """Multiplies vectors by a number."""
        return [self._builder.fmul(vector, self._in_all(factor, self.vector)) for vector in vectors]

    def add_scaled(self, vectors: Sequence[Any], factor: Any, to: Sequence[Any]) -> list[Any]:
        """Adds vectors times a number to `to`, rounded once; None: 1."""
        if factor is None:
            return [self._builder.fadd(vector, other) for vector, other in zip(vectors, to)]
        factors = self._in_all(factor, self.vector)
        return [self._call("llvm.fma.*", self.vector, factors, vector, other) for vector, other in zip(vectors, to)]

    def add_squares(self, vectors: Sequence[Any], number: Any, to: Sequence[Any]) -> list[Any]:
        """Adds the squares of what vectors are above a number to `to`, rounded once."""
        numbers = self._in_all(number, self.vector)
        apart = [self._builder.fsub(vector, numbers) for vector in vectors]
        return [self._call("llvm.fma.*", self.vector, vector, vector, other) for vector, other in zip(apart, to)]


def tiles(builder: Any, scalar: Any, tile: Any, last: Any, shapes: Sequence[tuple[int, int]] = TILES) -> Iterator[Tile]:
    """Begins the code of every tile in turn, of which that at place `tile` runs."""
    done = builder.append_basic_block("done")
    switch = builder.switch(tile, done)
    for number, (lanes, vectors) in enumerate(shapes):
        block = builder.append_basic_block(f"tile{number}")
        switch.add_case(INT64(number), block)
        builder.position_at_end(block)
        if not MASKS:
            whole, in_part = (builder.append_basic_block(f"{which}{number}") for which in ("whole", "part"))
            builder.cbranch(builder.icmp_signed("==", last, INT64(lanes)), whole, in_part)
            builder.position_at_end(whole)
            yield Tile(builder, scalar, lanes, vectors, None)
            builder.branch(done)
            builder.position_at_end(in_part)
        yield Tile(builder, scalar, lanes, vectors, last)
        builder.branch(done)
    builder.position_at_end(done)
