"""Computations on one shard before any training: its hops, and the graph of its training nodes."""

from collections.abc import Callable
from pathlib import Path

import numba
import numpy as np
import pyarrow as pa
import scipy.sparse as sp

from shoal.storage.graph.edge_weights import weights_among
from shoal.storage.graph.induced import Induced, breadth_first, induce, kept_entries
from shoal.storage.graph.propagation import hops
from shoal.storage.graph.rows import CsrRows, Rows
from shoal.storage.options.propagation import PropagationOptions
from shoal.storage.shards import arrow_file
from shoal.storage.shards.arrow_file import FileRecord
from shoal.storage.shards.shard import Shard, weights_column

# Rows of a graph by which those with a labelled neighbour are counted.
SAMPLED = 10_000


def write_hops(path: Path, shard: Shard, propagation: PropagationOptions, relations: int = 0) -> FileRecord:
    """Writes the hops of a shard to a file of their own; errors of `hop_columns`, or the disk is full."""
    return arrow_file.write(path, "hops", hop_columns(shard, propagation, relations=relations))


def hop_columns(
    shard: Shard, propagation: PropagationOptions, packed: bool = False, relations: int = 0
) -> dict[str, pa.Array]:
    """Propagates the features of a shard: hop 1 to K, of each relation or of all, one column `[N, F]` each.

    A hop of sparse features is sparse where that gains. Raises ShoalError: a value does not fit `propagation.dtype`, or
    edges are of no kinds.
    """
    hops_NF = hops_of(shard, propagation, relations)
    # The same hop of another client in a pack may be dense.
    column = arrow_file.either_column if packed and isinstance(shard.x, CsrRows) else arrow_file.rows_column
    return columns_of_hops(shard, hops_NF, propagation, column)


def hops_of(shard: Shard, propagation: PropagationOptions, relations: int) -> list[Rows]:
    """Computes hop 1 to K of all rows, each `[N, F]`; where they are of relations, those of each of so many."""
    if not propagation.relations:
        return hops(shard.indptr, shard.indices, shard.x, propagation, shard.edge_weight)
    # Few runs need it.
    from shoal.storage.graph.edges.relation_hops import relation_hops

    assert shard.edge_attr is not None, "hops a relation are of edges with kinds"
    kind_ER = shard.edge_attr[:, :relations]
    return relation_hops(shard.indptr, shard.indices, kind_ER, shard.x, propagation.hops, propagation.dtype)


def columns_of_hops(
    shard: Shard,
    found: list[Rows],
    propagation: PropagationOptions,
    column: Callable[[Rows], pa.Array] = arrow_file.rows_column,
) -> dict[str, pa.Array]:
    """Makes the columns of hop 1 to K of all rows of a shard."""
    if propagation.computed:
        row = rows_on_disk(shard, propagation)
        return {"row": pa.array(row), **{f"hop{k}": column(x[row]) for k, x in enumerate(found, 1)}}
    if propagation.rows == "labelled":
        return _of_labelled(shard, found, column)
    return {f"hop{k}": column(x) for k, x in enumerate(found, 1)}


def _of_labelled(shard: Shard, found: list[Rows], column: Callable[[Rows], pa.Array]) -> dict[str, pa.Array]:
    """Cuts out the labelled rows and their neighbours as a graph, features included."""
    part, weight = labelled_graph(shard)
    neighbors = pa.ListArray.from_arrays(pa.array(part.indptr.astype(np.int32)), pa.array(part.indices))
    rows = {"hop0": arrow_file.rows_column(shard.x[part.node])}
    rows |= {f"hop{k}": column(x[part.node]) for k, x in enumerate(found, 1)}
    return {"row": pa.array(part.node), "neighbors": neighbors, **rows, **weights_column(part.indptr, weight)}


def labelled_graph(shard: Shard) -> tuple[Induced, np.ndarray | None]:
    """Selects what `rows: labelled` shows: labelled rows, their neighbours, edges among them, and weights."""
    dropped = (~labelled_and_neighbours(shard)).astype(np.int32)
    kept = kept_entries(shard.indptr, shard.indices, dropped)
    part = next(induce(shard.indptr, shard.indices, dropped, kept, [0]))
    if shard.edge_weight is None:
        return part, None
    return part, weights_among(part, shard.indptr, shard.indices, shard.edge_weight)


def rows_on_disk(shard: Shard, propagation: PropagationOptions) -> np.ndarray:
    """Lists the rows whose hops are on disk, where these are not all of a shard, ascending, `[n]`."""
    return np.flatnonzero(shard.label >= 0 if propagation.computed else labelled_and_neighbours(shard))


def labelled_and_neighbours(shard: Shard) -> np.ndarray:
    """Marks the rows that `rows: labelled` shows, bool `[N]`."""
    kept = shard.label >= 0
    _add_neighbours(shard.indptr, shard.indices, np.flatnonzero(kept), kept)
    return kept


@numba.njit(cache=True)
def _add_neighbours(indptr: np.ndarray, indices: np.ndarray, rows: np.ndarray, kept: np.ndarray) -> None:
    for row in rows:
        for e in range(indptr[row], indptr[row + 1]):
            kept[indices[e]] = True


def training_graph(shard: Shard, train: np.ndarray) -> tuple[Induced, np.ndarray]:
    """Induces the graph of a client's training nodes.

    Its rows are in the order of a shard of these nodes alone: breadth first from the smallest, ties by global id. It
    reveals nothing of the other nodes and their edges. In memory are 5 bytes for each entry of the shard.

    Args:
        train: Rows of its training nodes, `[n]`.

    Returns:
        The graph, and the row in the shard of each of its rows, int64 `[n]`.
    """
    row = train[np.argsort(shard.node[train])]
    entries = np.ones(shard.entries, dtype=np.int8)
    adjacency = sp.csr_array((entries, shard.indices, shard.indptr), shape=(shard.nodes, shard.nodes))
    among = adjacency[row][:, row]
    among.sort_indices()
    number = np.arange(len(row), dtype=np.int64)
    part = breadth_first(number, among.indptr.astype(np.int64), among.indices.astype(np.int32))
    row = row[part.node].astype(np.int64)
    return Induced(shard.node[row], part.indptr, part.indices), row


def hops_bytes(rows: int, features: int, propagation: PropagationOptions, relations: int = 0) -> int:
    """Counts bytes on disk of the hops of `rows` rows that are kept; sparse ones take fewer."""
    kept = propagation.stored(relations) + (propagation.rows != "all" and not propagation.computed)
    return rows * features * kept * np.dtype(propagation.dtype).itemsize


def rows_to_keep(indptr: np.ndarray, indices: np.ndarray, label: np.ndarray, propagation: PropagationOptions) -> int:
    """Counts the rows of a graph with hops on disk; with neighbours, an estimate from rows spread evenly."""
    if propagation.folder is None or not len(label):
        return 0
    if propagation.computed:
        return int((label >= 0).sum())
    if propagation.rows == "all":
        return len(label)
    rows = np.unique(np.linspace(0, len(label) - 1, SAMPLED, dtype=np.int64)).tolist()
    shown = (label[row] >= 0 or (label[indices[indptr[row] : indptr[row + 1]]] >= 0).any() for row in rows)
    return -(-sum(map(bool, shown)) * len(label) // len(rows))


def hop_memory(
    nodes: int,
    entries: int,
    features: int,
    propagation: PropagationOptions,
    weighted: bool = False,
    relations: int = 0,
) -> int:
    """Estimates bytes of memory to compute the hops of one shard, its map included; sparse ones take less."""
    of_entry = 12 if weighted else 8
    # A step of relations also holds the sum of the last one, and the shares of a relation.
    beside, of_entry = (4, of_entry + 4 * relations + 16) if propagation.relations else (0, of_entry)
    of_hops = propagation.stored(relations) * np.dtype(propagation.dtype).itemsize
    return nodes * (features * (4 + beside + of_hops) + 50) + of_entry * entries
