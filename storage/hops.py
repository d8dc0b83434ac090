"""The stored hops of one shard."""

from pathlib import Path

import numpy as np

from storage import arrow_file
from storage.arrow_file import FileRecord
from storage.propagation import Kernel, hops
from storage.shard import Shard


def write_hops(path: Path, shard: Shard, kernel: Kernel) -> FileRecord:
    """Propagates the features of a shard and writes hop 1 to K, one column `[N, F]` each.

    Raises:
        ShoalError: The disk is full, or a value does not fit `kernel.dtype`.
    """
    columns = hops(shard.indptr, shard.indices, shard.x, kernel)
    return arrow_file.write(path, "hops", {f"hop{k}": arrow_file.fixed_rows(x) for k, x in enumerate(columns, 1)})


def hops_bytes(nodes: int, features: int, kernel: Kernel) -> int:
    """Bytes that the hops of `nodes` rows take on disk."""
    return nodes * features * kernel.hops * np.dtype(kernel.dtype).itemsize
