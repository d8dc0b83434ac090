"""Edges between clients, and hops over them: sums of what neighbours' owners hold, in float64, rounded once."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numba
import numpy as np

from shoal.storage.files.mapped import read, row_blocks
from shoal.storage.kernels.counter_rng import key_of, uniform_at
from shoal.storage.kernels.prefetch import fetch_ahead
from shoal.storage.options.propagation import CrossEdges

ENTRIES_A_BLOCK = 1 << 22
# Sizes of a block of rows that are computed, in float64.
ROWS_A_BLOCK = 1 << 14
ENTRY_BYTES = 16


@dataclass(frozen=True)
class Boundary:
    """Edges of a client's rows to rows of other clients, by row, client and row there, int32 `[M]` each.

    Attributes:
        weight: Of every edge, float32 `[M]`; None: edges have none.
    """

    row: np.ndarray
    client: np.ndarray
    other: np.ndarray
    weight: np.ndarray | None = None

    def __len__(self) -> int:
        return len(self.row)

    def sums(self, hidden: bool) -> np.ndarray:
        """Counts the neighbours of every sum for a row, at one other client or `hidden` at all, int64 `[sums]`."""
        first = np.flatnonzero(_changes(self.row) | (_changes(self.client) & (not hidden)))
        return np.diff(first, append=len(self))


def boundaries(
    graph: tuple[np.ndarray, np.ndarray, np.ndarray | None],
    assignment: np.ndarray,
    row_of: np.ndarray,
    cut: np.ndarray,
    clients: Sequence[int],
    edges: CrossEdges,
) -> Iterator[Boundary]:
    """Yields edges of some clients to others, in one pass over all edges.

    In memory are 16 bytes for each of their edges, and what is given.

    Args:
        graph: Row starts, neighbours and weights, if any, of the whole graph, which may be memory maps, read front to
            back.
        assignment: Client of every node, int32 `[N]`; -1: none has it.
        row_of: Row of every node in its client's shard, int32 `[N]`.
        cut: Edges to others of every client, before any is left out, int64 `[clients]`.
    """
    indptr, indices, weight = graph
    ends = np.concatenate([[0], np.cumsum(cut[list(clients)])])
    slot = np.full(len(cut), -1, dtype=np.int32)
    slot[list(clients)] = np.arange(len(clients))
    columns = tuple(np.empty(ends[-1], dtype=np.int32) for _ in range(3))
    weights = np.empty(0 if weight is None else ends[-1], dtype=np.float32)
    cursor = ends[:-1].copy()
    key = key_of(edges.seed, "cross edges")
    for first, pointer, low, high in row_blocks(indptr, ENTRIES_A_BLOCK):
        block = first, pointer, read(indices, low, high)
        of_block = None if weight is None else read(weight, low, high)
        _cut_entries(block, of_block, assignment, slot, row_of, key, edges.share, cursor, columns, weights)
    for start, end in zip(ends, cursor):
        row, client, other = (column[start:end] for column in columns)
        order = np.lexsort((other, client, row))
        counts = Boundary(row[order], client[order], other[order]).sums(edges.hidden)
        kept = order[np.repeat(counts >= edges.min_neighbours, counts)]
        yield Boundary(row[kept], client[kept], other[kept], None if weight is None else weights[start:end][kept])


def cross_hop(
    csr: tuple[np.ndarray, np.ndarray],
    boundary: tuple[np.ndarray, np.ndarray],
    x: np.ndarray,
    scalings: tuple[np.ndarray, np.ndarray],
    dtype: str,
    weights: tuple[np.ndarray | None, np.ndarray | None] = (None, None),
) -> tuple[np.ndarray, float]:
    """Computes a hop of a client's rows, of `dtype` `[N, F]`, and its largest absolute value before rounding.

    Args:
        csr: Row starts `[N + 1]` and neighbours of the client's own rows.
        boundary: Row starts `[N + 1]` of neighbours at other clients, and where these lie in `x`.
        x: The client's rows, and behind them those of its neighbours at other clients, float32 `[N + U, F]`.
        scalings: What a row's values are multiplied by when they are sent, float64 `[N + U]`, and where they arrive,
            float64 `[N]`.
        weights: Of the edges of both, float32, where edges have any.
    """
    nodes = len(csr[0]) - 1
    hop, peak = np.empty((nodes, x.shape[1]), dtype=dtype), 0.0
    for start in range(0, nodes, ROWS_A_BLOCK):
        stop = min(start + ROWS_A_BLOCK, nodes)
        total = np.zeros((stop - start, x.shape[1]))
        _sum_rows(start, *csr, weights[0], *boundary, weights[1], x, *scalings, total)
        peak = max(peak, float(np.abs(total).max(initial=0)))
        with np.errstate(over="ignore"):
            hop[start:stop] = total
    return hop, peak


def _changes(values: np.ndarray) -> np.ndarray:
    return np.diff(values, prepend=-1) != 0


@numba.njit(cache=True)
def _cut_entries(
    block: tuple[int, np.ndarray, np.ndarray],
    weight: np.ndarray | None,
    assignment: np.ndarray,
    slot: np.ndarray,
    row_of: np.ndarray,
    key: np.uint64,
    share: float,
    cursor: np.ndarray,
    out: tuple[np.ndarray, np.ndarray, np.ndarray],
    weights: np.ndarray,
) -> None:
    (first, pointer, indices), (row, client, other) = block, out
    for v in range(len(pointer) - 1):
        node = first + v
        client_here = assignment[node]
        s = slot[client_here] if client_here >= 0 else -1
        if s < 0:
            continue
        at = cursor[s]
        for e in range(pointer[v], pointer[v + 1]):
            fetch_ahead(assignment, indices, e)
            neighbour = indices[e]
            owner = assignment[neighbour]
            if owner < 0 or owner == client_here:
                continue
            ends = (np.uint64(min(node, neighbour)) << np.uint64(32)) | np.uint64(max(node, neighbour))
            if share >= 1 or uniform_at(key, ends) < share:
                row[at], client[at], other[at] = row_of[node], owner, row_of[neighbour]
                if weight is not None:
                    weights[at] = weight[e]
                at += 1
        cursor[s] = at


@numba.njit(cache=True, nogil=True)
def _sum_rows(
    start: int,
    indptr: np.ndarray,
    indices: np.ndarray,
    weight: np.ndarray | None,
    pointer: np.ndarray,
    places: np.ndarray,
    weight_there: np.ndarray | None,
    x: np.ndarray,
    sent: np.ndarray,
    received: np.ndarray,
    out: np.ndarray,
) -> None:
    for i in range(len(out)):
        row, total = start + i, out[i]
        for f in range(x.shape[1]):
            total[f] = sent[row] * x[row, f]
        for e in range(indptr[row], indptr[row + 1]):
            j = indices[e]
            scale = sent[j] if weight is None else sent[j] * weight[e]
            for f in range(x.shape[1]):
                total[f] += scale * x[j, f]
        for e in range(pointer[row], pointer[row + 1]):
            j = places[e]
            scale = sent[j] if weight_there is None else sent[j] * weight_there[e]
            for f in range(x.shape[1]):
                total[f] += scale * x[j, f]
        for f in range(x.shape[1]):
            total[f] *= received[row]
