"""Label propagation, moments and entropies of a tile of classes: the inner loops, on one core.

A row of labels is read once for every neighbour. A tile of one or two cache lines of all nodes of a client stays near
the processor from step to step, where whole rows would not; and its sums stay in registers.

The labels Y are held as Z = D^{-1/2} Y, for which one step of FedGTA's eq. 3 needs no scaling of what a node sends,

    Z^s = a Z^0 + (1 - a) D^{-1} (A + I) Z^{s-1},

and which rows scaled to sum to one are the same for.

Axes: N nodes, C classes, W = 16 or 32 classes of a tile, of which those beyond C are zero; K orders.
"""

from typing import Any

import numba
import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from shoal.storage.kernels.exponentials import log
from shoal.storage.kernels.prefetch import prefetch

LANES, WIDTH = 16, 32
CACHE_LINE = 64
# Entries between a prefetch and its use.
AHEAD = 16
# Sums of that many rows are float32, sums of these float64.
ROWS = 32
# Orders of moments that are summed at once.
ORDERS = 6
BYTE, INT32, INT64 = ir.IntType(8), ir.IntType(32), ir.IntType(64)
VECTOR = ir.VectorType(ir.FloatType(), LANES)
# Row pointer of A, `[N + 1]`, and columns of its entries, int32 `[E]`, not checked.
Adjacency = tuple[np.ndarray, np.ndarray]


def tile_widths(classes: int) -> list[int]:
    """Lists W of all tiles, in the order of the classes."""
    return [min(WIDTH, classes - first + -(classes - first) % LANES) for first in range(0, classes, WIDTH)]


def empty_tiles(count: int, nodes: int, width: int) -> np.ndarray:
    """Allocates tiles, float32 `[count, N, W]`, from a cache line on."""
    size = count * nodes * width
    memory = np.empty(size + CACHE_LINE // 4, dtype=np.float32)
    first = -memory.ctypes.data % CACHE_LINE // 4
    return memory[first : first + size].reshape(count, nodes, width)


@numba.njit(cache=True, nogil=True)
def fill(y: np.ndarray, first: int, sent: np.ndarray, z: np.ndarray) -> None:
    """Writes Z = diag(sent) Y of the classes from `first` on; all are float32."""
    nodes, width = z.shape
    count = min(width, y.shape[1] - first)
    flat = y.reshape(-1)
    for row in range(nodes):
        if row + AHEAD < nodes:
            for k in range(0, count, LANES):
                prefetch(flat, (row + AHEAD) * y.shape[1] + first + k)
        # Numba makes vectors of slices alone: an index that is a sum might be negative.
        source, target, factor = y[row, first : first + count], z[row], sent[row]
        for k in range(count):
            target[k] = factor * source[k]
        for k in range(count, width):
            target[k] = 0


@numba.njit(cache=True, nogil=True)
def propagate(
    graph: Adjacency,
    weight: np.ndarray | None,
    z: np.ndarray,
    seeds: tuple[np.ndarray, np.float32],
    shares: np.ndarray,
    out: np.ndarray,
) -> None:
    """Computes out = share seed + diag(shares) (A + I) z, float32 `[N, W]` each, at a cache line; `out` is not z.

    `seeds` are the seed and its share; `weight` are A's entries, float32 `[E]`, None: ones.
    """
    (indptr, indices), (seed, seed_weight) = graph, seeds
    for row in range(len(z)):
        entry, stop, share = indptr[row], indptr[row + 1], shares[row]
        if z.shape[1] == WIDTH:
            _step(2, z, indices, weight, row, entry, stop, share, seed, seed_weight, out)
        else:
            _step(1, z, indices, weight, row, entry, stop, share, seed, seed_weight, out)


@numba.njit(cache=True, nogil=True)
def propagate_sums(
    graph: Adjacency,
    weight: np.ndarray | None,
    sums: np.ndarray,
    seeds: tuple[np.ndarray, float],
    shares: np.ndarray,
    out: np.ndarray,
) -> None:
    """Propagates the sums of rows, float64 `[N]`, as `propagate` does those of all classes at once."""
    (indptr, indices), (seed, seed_weight) = graph, seeds
    for row in range(len(sums)):
        total = sums[row]
        for entry in range(indptr[row], indptr[row + 1]):
            total += sums[indices[entry]] if weight is None else weight[entry] * sums[indices[entry]]
        out[row] = seed_weight * seed[row] + shares[row] * total


@numba.njit(cache=True, nogil=True)
def sum_powers(z: np.ndarray, scales: np.ndarray, origin: np.ndarray, out: np.ndarray) -> None:
    """Computes out[k] = Σ_v (scales_v z_v - origin)^(k+1), float64 `[K, W]`, of float32 sums over some rows each."""
    orders, width = out.shape
    powers = np.empty((ROWS, LANES), dtype=np.float32)
    part = np.empty((orders, width), dtype=np.float32)
    out[:] = 0
    for first in range(0, len(z), ROWS):
        stop = min(first + ROWS, len(z))
        for column in range(0, width, LANES):
            order = 0
            while order + ORDERS <= orders:
                _add_powers(ORDERS, z, scales, origin, first, stop, column, powers, order, part)
                order += ORDERS
            while order < orders:
                _add_powers(1, z, scales, origin, first, stop, column, powers, order, part)
                order += 1
        out += part


@numba.njit(cache=True, nogil=True, fastmath={"reassoc", "contract", "nsz"})
def add_negative_entropies(z: np.ndarray, scales: np.ndarray, out: np.ndarray) -> None:
    """Adds Σ_c y_c log y_c of the rows of Y = diag(scales) Z, in float32, to out, float64 `[N]`."""
    for row in range(len(z)):
        total = np.float32(0)
        for k in range(z.shape[1]):
            y = scales[row] * z[row, k]
            total += y * log(y)
        out[row] += total


# The functions below are made of LLVM's vectors: numba makes code of scalars of loops as short as these.


@intrinsic(prefer_literal=True)
def _step(
    context: Any,
    vectors: Any,
    z: Any,
    indices: Any,
    weight: Any,
    row: Any,
    start: Any,
    stop: Any,
    share: Any,
    seed: Any,
    seed_weight: Any,
    out: Any,
) -> Any:
    """Computes out[row] = seed_weight seed[row] + share Σ z[j] over j = row and j in indices[start:stop].

    With `weight`, what a neighbour adds is multiplied by the weight of its entry. Neighbours to come are prefetched.
    """
    count = vectors.literal_value

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        senders = context.make_array(signature.args[2])(context, builder, args[2])
        last = builder.sub(senders.nitems, INT64(1))
        row, start, stop, share, _, seed_weight = args[4:10]
        of_z, of_seed, of_out = (_rows_of(context, builder, signature, args, place, count) for place in (1, 8, 10))
        fetch = cgutils.get_or_insert_function(
            builder.module, ir.FunctionType(ir.VoidType(), [BYTE.as_pointer(), INT32, INT32, INT32]), "llvm.prefetch.p0"
        )

        def neighbour(entry: Any) -> list[Any]:
            return of_z(builder.zext(builder.load(builder.gep(senders.data, [entry])), INT64))

        sums = [cgutils.alloca_once_value(builder, builder.load(place, align=4)) for place in of_z(row)]
        with cgutils.for_range_slice(builder, start, stop, INT64(1), INT64) as (entry, _):
            ahead = builder.add(entry, INT64(AHEAD))
            for place in neighbour(builder.select(builder.icmp_signed("<", ahead, last), ahead, last)):
                builder.call(fetch, [builder.bitcast(place, BYTE.as_pointer()), INT32(0), INT32(3), INT32(1)])
            for total, place in zip(sums, neighbour(entry)):
                sent = builder.load(place, align=4)
                if weight != types.none:
                    weights = context.make_array(signature.args[3])(context, builder, args[3]).data
                    sent = builder.fmul(sent, _all(builder, builder.load(builder.gep(weights, [entry]))))
                builder.store(builder.fadd(builder.load(total), sent), total)
        for total, begun, place in zip(sums, of_seed(row), of_out(row)):
            kept = builder.fmul(_all(builder, seed_weight), builder.load(begun, align=4))
            received = builder.fmul(_all(builder, share), builder.load(total))
            builder.store(builder.fadd(kept, received), place, align=4)
        return context.get_dummy_value()

    entry, number = types.intp, types.float32
    return types.void(vectors, z, indices, weight, entry, entry, entry, number, seed, number, out), generate


@intrinsic(prefer_literal=True)
def _add_powers(
    context: Any,
    count: Any,
    rows: Any,
    scales: Any,
    origin: Any,
    first: Any,
    stop: Any,
    column: Any,
    powers: Any,
    order: Any,
    sums: Any,
) -> Any:
    """Sums powers of rows first:stop, from lane `column` on: sums[order + i] = Σ (scale row - origin)^(order + i + 1).

    There are `count` of these sums, and `powers` are those that the rows have after lower orders; they grow.
    """

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        first, stop, column, _, order, _ = args[4:]
        factors = context.make_array(signature.args[2])(context, builder, args[2]).data
        places = [_rows_of(context, builder, signature, args, place) for place in (1, 3, 7, 9)]
        of_rows, of_origin, of_powers, of_sums = places
        begins = builder.icmp_signed("==", order, INT64(0))
        centre = builder.load(of_origin(INT64(0), column)[0], align=4)
        totals = [cgutils.alloca_once_value(builder, VECTOR([0.0] * LANES)) for _ in range(count.literal_value)]
        with cgutils.for_range_slice(builder, first, stop, INT64(1), INT64) as (row, _):
            scale = _all(builder, builder.load(builder.gep(factors, [row])))
            base = builder.fsub(builder.fmul(scale, builder.load(of_rows(row, column)[0], align=4)), centre)
            (place,) = of_powers(builder.sub(row, first))
            power = builder.select(begins, VECTOR([1.0] * LANES), builder.load(place, align=4))
            for total in totals:
                power = builder.fmul(power, base)
                builder.store(builder.fadd(builder.load(total), power), total)
            builder.store(power, place, align=4)
        for ahead, total in enumerate(totals):
            builder.store(builder.load(total), of_sums(builder.add(order, INT64(ahead)), column)[0], align=4)
        return context.get_dummy_value()

    place = types.intp
    return types.void(count, rows, scales, origin, place, place, place, powers, place, sums), generate


def _rows_of(context: Any, builder: Any, signature: Any, args: Any, number: int, vectors: int = 1) -> Any:
    """Gives the addresses of the vectors of a row, from a column on, of an argument that is a contiguous array."""
    array = context.make_array(signature.args[number])(context, builder, args[number])
    stride = cgutils.unpack_tuple(builder, array.shape)[-1]

    def places(row: Any, column: Any = None) -> list[Any]:
        first = builder.mul(row, stride)
        first = first if column is None else builder.add(first, column)
        starts = [builder.gep(array.data, [builder.add(first, INT64(LANES * k))]) for k in range(vectors)]
        return [builder.bitcast(start, VECTOR.as_pointer()) for start in starts]

    return places


def _all(builder: Any, value: Any) -> Any:
    """Makes a vector of one value."""
    unused = VECTOR(ir.Undefined)
    first = builder.insert_element(unused, value, INT32(0))
    return builder.shuffle_vector(first, unused, ir.VectorType(INT32, LANES)([0] * LANES))
