"""Label propagation and moments as passes over tiles of sixteen classes: the inner loops, on one core.

A row of labels is read once for every neighbour. A tile, a cache line wide, of all nodes of a client stays in the
second-level cache, where whole rows would not; and its sums stay in registers.

The labels Y are held as Z = D^{-1/2} Y, for which one step of FedGTA's eq. 3 needs no scaling of what a node sends,

    Z^s = a Z^0 + (1 - a) D^{-1} (A + I) Z^{s-1},

and which rows scaled to sum to one are the same for.

Axes: N nodes, C classes, T = ceil(C / 16) tiles of W = 16 classes, of which those beyond C are zero; K orders.
"""

from typing import Any

import numba
import numpy as np
from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from shoal.storage.kernels.spmm import add_neighbours

WIDTH = 16
CACHE_LINE = 64
# Sums of that many rows are float32, sums of these float64.
ROWS = 32
INT32, INT64, LANES = ir.IntType(32), ir.IntType(64), ir.VectorType(ir.FloatType(), WIDTH)


def empty_tiles(nodes: int, classes: int) -> np.ndarray:
    """New memory for labels, float32 `[T, N, W]`, that starts at a cache line."""
    shape = -(-classes // WIDTH), nodes, WIDTH
    size = shape[0] * nodes * WIDTH
    memory = np.empty(size + CACHE_LINE // 4, dtype=np.float32)
    first = -memory.ctypes.data % CACHE_LINE // 4
    return memory[first : first + size].reshape(shape)


@numba.njit(cache=True, nogil=True)
def fill(y: np.ndarray, sent: np.ndarray, z: np.ndarray) -> None:
    """Writes Z = diag(sent) Y; all are float32."""
    nodes, classes = y.shape
    for row in range(nodes):
        for tile in range(len(z)):
            first = tile * WIDTH
            count = min(WIDTH, classes - first)
            for k in range(count):
                z[tile, row, k] = sent[row] * y[row, first + k]
            z[tile, row, count:] = 0


@numba.njit(cache=True, nogil=True)
def read(z: np.ndarray, scales: np.ndarray, first: int, out: np.ndarray) -> None:
    """Writes rows of diag(scales) Z, from `first` on, as many as `out` has, float32 `[n, C]`."""
    count, classes = out.shape
    for row in range(count):
        for c in range(classes):
            out[row, c] = scales[first + row] * z[c // WIDTH, first + row, c % WIDTH]


@numba.njit(cache=True, nogil=True)
def propagate(
    indptr: np.ndarray,
    indices: np.ndarray,
    z: np.ndarray,
    seed: np.ndarray,
    seed_weight: np.float32,
    shares: np.ndarray,
    out: np.ndarray,
    totals: np.ndarray,
    weight: np.ndarray | None,
) -> None:
    """out = seed_weight seed + diag(shares) (A + I) z, and the sums of its rows.

    Args:
        indptr: Row pointer of A, int32 or int64 `[N + 1]`.
        indices: Columns of A's entries, int32 `[E]`, in 0..N-1; not checked.
        z: float32 `[T, N, W]`, starting at a cache line.
        seed: Of the shape of z.
        seed_weight: Of the seed.
        shares: Scaling of what a node receives, float32 `[N]`.
        out: Written, of the shape of z; not z.
        totals: Written, float64 `[N]`.
        weight: A's entries, float32 `[E]`; None: ones.
    """
    summed = np.empty(WIDTH, dtype=np.float32)
    totals[:] = 0
    for tile in range(len(z)):
        before, start, after = z[tile], seed[tile], out[tile]
        for row in range(len(before)):
            add_neighbours(WIDTH, before, indices, None, weight, row, indptr[row], indptr[row + 1], 0, summed)
            totals[row] += _mix(summed, shares[row], start, seed_weight, row, after)


@numba.njit(cache=True, nogil=True)
def sum_powers(z: np.ndarray, scales: np.ndarray, origin: np.ndarray, out: np.ndarray) -> None:
    """out[:, k] = Σ_v (scales_v z_v - origin)^(k+1), class by class: float32 over some rows, then float64.

    The origin is float32 `[T, W]`, `out` float64 `[T, K, W]`.
    """
    tiles, orders, _ = out.shape
    nodes = len(scales)
    base, power = np.empty(WIDTH, dtype=np.float32), np.empty(WIDTH, dtype=np.float32)
    part = np.empty((orders, WIDTH), dtype=np.float32)
    out[:] = 0
    for tile in range(tiles):
        rows, centre = z[tile], origin[tile]
        for first in range(0, nodes, ROWS):
            part[:] = 0
            for row in range(first, min(first + ROWS, nodes)):
                _begin_powers(rows, row, scales[row], centre, base, power)
                order = 0
                while order + 3 <= orders:
                    _add_powers(3, base, power, part, order)
                    order += 3
                while order < orders:
                    _add_powers(1, base, power, part, order)
                    order += 1
            out[tile] += part


# Of vectors as LLVM has them: numba makes code of scalars of loops as short as these.


@intrinsic
def _mix(context: Any, x: Any, share: Any, seed: Any, seed_weight: Any, row: Any, out: Any) -> Any:
    """out[row] = seed_weight seed[row] + share x; returns its sum."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        lanes = _lanes_of(context, builder, signature, args)
        received = builder.fmul(_all(builder, args[1]), builder.load(lanes(0), align=4))
        kept = builder.fmul(_all(builder, args[3]), builder.load(lanes(2, args[4]), align=4))
        mixed = builder.fadd(kept, received)
        builder.store(mixed, lanes(5, args[4]), align=4)
        count = WIDTH
        while count > 1:
            count //= 2
            unused = ir.Constant(mixed.type, ir.Undefined)
            numbers = ir.VectorType(INT32, count)
            low, high = (ir.Constant(numbers, [*range(at, at + count)]) for at in (0, count))
            mixed = builder.fadd(
                builder.shuffle_vector(mixed, unused, low), builder.shuffle_vector(mixed, unused, high)
            )
        return builder.extract_element(mixed, INT32(0))

    return types.float32(x, types.float32, seed, types.float32, types.intp, out), generate


@intrinsic
def _begin_powers(context: Any, rows: Any, row: Any, scale: Any, origin: Any, base: Any, power: Any) -> Any:
    """base = scale rows[row] - origin, and power = 1."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        lanes = _lanes_of(context, builder, signature, args)
        scaled = builder.fmul(_all(builder, args[2]), builder.load(lanes(0, args[1]), align=4))
        builder.store(builder.fsub(scaled, builder.load(lanes(3), align=4)), lanes(4), align=4)
        builder.store(ir.Constant(LANES, [1.0] * WIDTH), lanes(5), align=4)
        return context.get_dummy_value()

    return types.void(rows, types.intp, types.float32, origin, base, power), generate


@intrinsic(prefer_literal=True)
def _add_powers(context: Any, count: Any, base: Any, power: Any, sums: Any, first: Any) -> Any:
    """`count` times: power *= base, and sums[first], sums[first + 1], … += power."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        lanes = _lanes_of(context, builder, signature, args)
        factor, now = builder.load(lanes(1), align=4), builder.load(lanes(2), align=4)
        for ahead in range(count.literal_value):
            now = builder.fmul(now, factor)
            place = lanes(3, builder.add(args[4], INT64(ahead)))
            builder.store(builder.fadd(builder.load(place, align=4), now), place, align=4)
        builder.store(now, lanes(2), align=4)
        return context.get_dummy_value()

    return types.void(count, base, power, sums, types.intp), generate


def _lanes_of(context: Any, builder: Any, signature: Any, args: Any) -> Any:
    """Gives the address of a row, 0 if left out, of an argument that is an array of rows of `WIDTH`, as a vector."""

    def lanes(number: int, row: Any = None) -> Any:
        data = context.make_array(signature.args[number])(context, builder, args[number]).data
        if row is not None:
            data = builder.gep(data, [builder.mul(row, INT64(WIDTH))])
        return builder.bitcast(data, LANES.as_pointer())

    return lanes


def _all(builder: Any, value: Any) -> Any:
    """A vector of one value."""
    unused = ir.Constant(LANES, ir.Undefined)
    first = builder.insert_element(unused, value, INT32(0))
    return builder.shuffle_vector(first, unused, ir.Constant(ir.VectorType(INT32, WIDTH), [0] * WIDTH))
