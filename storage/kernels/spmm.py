"""One hop of propagation as a single pass over the entries of a CSR matrix: the inner loop, on one core.

The pass spends its time waiting for memory, so the features of later neighbours are prefetched. A row is summed in
registers, 32 columns at a time: prefetching 32 columns many entries ahead is faster than prefetching rows of 128
columns a few entries ahead (`benchmarks/propagation.py`).
"""

import functools
import platform
from typing import Any

import numba
import numpy as np
from llvmlite import binding, ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

# Entries ahead of the one being added: into the second-level cache, then into the first.
FAR, NEAR = 64, 8
CACHE_LINE = 64
BYTE, INT32, INT64 = ir.IntType(8), ir.IntType(32), ir.IntType(64)
HALF, FLOAT = ir.HalfType(), ir.FloatType()
INFINITY = 0x7F800000


@functools.cache
def converts_halves() -> bool:
    """Whether this processor converts float16 itself, as all do since 2013; else LLVM calls what numba lacks."""
    return platform.machine() not in ("x86_64", "AMD64") or binding.get_host_cpu_features().get("f16c", False)


@numba.njit(cache=True, nogil=True)
def spmm(
    indptr: np.ndarray,
    indices: np.ndarray,
    x: np.ndarray,
    sent: np.ndarray,
    received: np.ndarray,
    out: np.ndarray,
    weight: np.ndarray | None,
) -> np.int32:
    """Computes out = diag(received) (A + I) diag(sent) x, sums in float32, each in the order of its row's entries.

    A column's bits depend on nothing but that column: not on the tile it falls into, nor on F. Features and `out` are
    C-contiguous, float32, or float16 seen as uint16, rounded to nearest even; columns are not checked; `weight` are A's
    entries, float32, else ones. Gives the largest magnitude of the result before it is rounded, as the bits of a
    float32.
    """
    nodes, width = x.shape
    total = np.empty(width, dtype=np.float32)
    bits = total.view(np.int32)
    peak = np.int32(0)
    if width == 0:
        return peak
    tile = 32 if width >= 32 else 8 if width >= 8 else 1
    for row in range(nodes):
        start, stop = indptr[row], indptr[row + 1]
        for column in range(0, width, tile):
            # The last tile is moved left until it fits: adding a column twice is cheaper than columns one by one.
            at = min(column, width - tile)
            if tile == 32:
                add_neighbours(32, x, indices, sent, weight, row, start, stop, at, total)
            elif tile == 8:
                add_neighbours(8, x, indices, sent, weight, row, start, stop, at, total)
            else:
                add_neighbours(1, x, indices, sent, weight, row, start, stop, at, total)
        scale = received[row]
        for c in range(width):
            total[c] *= scale
            out[row, c] = _round(total[c], out)
            # Magnitudes are ordered as their bits are, and a maximum of integers becomes vector code.
            magnitude = bits[c] & np.int32(0x7FFFFFFF)
            peak = max(peak, magnitude if magnitude <= INFINITY else np.int32(0))
    return peak


@intrinsic(prefer_literal=True)
def add_neighbours(
    context: Any,
    tile: Any,
    x: Any,
    indices: Any,
    sent: Any,
    weight: Any,
    row: Any,
    start: Any,
    stop: Any,
    column: Any,
    total: Any,
) -> Any:
    """total[column:column + tile] = Σ sent[j] x[j, column:column + tile] over j = row and j in indices[start:stop].

    With `weight`, what a neighbour adds is multiplied by the weight of its entry.

    Written in LLVM's vectors since numba has neither float16 nor prefetching on a CPU, and would keep `total` in
    memory.
    """
    count = tile.literal_value
    stored = ir.VectorType(FLOAT if x.dtype == types.float32 else HALF, count)
    summed = ir.VectorType(FLOAT, count)
    itemsize = 4 if x.dtype == types.float32 else 2
    broadcast = ir.Constant(ir.VectorType(INT32, count), [0] * count)

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        used = [1, 2, 3, 9, *([] if weight == types.none else [4])]
        arrays = {k: context.make_array(signature.args[k])(context, builder, args[k]) for k in used}
        row, start, stop, column = args[5:9]
        features = builder.gep(
            builder.bitcast(arrays[1].data, BYTE.as_pointer()), [builder.mul(column, INT64(itemsize))]
        )
        stride = cgutils.unpack_tuple(builder, arrays[1].strides)[0]
        result = builder.bitcast(builder.gep(arrays[9].data, [column]), summed.as_pointer())
        last = builder.sub(arrays[2].nitems, INT64(1))
        prefetch = cgutils.get_or_insert_function(
            builder.module, ir.FunctionType(ir.VoidType(), [BYTE.as_pointer(), INT32, INT32, INT32]), "llvm.prefetch.p0"
        )

        def neighbour(entry: Any) -> Any:
            return builder.zext(builder.load(builder.gep(arrays[2].data, [entry])), INT64)

        def features_of(node: Any) -> Any:
            return builder.gep(features, [builder.mul(node, stride)])

        def fetch(ahead: int, level: int) -> None:
            entry = builder.add(entry_now, INT64(ahead))
            entry = builder.select(builder.icmp_signed("<", entry, last), entry, last)
            pointer = features_of(neighbour(entry))
            # The last byte is fetched, too: rows need not start at a cache line.
            for offset in (*range(0, count * itemsize, CACHE_LINE), count * itemsize - 1):
                builder.call(prefetch, [builder.gep(pointer, [INT64(offset)]), INT32(0), INT32(level), INT32(1)])

        def scaled(node: Any, entry: Any = None) -> Any:
            values = builder.load(builder.bitcast(features_of(node), stored.as_pointer()))
            values.align = itemsize
            if stored != summed:
                values = builder.fpext(values, summed)
            scale = builder.load(builder.gep(arrays[3].data, [node]))
            if entry is not None and weight != types.none:
                scale = builder.fmul(scale, builder.load(builder.gep(arrays[4].data, [entry])))
            scale = builder.insert_element(ir.Constant(summed, ir.Undefined), scale, INT32(0))
            scale = builder.shuffle_vector(scale, ir.Constant(summed, ir.Undefined), broadcast)
            return builder.fmul(values, scale)

        of_row = scaled(row)
        before = builder.block
        loop, body, done = (builder.append_basic_block(name) for name in ("entries", "entry", "summed"))
        builder.branch(loop)

        builder.position_at_end(loop)
        entry_now, sum_now = builder.phi(INT64), builder.phi(summed)
        builder.cbranch(builder.icmp_signed("<", entry_now, stop), body, done)

        builder.position_at_end(body)
        fetch(FAR, 2)
        fetch(NEAR, 3)
        sum_next = builder.fadd(sum_now, scaled(neighbour(entry_now), entry_now))
        entry_next = builder.add(entry_now, INT64(1))
        builder.branch(loop)
        for phi, first, following in ((entry_now, start, entry_next), (sum_now, of_row, sum_next)):
            phi.add_incoming(first, before)
            phi.add_incoming(following, body)

        builder.position_at_end(done)
        builder.store(sum_now, result).align = 4
        return context.get_dummy_value()

    integer = types.intp
    return types.void(tile, x, indices, sent, weight, integer, integer, integer, integer, total), generate


@intrinsic
def _round(context: Any, value: Any, out: Any) -> Any:
    """Converts a float32 to what `out` stores: itself, or the nearest float16, ties to even, as bits."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        if signature.return_type == types.float32:
            return args[0]
        return builder.bitcast(builder.fptrunc(args[0], HALF), ir.IntType(16))

    return out.dtype(types.float32, out), generate
