"""The graph of each client: its nodes, ordered so that neighbours are close, and the edges among them."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numba
import numpy as np

from shoal.storage.files.mapped import ROWS, read, row_blocks
from shoal.storage.kernels.prefetch import fetch_ahead
from shoal.storage.progress import step
from shoal.storage.runner import HERE, Runner, parts
from shoal.storage.threads import FEW, ahead, batches, spread, spread_rows

ENTRIES_A_BLOCK = 1 << 22
# Bytes of a block's entries, and of its row pointer.
BLOCK_BYTES = 1 << 25


@dataclass(frozen=True)
class Induced:
    """An induced subgraph: the global id of every row, int64 `[N]`, row starts int64, ascending columns int32."""

    node: np.ndarray
    indptr: np.ndarray
    indices: np.ndarray


def kept_entries(indptr: np.ndarray, indices: np.ndarray, assignment: np.ndarray, here: Runner = HERE) -> np.ndarray:
    """Counts neighbours of every node inside its own client, int32 `[N]`; blocks of rows are counted by `here`.

    The graph may be memory maps, read front to back.
    """
    nodes = len(indptr) - 1
    kept = np.zeros(nodes, dtype=np.int32)
    blocks = [(start, min(start + ROWS, nodes)) for start in range(0, nodes, ROWS)]
    memory = assignment.nbytes + BLOCK_BYTES
    groups = parts(blocks, here.room(memory, memory).groups)
    with step("edges inside clients", int(indptr[-1]), "entries") as advance:
        for (start, stop), count in here.results(_kept_of_rows, (indptr, indices, assignment), groups, memory):
            kept[start:stop] = count
            advance(int(indptr[stop] - indptr[start]))
    return kept


def _kept_of_rows(
    given: tuple[np.ndarray, np.ndarray, np.ndarray], blocks: Sequence[tuple[int, int]]
) -> Iterator[np.ndarray]:
    indptr, indices, assignment = given
    with spread() as on_threads:
        for start, stop in blocks:
            kept = np.zeros(stop - start, dtype=np.int32)
            for first, pointer, columns in ahead(_read_blocks(indptr[start : stop + 1], indices)):
                block = start + first, pointer, columns, assignment, kept[first:]
                spread_rows(on_threads, pointer, 0, len(pointer) - 1, _count, *block)
            yield kept


def _read_blocks(indptr: np.ndarray, indices: np.ndarray) -> Iterator[tuple[int, np.ndarray, np.ndarray]]:
    for first, pointer, low, high in row_blocks(indptr, ENTRIES_A_BLOCK):
        yield first, pointer, read(indices, low, high)


def induce(
    indptr: np.ndarray, indices: np.ndarray, assignment: np.ndarray, kept: np.ndarray, clients: Sequence[int]
) -> Iterator[Induced]:
    """Induces the subgraphs of some clients in one pass over the edges; edges between clients are dropped.

    Rows of a client are in breadth-first order from its smallest node, ties by global id, component after component.
    All requested clients are in memory together: 4 bytes for each of their entries, 8 for each of their nodes, and 12
    for each node of the whole graph, whose CSR may be memory maps, read front to back. The assignment is integers
    `[N]`.
    """
    counts = np.zeros((2, max(int(assignment.max(initial=-1)), *clients, -1) + 1), dtype=np.int64)
    count_by_client(assignment, kept, *counts)
    node_ends, entry_ends = (np.concatenate([[0], np.cumsum(count[list(clients)])]) for count in counts)
    slot = np.full(counts.shape[1], -1, dtype=np.int32)
    slot[list(clients)] = np.arange(len(clients))
    row_of = np.empty(len(assignment), dtype=np.int32)
    node = np.empty(node_ends[-1], dtype=np.int64)
    _number(assignment, slot, node_ends[:-1].copy(), node_ends, row_of, node)
    columns = np.empty(entry_ends[-1], dtype=np.int32)
    cursor = entry_ends[:-1].copy()

    def ordered(number: int) -> Induced:
        ids = node[node_ends[number] : node_ends[number + 1]]
        pointer = np.zeros(len(ids) + 1, dtype=np.int64)
        np.cumsum(kept[ids], out=pointer[1:])
        return breadth_first(ids, pointer, columns[entry_ends[number] : entry_ends[number + 1]])

    with spread() as on_threads:
        with step(f"edges of {len(clients)} clients", int(indptr[-1]), "entries") as advance:
            for first, pointer, entries in ahead(_read_blocks(indptr, indices)):
                at = np.empty(len(pointer) - 1, dtype=np.int64)
                _place(first, assignment, slot, kept, cursor, at)
                block = first, pointer, entries, assignment, row_of, at, columns
                spread_rows(on_threads, pointer, 0, len(at), _fill, *block)
                advance(len(entries))
        # Small clients are sooner done by one thread than handed to several.
        several = on_threads if entry_ends[-1] >= FEW * len(clients) else map
        for numbers in batches(range(len(clients))):
            yield from several(ordered, numbers)


def breadth_first(ids: np.ndarray, pointer: np.ndarray, columns: np.ndarray) -> Induced:
    """Puts the rows of an undirected graph in breadth-first order from the first one, component after component.

    Global ids `[N]` and columns, within a row, are ascending.
    """
    order = _breadth_first(pointer, columns)
    row_of = np.empty(len(ids), dtype=np.int32)
    row_of[order] = np.arange(len(ids), dtype=np.int32)
    new_pointer = np.zeros(len(ids) + 1, dtype=np.int64)
    np.cumsum(np.diff(pointer)[order], out=new_pointer[1:])
    new_columns = np.empty_like(columns)
    _permute((pointer, columns), order, row_of, (new_pointer, new_columns))
    return Induced(ids[order], new_pointer, new_columns)


def entries_among(part: Induced, indptr: np.ndarray, indices: np.ndarray) -> np.ndarray:
    """Looks up places of the entries of a part of a graph among those of the graph, int64 `[e]`.

    Row i of the part is row `node[i]` of the graph, and so are its columns; those of the graph ascend in a row.
    """
    places = np.empty(len(part.indices), dtype=np.int64)
    _look_up(part.node, part.indptr, part.indices, indptr, indices, places)
    return places


@numba.njit(cache=True)
def _look_up(
    node: np.ndarray,
    part_indptr: np.ndarray,
    part_indices: np.ndarray,
    indptr: np.ndarray,
    indices: np.ndarray,
    places: np.ndarray,
) -> None:
    for row in range(len(part_indptr) - 1):
        first, end = indptr[node[row]], indptr[node[row] + 1]
        for e in range(part_indptr[row], part_indptr[row + 1]):
            places[e] = first + np.searchsorted(indices[first:end], node[part_indices[e]])


@numba.njit(cache=True, nogil=True)
def _count(
    low: int,
    high: int,
    first: int,
    pointer: np.ndarray,
    indices: np.ndarray,
    assignment: np.ndarray,
    kept: np.ndarray,
) -> None:
    for row in range(low, high):
        client, same = assignment[first + row], 0
        for e in range(pointer[row], pointer[row + 1]):
            fetch_ahead(assignment, indices, e)
            # A condition, not a sum of conditions: that one is read in vectors, a third as fast.
            if assignment[indices[e]] == client:
                same += 1
        kept[row] = same


@numba.njit(cache=True)
def count_by_client(assignment: np.ndarray, kept: np.ndarray, nodes: np.ndarray, entries: np.ndarray) -> None:
    """Adds the nodes and kept entries of every client to int64 `[clients]`."""
    for v in range(len(assignment)):
        nodes[assignment[v]] += 1
        entries[assignment[v]] += kept[v]


@numba.njit(cache=True)
def _number(
    assignment: np.ndarray, slot: np.ndarray, cursor: np.ndarray, ends: np.ndarray, row_of: np.ndarray, node: np.ndarray
) -> None:
    """Numbers the nodes of each client in ascending order, and lists them client by client."""
    for v in range(len(assignment)):
        s = slot[assignment[v]]
        if s >= 0:
            node[cursor[s]] = v
            row_of[v] = cursor[s] - ends[s]
            cursor[s] += 1


@numba.njit(cache=True)
def _place(
    first: int, assignment: np.ndarray, slot: np.ndarray, kept: np.ndarray, cursor: np.ndarray, at: np.ndarray
) -> None:
    """Finds where the columns of each row of a block begin; -1 for rows of other clients."""
    for row in range(len(at)):
        s = slot[assignment[first + row]]
        at[row] = -1
        if s >= 0:
            at[row] = cursor[s]
            cursor[s] += kept[first + row]


@numba.njit(cache=True, nogil=True)
def _fill(
    low: int,
    high: int,
    first: int,
    pointer: np.ndarray,
    indices: np.ndarray,
    assignment: np.ndarray,
    row_of: np.ndarray,
    at: np.ndarray,
    columns: np.ndarray,
) -> None:
    for row in range(low, high):
        to = at[row]
        if to < 0:
            continue
        client = assignment[first + row]
        for e in range(pointer[row], pointer[row + 1]):
            fetch_ahead(assignment, indices, e)
            fetch_ahead(row_of, indices, e)
            if assignment[indices[e]] == client:
                columns[to] = row_of[indices[e]]
                to += 1


@numba.njit(cache=True, nogil=True)
def _breadth_first(pointer: np.ndarray, columns: np.ndarray) -> np.ndarray:
    nodes = len(pointer) - 1
    order = np.empty(nodes, dtype=np.int64)
    seen = np.zeros(nodes, dtype=np.bool_)
    end = 0
    at = 0
    for root in range(nodes):
        if seen[root]:
            continue
        seen[root] = True
        order[end] = root
        end += 1
        while at < end:
            row = order[at]
            at += 1
            for e in range(pointer[row], pointer[row + 1]):
                if not seen[columns[e]]:
                    seen[columns[e]] = True
                    order[end] = columns[e]
                    end += 1
    return order


@numba.njit(cache=True, nogil=True)
def _permute(csr: tuple[np.ndarray, ...], order: np.ndarray, row_of: np.ndarray, out: tuple[np.ndarray, ...]) -> None:
    """Renumbers an undirected graph. The rows that a row is written to are its own columns, and they ascend so."""
    (pointer, columns), (new_pointer, new_columns) = csr, out
    at = new_pointer[:-1].copy()
    for row in range(len(order)):
        for e in range(pointer[order[row]], pointer[order[row] + 1]):
            neighbour = row_of[columns[e]]
            new_columns[at[neighbour]] = row
            at[neighbour] += 1
