"""Multilevel partition of a graph whose edges stay on disk: only arrays of nodes are in memory."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from shoal.partition.methods.cover import fill_empty
from shoal.partition.methods.metis import part_graph
from shoal.partition.methods.options import PartitionOptions
from shoal.partition.methods.workspace import Workspace
from shoal.partition.out_of_core.balance import balance, fill_lightest, refine, size_bound
from shoal.partition.out_of_core.blocks import Level, blocks
from shoal.partition.out_of_core.contraction import cluster, contract, map_int32, number_clusters
from shoal.storage.errors import ShoalError
from shoal.storage.files.mapped import ROWS, read
from shoal.storage.graph.graph import Graph

# Bytes, measured as peak resident memory and rounded up. METIS needs less on graphs of few nodes and many edges.
BYTES_OF_NODE = 16
BYTES_OF_COARSE_NODE = 24
OF_METIS_NODE = 240
OF_METIS_ENTRY = 110
# A block's indices and weights, those of the next one, and the records written from it with their neighbours; a
# bucket's records, and what they are merged into.
BYTES_OF_BLOCK_ENTRY = 32
BYTES_OF_BUCKET_ENTRY = 24
BYTES_OF_LEAST_BUFFERS = 16 << 20
# Memory that the process needs to compile the loops, or to load them from the cache.
BYTES_OF_CODE = 112 << 20

BLOCK = 1 << 22
BUCKET = 1 << 23

# A part consists of at least so many clusters; each further level of contraction halves the number.
CLUSTERS = 20
LEAST_CLUSTERS = 3
# METIS gets a graph once it has at most so many nodes, or at most so many for each part.
SMALL = 200_000
SMALL_PART = 30
# Contraction ends when it would keep more than this share of the nodes.
STALLED = 0.95
# METIS gets the heaviest entries of the coarsest graph: at least so many a node, if the others are lighter. Of graphs
# with many weak ties it takes a thirtieth of the time, and refinement reads all entries ("Linear-Time Multilevel Graph
# Partitioning via Edge Sparsification", Gottesbüren et al., ESA 2025, samples them).
HEAVY = 16
HEAVIEST = 1 << 10
# Number of runs of METIS on the coarsest graph; fewer if they would read more than so many entries together.
CUTS = 16
CUTS_ENTRIES = 1 << 22


@dataclass(frozen=True)
class Memory:
    """A limit in bytes beyond the process as it was (None: what METIS needs is not limited), and the sizes of buffers.

    `block` entries are read and `bucket` entries merged at a time.
    """

    limit: int | None
    block: int = BLOCK
    bucket: int = BUCKET

    @classmethod
    def of(cls, limit: int | None, nodes: int) -> "Memory":
        """Sizes the buffers for a graph of so many nodes.

        Of what code and arrays of all nodes leave free of the limit, a block gets up to a quarter and a bucket up to
        half. Raises ShoalError: the limit does not hold these arrays and the smallest buffers.
        """
        if limit is None:
            return cls(None)
        arrays = BYTES_OF_NODE * nodes
        spare = limit - BYTES_OF_CODE - arrays
        if spare < BYTES_OF_LEAST_BUFFERS:
            raise ShoalError(
                f"engine.memory_limit is {bytes_of(limit)}, but semi-external partitioning of {nodes} nodes "
                f"needs at least {bytes_of(arrays + BYTES_OF_LEAST_BUFFERS + BYTES_OF_CODE)}: raise it to that"
            )
        block = min(spare // 4 // BYTES_OF_BLOCK_ENTRY, BLOCK)
        return cls(limit, block, min(spare // 2 // BYTES_OF_BUCKET_ENTRY, BUCKET))

    def require_contraction(self, nodes: int, coarse: int) -> None:
        """Raises a ShoalError if the limit does not hold the arrays of the nodes and of the coarse nodes."""
        needed = 4 * nodes + BYTES_OF_COARSE_NODE * coarse + BYTES_OF_LEAST_BUFFERS + BYTES_OF_CODE
        if self.limit is not None and needed > self.limit:
            raise ShoalError(
                f"engine.memory_limit is {bytes_of(self.limit)}, but contracting {nodes} nodes to {coarse} needs "
                f"{bytes_of(needed)}: raise it to that"
            )

    def holds_metis(self, nodes: int, entries: int) -> bool:
        """Whether METIS fits within the limit on a graph of this size."""
        return self.limit is None or metis_bytes(nodes, entries) <= self.limit

    def require_metis(self, nodes: int, entries: int, clients: int) -> None:
        """Raises a ShoalError if METIS does not fit on the graph, which contraction makes no smaller."""
        if self.limit is not None and not self.holds_metis(nodes, entries):
            raise ShoalError(
                f"engine.memory_limit is {bytes_of(self.limit)}, but for {clients} clients the coarsest graph "
                f"({nodes} nodes, {entries // 2} edges) needs {bytes_of(metis_bytes(nodes, entries))}: raise it to "
                "that or lower partition.clients"
            )


def metis_bytes(nodes: int, entries: int) -> int:
    """Peak of METIS on a weighted graph, its 64-bit input included."""
    return OF_METIS_NODE * nodes + OF_METIS_ENTRY * entries + BYTES_OF_CODE


def bytes_of(count: int) -> str:
    """A number of bytes in MiB, rounded up, as a config takes it."""
    return f"{-(-count >> 20)}MiB"


def by_semi_external(
    graph: Graph, options: PartitionOptions, _: object = None, workspace: Workspace | None = None
) -> np.ndarray:
    """Parts of small edge cut and at most `imbalance` times the mean size, int32 `[N]`, with the edges on disk.

    Clusters of bounded weight are contracted, level by level, until METIS can cut the graph of clusters; on the way
    back every level is refined (Akhremtsev, Sanders and Schulz, "(Semi-)External Algorithms for Graph Partitioning
    and Clustering", ALENEX 2015). Nodes without edges fill the smallest parts at the end. The bound is strict: the
    largest part has at most max(floor(imbalance N / clients), ceil(N / clients)) nodes.

    `graph.indptr` and `graph.indices` may be memory maps; they are read in blocks, in order, about twenty times. The
    result depends on `workspace.memory_limit` only if that forces more levels than the number of nodes does. Raises
    ShoalError: `workspace.memory_limit` cannot be kept, or the disk is full.
    """
    workspace = workspace or Workspace()
    memory = Memory.of(workspace.memory_limit, graph.nodes)
    if options.clients == 1:
        return np.zeros(graph.nodes, dtype=np.int32)
    finest = Level(graph.indptr, graph.indices)
    with workspace.scratch() as folder:
        part_N = _Hierarchy(finest, options, memory, workspace, folder).partition()
    return fill_empty(part_N, options.clients)


class _Hierarchy:
    """The levels of one graph, finest first, and on disk, for all but the last, the coarse node of every node."""

    def __init__(
        self, finest: Level, options: PartitionOptions, memory: Memory, workspace: Workspace, folder: Path
    ) -> None:
        self.options = options
        self.memory = memory
        self.report = workspace.report
        self.folder = folder
        self.levels = [finest]
        self.small = max(SMALL, SMALL_PART * options.clients)
        self.high = size_bound(finest.nodes, options.clients, options.imbalance)

    def partition(self) -> np.ndarray:
        while self.levels[-1].entries and not self._is_small() and self._coarsen():
            pass
        part_N = self._cut()
        for number in reversed(range(len(self.levels))):
            if number < len(self.levels) - 1:
                part_N = self._project(number, part_N)
            self._refine(self.levels[number], part_N)
        return part_N

    def _is_small(self) -> bool:
        """Whether the last level, one contraction at least, is what METIS should cut."""
        last = self.levels[-1]
        if len(self.levels) == 1 or last.nodes > self.small:
            return False
        return self.memory.holds_metis(last.nodes, _heaviest(last)[1])

    def _coarsen(self) -> bool:
        """Adds a level, unless it would be almost as large as the last."""
        depth = len(self.levels) - 1
        last, memory = self.levels[-1], self.memory
        limit = max(1, self.high // max(CLUSTERS >> depth, LEAST_CLUSTERS))
        coarse_N = cluster(last, limit, self.small, self.options.seed + depth, memory.block, self.report)
        nodes = number_clusters(coarse_N)
        if nodes > STALLED * last.nodes:
            return False
        memory.require_contraction(last.nodes, nodes)
        coarse_N.tofile(self.folder / f"coarse-{depth}")
        folder = self.folder / f"level-{depth + 1}"
        folder.mkdir()
        self.levels.append(contract(last, coarse_N, nodes, folder, memory.block, memory.bucket))
        self.report(f"level {depth + 1}: {nodes} nodes, {self.levels[-1].entries // 2} edges")
        return True

    def _cut(self) -> np.ndarray:
        """Part of every node of the coarsest level, int32; -1 for all if it has no edges."""
        import pymetis

        last, clients = self.levels[-1], self.options.clients
        if last.entries == 0:
            return np.full(last.nodes, -1, dtype=np.int32)
        if last.nodes <= clients:
            return np.arange(last.nodes, dtype=np.int32)
        least, entries = _heaviest(last)
        self.memory.require_metis(last.nodes, entries, clients)
        self.report(f"METIS: {last.nodes} nodes, {entries // 2} edges, {clients} parts")
        indptr, indices, weights = _entries_of(last, least, self.memory.block)
        return part_graph(
            pymetis.CSRAdjacency(indptr, indices),
            self.options,
            None if last.node_weights is None else last.node_weights.astype(np.int64),
            weights,
            cuts=min(max(CUTS_ENTRIES // entries, 1), CUTS),
        )

    def _project(self, number: int, coarse_part_C: np.ndarray) -> np.ndarray:
        """Part of every node of a level, int32: that of its coarse node, or -1 if it has none."""
        level = self.levels[number]
        coarse_N = map_int32(self.folder / f"coarse-{number}", level.nodes)
        part_N = np.full(level.nodes, -1, dtype=np.int32)
        for start in range(0, level.nodes, ROWS):
            coarse = read(coarse_N, start, min(start + ROWS, level.nodes))
            part_N[start : start + ROWS][coarse >= 0] = coarse_part_C[coarse[coarse >= 0]]
        return part_N

    def _refine(self, level: Level, part_N: np.ndarray) -> None:
        """Refines the parts of a level, in place, and gives one to the nodes without edges."""
        options, block = self.options, self.memory.block
        weight_P = _weights(part_N, level.node_weights, options.clients)
        placed = int(weight_P.sum())
        # The bounds count only nodes with edges: if room for the others were used now, clients would differ in edges.
        high = size_bound(placed, options.clients, options.imbalance)
        low = int((2 - options.imbalance) * placed / options.clients)
        if level.entries:
            refine(level, part_N, weight_P, low, high, block, self.report)
        if level.node_weights is None:
            balance(level, part_N, weight_P, high, block)
        fill_lightest(part_N, weight_P, level.node_weights)


def _heaviest(level: Level) -> tuple[int, int]:
    """Least weight of the entries that METIS gets, and how many these are."""
    if level.weights is None:
        return 1, level.entries
    count_W = np.zeros(HEAVIEST + 1, dtype=np.int64)
    for start in range(0, level.entries, BUCKET):
        weights = read(level.weights, start, min(start + BUCKET, level.entries))
        count_W += np.bincount(np.minimum(weights, HEAVIEST), minlength=HEAVIEST + 1)
    as_heavy_W = np.cumsum(count_W[::-1])[::-1]
    least = max(1, int(np.count_nonzero(as_heavy_W >= HEAVY * level.nodes)) - 1)
    return least, int(as_heavy_W[least])


def _entries_of(level: Level, least: int, entries: int) -> tuple[np.ndarray, np.ndarray, np.ndarray | None]:
    """CSR of the entries of at least a weight, all int64, and their weights, if there are any; it is read in blocks."""
    indptr, indices, weights = [np.zeros(1, dtype=np.int64)], [], []
    for block in blocks(level, entries):
        kept = np.ones(len(block.indices), dtype=bool) if block.weights is None else block.weights >= least
        ends = np.append(0, np.cumsum(kept))[block.indptr[1:]]
        indptr.append(indptr[-1][-1] + ends)
        indices.append(block.indices[kept].astype(np.int64))
        weights.append(np.empty(0) if block.weights is None else block.weights[kept].astype(np.int64))
    return np.concatenate(indptr), np.concatenate(indices), None if level.weights is None else np.concatenate(weights)


def _weights(part_N: np.ndarray, node_weights: np.ndarray | None, clients: int) -> np.ndarray:
    """Weight of every part, int64; nodes of part -1 count nowhere."""
    weight_P = np.zeros(clients, dtype=np.int64)
    for start in range(0, len(part_N), ROWS):
        part = part_N[start : start + ROWS]
        weights = None if node_weights is None else node_weights[start : start + ROWS][part >= 0]
        weight_P += np.bincount(part[part >= 0], weights, minlength=clients).astype(np.int64)
    return weight_P
