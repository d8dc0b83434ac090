"""The stored hops of one shard."""

from pathlib import Path

import numba
import numpy as np
import pyarrow as pa

from shoal.storage.graph.edge_weights import weights_among
from shoal.storage.graph.induced import induced, kept_entries
from shoal.storage.graph.propagation import hops
from shoal.storage.graph.rows import Rows
from shoal.storage.options.propagation import PropagationOptions
from shoal.storage.store import arrow_file
from shoal.storage.store.arrow_file import FileRecord, MappedFile, require_content, require_none
from shoal.storage.store.bounds import Limits, check_adjacency, check_ids, check_rows, check_weights
from shoal.storage.store.shard import Shard, weights_column, weights_of
from shoal.storage.store.split import Split


def write_hops(path: Path, shard: Shard, propagation: PropagationOptions) -> FileRecord:
    """Propagates the features of a shard and writes hop 1 to K, one column `[N, F]` each.

    A hop of sparse features is sparse where that gains. Raises ShoalError: the disk is full, or a value does not
    fit `propagation.dtype`.
    """
    columns = hops(shard.indptr, shard.indices, shard.x, propagation, shard.edge_weight)
    if propagation.rows == "labelled":
        return _write_labelled(path, shard, columns)
    return arrow_file.write(path, "hops", {f"hop{k}": arrow_file.rows_column(x) for k, x in enumerate(columns, 1)})


def _write_labelled(path: Path, shard: Shard, columns: list[Rows]) -> FileRecord:
    """Writes the labelled rows and their neighbours as a graph of its own, features included."""
    dropped = (~labelled_and_neighbours(shard)).astype(np.int32)
    kept = kept_entries(shard.indptr, shard.indices, dropped)
    part = next(induced(shard.indptr, shard.indices, dropped, kept, [0]))
    neighbors = pa.ListArray.from_arrays(pa.array(part.indptr.astype(np.int32)), pa.array(part.indices))
    rows = {f"hop{k}": arrow_file.rows_column(x[part.node]) for k, x in enumerate([shard.x, *columns])}
    if shard.edge_weight is not None:
        rows |= weights_column(part, weights_among(part, shard.indptr, shard.indices, shard.edge_weight))
    return arrow_file.write(path, "hops", {"row": pa.array(part.node), "neighbors": neighbors, **rows})


def labelled_and_neighbours(shard: Shard) -> np.ndarray:
    """The rows that `rows: labelled` keeps, bool `[N]`."""
    kept = shard.label >= 0
    _add_neighbours(shard.indptr, shard.indices, np.flatnonzero(kept), kept)
    return kept


@numba.njit(cache=True)
def _add_neighbours(indptr: np.ndarray, indices: np.ndarray, rows: np.ndarray, kept: np.ndarray) -> None:
    for row in rows:
        for e in range(indptr[row], indptr[row + 1]):
            kept[indices[e]] = True


def open_hops(
    path: Path,
    nodes: int,
    propagation: PropagationOptions,
    record: FileRecord | None = None,
    limits: Limits | None = None,
) -> MappedFile:
    """Maps the hops of a shard; with limits, every byte, the columns and rows and edges of labelled nodes are checked.

    Raises ShoalError: the file is missing, damaged, or of another shard or kernel.
    """
    if limits is not None and record is not None:
        require_content(path, record)
    file = MappedFile(path, "hops", record)
    if limits is not None:
        require_none(path, _faults_of(file, nodes, propagation, limits))
    return file


def _faults_of(file: MappedFile, nodes: int, propagation: PropagationOptions, limits: Limits) -> list[str]:
    labelled = propagation.rows == "labelled"
    hop_names = [f"hop{k}" for k in range(0 if labelled else 1, propagation.hops + 1)]
    weights = ["weights"] if limits.weighted else []
    names = ["row", "neighbors", *hop_names, *weights] if labelled else hop_names
    if file.names != names:
        return [f"columns {', '.join(file.names)} and not {', '.join(names)}"]
    faults: list[str] = []
    if labelled:
        indptr, indices = file.lists("neighbors")
        check_ids(file.primitive("row"), nodes, "row", faults.append)
        check_adjacency(indptr, indices, file.rows, faults.append)
        check_weights(weights_of(file, indptr), limits.weighted, faults.append)
    elif file.rows != nodes:
        faults.append(f"{file.rows} rows for a shard of {nodes}")
    for name in hop_names:
        check_rows(name, file.features(name), file.rows, limits.features, faults.append)
    return faults


def only_labelled(file: MappedFile, shard: Shard, split: Split) -> tuple[Shard, Split, list[Rows]]:
    """Labelled nodes of a client, their neighbours, edges and degrees among them, and the hops of the whole shard."""
    row = file.primitive("row")
    indptr, indices = file.lists("neighbors")
    x, *further = (file.features(name) for name in file.names if name.startswith("hop"))
    new_row = np.full(shard.nodes, -1, dtype=np.int32)
    new_row[row] = np.arange(len(row), dtype=np.int32)
    parts = (np.sort(new_row[rows]) for rows in (split.train, split.val, split.test))
    own = Shard(
        shard.client, shard.node[row], shard.label[row], indptr, indices, x, edge_weight=weights_of(file, indptr)
    )
    return own, Split(*parts), further


def hops_bytes(rows: int, features: int, propagation: PropagationOptions) -> int:
    """Bytes on disk of the hops of `rows` rows that are kept; sparse ones take fewer."""
    kept = propagation.hops + (propagation.rows != "all")
    return rows * features * kept * np.dtype(propagation.dtype).itemsize


def hop_memory(nodes: int, entries: int, features: int, propagation: PropagationOptions, weighted: bool = False) -> int:
    """Bytes of memory that computing the hops of one shard takes, its mapped file included; sparse ones take less."""
    of_entry = 12 if weighted else 8
    return nodes * (features * (4 + propagation.hops * np.dtype(propagation.dtype).itemsize) + 50) + of_entry * entries
