"""One client's graph: one memory-mapped Arrow file."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa

from storage import arrow_file
from storage.arrow_file import FileRecord, MappedFile, require_content, require_none
from storage.bounds import Limits, check_adjacency, check_ids, check_labels, check_rows
from storage.errors import ShoalError
from storage.induced import Induced
from storage.rows import CsrRows, Rows

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
        x: Features, float32 or float16 `[N, F]`, dense or sparse.
    """

    client: int
    node: np.ndarray
    label: np.ndarray
    indptr: np.ndarray
    indices: np.ndarray
    x: Rows

    @property
    def nodes(self) -> int:
        return len(self.node)

    @property
    def entries(self) -> int:
        return len(self.indices)


def write_shard(path: Path, client: int, part: Induced, label: np.ndarray, x: Rows) -> FileRecord:
    """Writes one client's shard.

    Args:
        path: File to write.
        client: Number of the client, for errors.
        part: The client's rows and induced edges.
        label: Label of every node of the whole graph, `[nodes]`.
        x: Features of the client's rows, float32 or float16 `[N, F]`, dense or sparse; infinity stands for one too
            large for float16.

    Raises:
        ShoalError: 2^31 entries or more, of edges or of sparse features, a feature that did not fit float16, or the
            disk is full.
    """
    if len(part.indices) >= MAX_ENTRIES:
        raise ShoalError(
            f"client {client}: {len(part.indices)} adjacency entries, a shard holds fewer than 2^31; use more clients"
        )
    if isinstance(x, CsrRows) and x.entries >= MAX_ENTRIES:
        raise ShoalError(
            f"client {client}: {x.entries} feature values, a sparse shard holds fewer than 2^31; use more clients or "
            "data.layout dense"
        )
    if x.dtype == np.float16 and np.isinf(x if isinstance(x, np.ndarray) else x.values).any():
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
        "x": arrow_file.rows_column(x),
    }
    return arrow_file.write(path, "shard", columns)


def open_shard(path: Path, client: int, record: FileRecord | None = None, limits: Limits | None = None) -> Shard:
    """Maps a shard and checks size, columns and the ends of the row pointer.

    Args:
        path: The file.
        client: Number of the client.
        record: What the manifest says of the file.
        limits: Given, every byte and every number but the features is checked first.

    Raises:
        ShoalError: The file is missing, damaged, or another kind of file.
    """
    if limits is not None:
        if record is not None:
            require_content(path, record)
        # In a map of its own: what is read here and by no model shall not stay in the memory of this process.
        require_none(path, bounds_of(_mapped(path, client, record), limits))
    return _mapped(path, client, record)


def bounds_of(shard: Shard, limits: Limits) -> list[str]:
    """Reads the whole adjacency, all ids and all labels, and says what is out of bounds."""
    faults: list[str] = []
    check_ids(shard.node, limits.nodes, "node id", faults.append)
    check_labels(shard.label, limits.classes, faults.append)
    check_adjacency(shard.indptr, shard.indices, shard.nodes, faults.append)
    check_rows("x", shard.x, shard.nodes, limits.features, faults.append)
    if isinstance(shard.x, CsrRows) != (limits.layout == "sparse"):
        faults.append(f"x is not {limits.layout}")
    return faults


def _mapped(path: Path, client: int, record: FileRecord | None) -> Shard:
    file = MappedFile(path, "shard", record)
    indptr, indices = file.lists("neighbors")
    if len(indptr) != file.rows + 1 or indptr[0] != 0 or indptr[-1] != len(indices):
        raise ShoalError(
            f"{path}: the row pointer does not fit the neighbours; delete the file and run `shoal prepare` again"
        )
    return Shard(client, file.primitive("node"), file.primitive("label"), indptr, indices, file.features("x"))
