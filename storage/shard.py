"""One client's graph: one memory-mapped Arrow file."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa

from storage import arrow_file
from storage.arrow_file import FileRecord, MappedFile
from storage.errors import ShoalError
from storage.induced import Induced

MAX_ENTRIES = 2**31


@dataclass(frozen=True)
class Shard:
    """The graph of one client, zero-copy over its file.

    Attributes:
        client: Number of the client.
        node: Global id of every row, int64 `[N]`.
        label: Label of every row, int32 `[N]`; -1 is unlabelled.
        indptr: Row pointer, int32 `[N + 1]`.
        indices: Rows of the neighbours, int32 `[E]`, both directions of every edge, ascending in a row.
        x: Features, float32 or float16 `[N, F]`.
    """

    client: int
    node: np.ndarray
    label: np.ndarray
    indptr: np.ndarray
    indices: np.ndarray
    x: np.ndarray

    @property
    def nodes(self) -> int:
        return len(self.node)

    @property
    def entries(self) -> int:
        return len(self.indices)


def write_shard(path: Path, client: int, part: Induced, label: np.ndarray, x: np.ndarray) -> FileRecord:
    """Writes one client's shard.

    Args:
        path: File to write.
        client: Number of the client, for errors.
        part: The client's rows and induced edges.
        label: Label of every node of the whole graph, `[nodes]`.
        x: Features of the client's rows, float32 or float16 `[N, F]`; infinity stands for one too large for float16.

    Raises:
        ShoalError: 2^31 entries or more, a feature that did not fit float16, or the disk is full.
    """
    if len(part.indices) >= MAX_ENTRIES:
        raise ShoalError(
            f"client {client}: {len(part.indices)} adjacency entries, a shard holds fewer than 2^31; use more clients"
        )
    if x.dtype == np.float16 and np.isinf(x).any():
        raise ShoalError(
            f"data.dtype: float16 ends at {np.finfo(np.float16).max:g}, but client {client} has a larger feature; "
            "use float32"
        )
    columns = {
        "node": pa.array(part.node),
        "label": pa.array(label[part.node].astype(np.int32)),
        "neighbors": pa.ListArray.from_arrays(
            pa.array(part.indptr.astype(np.int32)), pa.array(part.indices.astype(np.int32))
        ),
        "x": arrow_file.fixed_rows(x),
    }
    return arrow_file.write(path, "shard", columns)


def open_shard(path: Path, client: int, record: FileRecord | None = None) -> Shard:
    """Maps a shard and checks size, columns and the ends of the row pointer.

    Raises:
        ShoalError: The file is missing, damaged, or another kind of file.
    """
    file = MappedFile(path, "shard", record)
    indptr, indices = file.lists("neighbors")
    if len(indptr) != file.rows + 1 or indptr[0] != 0 or indptr[-1] != len(indices):
        raise ShoalError(
            f"{path}: the row pointer does not fit the neighbours; delete the file and run `shoal prepare` again"
        )
    return Shard(client, file.primitive("node"), file.primitive("label"), indptr, indices, file.matrix("x"))


def check_bounds(shard: Shard, classes: int, report: Callable[[str], None]) -> None:
    """Reads the whole adjacency and all labels, and reports each kind of value that is out of bounds."""
    if np.any(np.diff(shard.indptr) < 0):
        report("the row pointer decreases")
    if shard.entries and (shard.indices.min() < 0 or shard.indices.max() >= shard.nodes):
        report(f"a neighbour lies outside rows 0 to {shard.nodes - 1}")
    if shard.nodes and (shard.label.min() < -1 or shard.label.max() >= classes):
        report(f"a label lies outside -1 to {classes - 1}")
