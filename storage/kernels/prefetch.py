"""Prefetching for numba's loops that read at random places; numba offers none on a CPU."""

from typing import Any

from llvmlite import ir
from numba.core import cgutils, types
from numba.extending import intrinsic

# Entries between a prefetch and its use: enough to hide the latency of memory, few enough to stay in the cache.
AHEAD = 64


@intrinsic
def prefetch(typing_context: Any, array: Any, index: Any) -> Any:
    """Starts to load `array[index]` of a one-dimensional contiguous array into the cache; index must be in bounds."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        number = context.cast(builder, args[1], signature.args[1], types.int64)
        _start_to_load(builder, context.make_array(signature.args[0])(context, builder, args[0]), number)
        return context.get_dummy_value()

    return types.void(array, index), generate


@intrinsic
def fetch_ahead(typing_context: Any, array: Any, indices: Any, entry: Any) -> Any:
    """Starts to load the value that a loop over `array[indices[entry]]` reads `AHEAD` entries later.

    A compiled function would count references of both arrays at every call, which takes longer than the loop.
    """

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        values, places = (
            context.make_array(kind)(context, builder, arg) for kind, arg in zip(signature.args, args[:2])
        )
        later = builder.add(context.cast(builder, args[2], signature.args[2], types.int64), ir.IntType(64)(AHEAD))
        with builder.if_then(builder.icmp_signed("<", later, places.nitems)):
            index = builder.load(builder.gep(places.data, [later]))
            _start_to_load(builder, values, context.cast(builder, index, signature.args[1].dtype, types.int64))
        return context.get_dummy_value()

    return types.void(array, indices, entry), generate


def _start_to_load(builder: Any, array: Any, number: Any) -> None:
    byte, int32 = ir.IntType(8).as_pointer(), ir.IntType(32)
    function = cgutils.get_or_insert_function(
        builder.module, ir.FunctionType(ir.VoidType(), [byte, int32, int32, int32]), "llvm.prefetch.p0"
    )
    builder.call(function, [builder.bitcast(builder.gep(array.data, [number]), byte), *map(int32, (0, 3, 1))])
