"""Graphs and features of many clients, gathered in as few passes over the whole graph as memory allows."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse as sp

from shoal.storage.errors import ShoalError
from shoal.storage.files.mapped import extent_of, read
from shoal.storage.graph.graph import Graph
from shoal.storage.graph.induced import Induced, count_by_client, induce
from shoal.storage.graph.layout import Layout
from shoal.storage.graph.rows import CsrRows, Rows, csr_of
from shoal.storage.progress import step
from shoal.storage.threads import batches, spread

ROWS_A_BLOCK = 65_536
# row_of, kept and the assignment; the last two are arguments, but they take memory, too.
OF_NODE = 12
# An assignment with several clients a node has further rows, and so has kept.
OF_FURTHER_ROW = 8
# Ids in three orders, and row pointers.
OF_ROW = 56
# A client's columns and, once more, in their final order.
OF_ENTRY = 8
# Bytes of the weight of an edge, and of one of its features.
OF_WEIGHT = OF_EDGE_FEATURE = 4
# Bytes of the place of an entry, where what belongs to it is looked up.
OF_PLACE = 8
# A row pointer, and columns beside values: as they are found, and in the types that are written.
OF_SPARSE_ROW, OF_VALUE = 12, 16


def gather_features(
    graph: Graph,
    assignment: np.ndarray,
    kept: np.ndarray,
    clients: Sequence[int],
    dtype: str,
    memory_limit: int,
    layout: Layout = "dense",
) -> Iterator[tuple[int, Induced, Rows]]:
    """Gathers every client's graph and its features, `dtype` `[N, F]`, the rows in the order of the graph.

    Files of the whole graph are read front to back, once for every group of clients that fits into `memory_limit`, in
    bytes beside the interpreter, a graph in memory, and blocks of about 50 MB. Raises ShoalError: it does not hold one
    client. A feature that does not fit into `dtype` becomes infinite. Layout `sparse` gives sparse rows, of features in
    memory.
    """
    sparse = csr_of(graph.x) if layout == "sparse" else None
    alone = [range(client, client + 1) for client in clients]
    for several in memory_of(graph, assignment, kept, dtype, layout).groups(alone, memory_limit):
        group = [client for (client,) in several]
        parts = list(induce(graph.indptr, graph.indices, assignment, kept, group))
        if sparse is not None:
            for client in group:
                part = parts.pop(0)
                yield client, part, _sparse_rows(sparse, part.node, dtype)
            continue
        x = _features(graph.x, np.concatenate([part.node for part in parts]), len(group), dtype)
        ends = np.cumsum([len(part.node) for part in parts])
        # The rows are copied: views would keep the arrays of the group in memory while the next group is gathered.
        for client, end in zip(group, ends):
            part = parts.pop(0)
            yield client, part, x[end - len(part.node) : end].copy()
        del x, part


@dataclass(frozen=True)
class Memory:
    """Bytes that are taken to gather clients: `fixed` for any, and those of each, int64 `[clients]`."""

    fixed: int
    needed: np.ndarray
    nodes: np.ndarray

    def of_one(self, clients: Sequence[int]) -> int:
        """Returns bytes that suffice for any of some clients alone."""
        return self.fixed + int(self.needed[list(clients)].max(initial=0))

    def groups(self, packs: Sequence[range], memory_limit: int, share: int = 1) -> list[list[range]]:
        """Packs consecutive clients that fit into memory together, of a `share` of all bytes, or not much more.

        A pack that does not fit is alone. Raises ShoalError: the limit does not hold one client.
        """
        clients = [client for pack in packs for client in pack]
        needed, most = self.needed[clients], memory_limit - self.fixed
        if (needed > most).any():
            client, least = clients[int(np.argmax(needed > most))], -(-self.of_one(clients) >> 20)
            raise ShoalError(
                f"engine.memory_limit is {-(-memory_limit >> 20)}MiB, but the shard of client {client} "
                f"({self.nodes[client]} nodes) does not fit: raise it to {least}MiB or use more clients"
            )
        groups: list[list[range]] = []
        room, even = 0, -(-int(needed.sum()) // share)
        first = np.cumsum([0, *map(len, packs)])[:-1]
        for pack, taken in zip(packs, np.add.reduceat(needed, first).tolist(), strict=True):
            if taken > room or most - room >= even:
                groups.append([])
                room = most
            groups[-1].append(pack)
            room -= taken
        return groups


def memory_of(graph: Graph, assignment: np.ndarray, kept: np.ndarray, dtype: str, layout: Layout) -> Memory:
    """Computes the memory that gathering takes; the arguments are those of `gather_features`, or several rows of such
    `[L, N]`, whose clients are gathered row by row.
    """
    nodes, entries = np.zeros((2, int(assignment.max(initial=-1)) + 1), dtype=np.int64)
    rows_LN = np.atleast_2d(assignment)
    for row_N, kept_N in zip(rows_LN, np.atleast_2d(kept)):
        count_by_client(row_N, kept_N, nodes, entries)
    row_bytes, values = graph.features * np.dtype(dtype).itemsize, np.zeros(len(nodes), dtype=np.int64)
    if layout == "sparse":
        row_bytes = OF_SPARSE_ROW
        of_node = np.diff(csr_of(graph.x).indptr)
        for row_N in rows_LN:
            values += np.bincount(row_N, weights=of_node, minlength=len(values)).astype(np.int64)
    of_entry = OF_ENTRY + OF_EDGE_FEATURE * graph.edge_features + (0 if graph.edge_weight is None else OF_WEIGHT)
    of_entry += 0 if graph.edge_weight is None and graph.edge_attr is None else OF_PLACE
    needed = nodes * (row_bytes + OF_ROW) + entries * of_entry + values * OF_VALUE
    return Memory((OF_NODE + OF_FURTHER_ROW * (len(rows_LN) - 1)) * graph.nodes, needed, nodes)


def _features(x: Any, ids: np.ndarray, clients: int, dtype: str) -> np.ndarray:
    """Reads rows of x for the ids of some clients, block by block in ascending order."""

    def rows_of(first: int, ids: np.ndarray) -> np.ndarray:
        if isinstance(x, np.memmap):
            return read(x, first, min(first + ROWS_A_BLOCK, len(x)))[ids - first]
        rows = x[ids]
        return rows.toarray() if sp.issparse(rows) else rows

    order = np.argsort(ids)
    ids = ids[order]
    rows_NF = np.empty((len(ids), x.shape[1]), dtype=dtype)
    cuts = np.searchsorted(ids, np.arange(0, x.shape[0] + ROWS_A_BLOCK, ROWS_A_BLOCK))
    blocks = [(number, low, high) for number, (low, high) in enumerate(pairwise(cuts.tolist())) if low < high]

    def gather(block: tuple[int, int, int]) -> int:
        number, low, high = block
        with np.errstate(over="ignore"):
            rows_NF[order[low:high]] = rows_of(number * ROWS_A_BLOCK, ids[low:high])
        return high - low

    with step(f"features of {clients} clients", len(ids), "nodes") as advance, spread() as on_threads:
        for several in batches(blocks):
            for rows in on_threads(gather, several):
                advance(rows)
    return rows_NF


def _sparse_rows(x: Any, ids: np.ndarray, dtype: str) -> CsrRows:
    """Selects rows of a SciPy CSR for some ids, in their order; columns ascend."""
    rows = x[ids]
    rows.sum_duplicates()
    with np.errstate(over="ignore"):
        values = rows.data.astype(dtype, copy=False)
    return CsrRows(rows.indptr.astype(np.int32), rows.indices.astype(np.int32, copy=False), values, x.shape[1])


def files_of(graph: Graph) -> list[Path]:
    """Lists the files that arrays of a graph are maps of."""
    of_edges = graph.indptr, graph.indices, graph.edge_weight, graph.edge_attr
    extents = map(extent_of, (*of_edges, graph.x, graph.y, graph.graph_of))
    return list({extent.path for extent in extents if extent is not None})
