"""Prefetching for numba's loops that read at random places; numba offers none on a CPU."""

from typing import Any

import numba
import numpy as np
from llvmlite import ir
from numba.core import cgutils, types
from numba.extending import intrinsic

# Entries between a prefetch and its use: enough to hide the latency of memory, few enough to stay in the cache.
AHEAD = 64


@intrinsic
def prefetch(typing_context: Any, array: Any, index: Any) -> Any:
    """Starts to load `array[index]` of a one-dimensional contiguous array into the cache; index must be in bounds."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        made = context.make_array(signature.args[0])(context, builder, args[0])
        number = context.cast(builder, args[1], signature.args[1], types.int64)
        byte, int32 = ir.IntType(8).as_pointer(), ir.IntType(32)
        function = cgutils.get_or_insert_function(
            builder.module, ir.FunctionType(ir.VoidType(), [byte, int32, int32, int32]), "llvm.prefetch.p0"
        )
        pointer = builder.bitcast(builder.gep(made.data, [number]), byte)
        builder.call(function, [pointer, int32(0), int32(3), int32(1)])
        return context.get_dummy_value()

    return types.void(array, index), generate


@numba.njit(cache=True, inline="always")
def fetch_ahead(array: np.ndarray, indices: np.ndarray, entry: int) -> None:
    """Starts to load the value that a loop over `array[indices[entry]]` reads `AHEAD` entries later."""
    if entry + AHEAD < len(indices):
        prefetch(array, indices[entry + AHEAD])
