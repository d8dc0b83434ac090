"""KaMinPar: parts with few edges between them, in a fifth of the memory of METIS."""

from pathlib import Path

import numpy as np

from shoal.partition.methods.cover import fill_empty
from shoal.partition.methods.options import PartitionOptions
from shoal.partition.methods.workspace import Workspace
from shoal.partition.out_of_core.balance import balance, size_bound
from shoal.partition.out_of_core.blocks import Level
from shoal.partition.out_of_core.semi_external import BLOCK, BUCKET
from shoal.storage.files.mapped import ROWS, read
from shoal.storage.graph.graph import Graph

# Flags of a ParHIP file: no edge weights, no node weights, 32-bit nodes; offsets have 64 bits.
PARHIP = 1 | 2 | 8


def by_kaminpar(
    graph: Graph, options: PartitionOptions, _: object = None, workspace: Workspace | None = None
) -> np.ndarray:
    """Multilevel k-way partition of small edge cut, int32 `[N]` (Gottesbüren et al., ESA 2021).

    One thread, since several give another result every time. The largest part has at most max(floor(imbalance N /
    clients), ceil(N / clients)) nodes; the smallest has no bound: on some graphs it has a few nodes, or the one that
    `fill_empty` gives it. KaMinPar's generator is global: later calls in this process get its changed seed. A graph
    without edges is cut into blocks of consecutive nodes. A ShoalError says that the disk has no room for the graph: 4
    bytes an entry, 8 bytes a node.
    """
    import kaminpar

    workspace = workspace or Workspace()
    clients = options.clients
    if clients == 1 or graph.entries == 0:
        return (np.arange(graph.nodes) * clients // graph.nodes).astype(np.int32)
    level = Level(graph.indptr, graph.indices)
    high = size_bound(graph.nodes, clients, options.imbalance)
    with workspace.scratch() as folder:
        workspace.report(f"writing {graph.entries // 2} edges for KaMinPar")
        write_parhip(level, folder / "graph.parhip")
        read_in = kaminpar.load_graph(str(folder / "graph.parhip"), kaminpar.GraphFileFormat.PARHIP)
    workspace.report(f"KaMinPar: {graph.nodes} nodes, {graph.entries // 2} edges, {clients} parts")
    kaminpar.reseed(options.seed)
    solver = kaminpar.KaMinPar(1, kaminpar.default_context())
    part_N = np.array(solver.compute_partition(read_in, [high] * clients), dtype=np.int32)
    balance(level, part_N, np.bincount(part_N, minlength=clients), high, BLOCK)
    return fill_empty(part_N, clients)


def write_parhip(level: Level, path: Path) -> None:
    """Writes an unweighted graph as a ParHIP file, in blocks: header, offsets in bytes of the file, neighbours."""
    start = 24 + 8 * (level.nodes + 1)
    with path.open("wb") as f:
        np.array([PARHIP, level.nodes, level.entries], dtype=np.uint64).tofile(f)
        for first in range(0, level.nodes + 1, ROWS):
            pointer = read(level.indptr, first, min(first + ROWS, level.nodes + 1))
            (start + 4 * pointer).astype(np.uint64).tofile(f)
        for first in range(0, level.entries, BUCKET):
            read(level.indices, first, min(first + BUCKET, level.entries)).astype(np.int32, copy=False).tofile(f)
