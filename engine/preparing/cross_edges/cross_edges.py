"""The edges between clients, and hops over them: one exchange of sums a hop, before any training."""

import shutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import islice
from pathlib import Path

import numpy as np
import pyarrow as pa

from shoal.engine.screen.progress import progress
from shoal.storage.files.disk import require_disk
from shoal.storage.files.mapped import ROWS, read, row_blocks
from shoal.storage.files.names import place_in
from shoal.storage.graph.edge_weights import degrees
from shoal.storage.graph.edges.cross_edges import ENTRIES_A_BLOCK, ENTRY_BYTES, Boundary, boundaries, cross_hop
from shoal.storage.graph.propagation import require_held
from shoal.storage.graph.rows import CsrRows
from shoal.storage.options.propagation import CrossEdges, CrossPropagation, PropagationOptions
from shoal.storage.runner import Runner, parts
from shoal.storage.shards.arrow_file import FileRecord, rows_column, write_pack
from shoal.storage.shards.hops import columns_of_hops
from shoal.storage.shards.shard import weights_column
from shoal.storage.store.boundary import boundary_columns
from shoal.storage.store.store import Store, boundary_path, hops_path


@dataclass(frozen=True)
class BoundarySource:
    """The data from which edges between clients are read; arrays are as `boundaries` takes them."""

    shards: Store
    graph: tuple[np.ndarray, np.ndarray, np.ndarray | None]
    assignment: np.ndarray
    row_of: np.ndarray
    cut: np.ndarray
    edges: CrossEdges
    missing: frozenset[range]
    label: np.ndarray

    def counts(self, boundary: Boundary, client: int) -> tuple[int, ...]:
        """Returns the counts of a client in `BoundaryRecord`."""
        first = np.cumsum(self.shards.manifest.clients.count("nodes"))
        first = np.concatenate([[0], first[:-1]])
        mine, theirs = self.label[first[client] + boundary.row], self.label[first[boundary.client] + boundary.other]
        labelled, sums = (mine >= 0) & (theirs >= 0), boundary.sums(self.edges.hidden)
        same = labelled & (mine == theirs)
        return len(boundary), len(sums), int((sums == 1).sum()), int(labelled.sum()), int(same.sum())


def class_pairs(store: Store, edges: str) -> tuple[np.ndarray, np.ndarray]:
    """Counts entries inside clients, and between them, by the classes of their ends, int64 `[C, C]` each.

    Ends without a label are not counted. A client's edges to others are in memory, and a block of its inner edges.
    """
    classes = store.manifest.classes
    labels = [store.shard(client).label for client in range(store.clients)]
    inside, between = np.zeros((2, classes * classes), dtype=np.int64)

    def count(into: np.ndarray, mine: np.ndarray, theirs: np.ndarray) -> None:
        labelled = (mine >= 0) & (theirs >= 0)
        into += np.bincount(mine[labelled].astype(np.int64) * classes + theirs[labelled], minlength=len(into))

    for client, label in enumerate(labels):
        shard, boundary = store.shard(client), store.boundary(edges, client)
        for first, pointer, low, high in row_blocks(shard.indptr, ENTRIES_A_BLOCK):
            mine = np.repeat(label[first : first + len(pointer) - 1], np.diff(pointer))
            count(inside, mine, label[shard.indices[low:high]])
        order = np.argsort(boundary.client, kind="stable")
        others, starts = np.unique(boundary.client[order], return_index=True)
        for other, chosen in zip(others, np.split(order, starts[1:])):
            count(between, label[boundary.row[chosen]], labels[other][boundary.other[chosen]])
    return inside.reshape(classes, classes), between.reshape(classes, classes)


def rows_in_shards(shards: Store) -> tuple[np.ndarray, np.ndarray]:
    """Returns the row of every node in its client's shard, -1 without a client, and labels of all rows, int32 `[N]`.

    The labels of a client come after those of the client before.
    """
    row, labels = np.full(shards.manifest.nodes, -1, dtype=np.int32), []
    for client in range(shards.clients):
        shard = shards.shard(client)
        row[shard.node] = np.arange(shard.nodes, dtype=np.int32)
        labels.append(np.array(shard.label))
    return row, np.concatenate(labels)


def cut_entries(shards: Store, indptr: np.ndarray, assignment: np.ndarray) -> np.ndarray:
    """Counts the entries of every client's rows in the whole graph that its shard lacks, int64 `[clients]`."""
    missing = -shards.manifest.clients.count("entries")
    for start in range(0, len(assignment), ROWS):
        owner = assignment[start : start + ROWS]
        degree = np.diff(read(indptr, start, start + len(owner) + 1))
        missing += np.bincount(owner[owner >= 0], degree[owner >= 0], len(missing)).astype(np.int64)
    return missing


Counted = tuple[FileRecord | None, np.ndarray]


def write_boundaries(source: BoundarySource, packs: Sequence[range]) -> Iterator[Counted]:
    """Writes the edges to others of some packs that are missing, and counts those of all, `[n, 5]`."""
    clients = [client for pack in packs if pack in source.missing for client in pack]
    given = source.assignment, source.row_of, source.cut, clients, source.edges
    made = boundaries(source.graph, *given) if clients else iter(())
    name = source.edges.name
    for pack in packs:
        if pack not in source.missing:
            several, record = [source.shards.boundary(name, client) for client in pack], None
        else:
            several = list(islice(made, len(pack)))
            path = source.shards.path / boundary_path(name, pack)
            record = write_pack(path, "boundary", map(boundary_columns, several))
        yield record, np.array([source.counts(boundary, client) for boundary, client in zip(several, pack)])


def scratch_bytes(nodes: int, features: int, dtype: str, propagation: PropagationOptions) -> int:
    """Returns bytes of all scratch files of an exchange: features of `dtype`, hops, and a degree a row."""
    width = features * (np.dtype(dtype).itemsize + propagation.hops * np.dtype(propagation.dtype).itemsize)
    return nodes * (width + np.dtype(np.int32).itemsize)


@dataclass(frozen=True)
class Exchange:
    """The hops of all clients in scratch files, one client's rows after another's.

    Attributes:
        store: The shards, and the edges between their clients.
        folder: The folder of the scratch files, which are removed when the hops are written.
    """

    store: Store
    propagation: CrossPropagation
    folder: Path

    @cached_property
    def first(self) -> np.ndarray:
        """First row of every client in the scratch files, and their number, int64 `[clients + 1]`."""
        return np.concatenate([[0], np.cumsum(self.store.manifest.clients.count("nodes"))])

    def path(self, hop: int) -> Path:
        """Returns the file of a hop, `[N, F]`; hop 0 are the features."""
        return self.folder / f"hop{hop}.npy"

    @property
    def bytes(self) -> int:
        """The size of all scratch files."""
        manifest = self.store.manifest
        return scratch_bytes(int(self.first[-1]), manifest.features, manifest.dtype, self.propagation)

    def memory(self, counts: np.ndarray) -> int:
        """Returns bytes for the largest client, by the counts of edges to others."""
        nodes = self.store.manifest.clients.count("nodes")
        return int(((2 * nodes + counts[:, 0]) * (4 * self.store.manifest.features + 2 * ENTRY_BYTES)).max())

    def boundary(self, client: int) -> Boundary:
        """Reads the edges of a client to others."""
        return self.store.boundary(self.propagation.cross.name, client)

    def run(self, here: Runner, memory: int) -> None:
        """Makes the scratch files, hop by hop; those that an interrupted prepare finished are kept."""
        require_disk(self.folder.parent, self.bytes, "hops over edges between clients, in scratch files,")
        self.folder.mkdir(exist_ok=True)
        self._degrees()
        clients = list(range(self.store.clients))
        shape = int(self.first[-1]), self.store.manifest.features
        for hop in range(self.propagation.hops + 1):
            if self.path(hop).exists():
                continue
            unfinished = _unfinished_path(self.path(hop))
            dtype = self.propagation.dtype if hop else self.store.manifest.dtype
            np.lib.format.open_memmap(unfinished, "w+", dtype, shape).flush()
            groups = parts(clients, here.room(memory, memory).groups)
            title = f"hop {hop}, sums of neighbours at other clients" if hop else "features"
            with progress(title, len(clients), "clients") as step:
                for _ in here.results(write_hop, (self, hop), groups, memory):
                    step.advance()
            unfinished.replace(self.path(hop))

    def remove(self) -> None:
        """Removes the scratch files."""
        shutil.rmtree(self.folder, ignore_errors=True)

    def _degrees(self) -> None:
        """Writes the degree of every row over all edges that hops run over, and itself, `[N]`.

        It is int32, and float64 where edges have weights.
        """
        if (self.folder / "degree.npy").exists():
            return
        degree = np.empty(self.first[-1], dtype=np.float64 if self.store.manifest.weighted else np.int32)
        for client in range(self.store.clients):
            shard, boundary = self.store.shard(client), self.boundary(client)
            of_nodes = degrees(shard.indptr, shard.edge_weight)
            of_nodes += np.bincount(boundary.row, boundary.weight, minlength=shard.nodes)
            degree[self.first[client] : self.first[client + 1]] = of_nodes
        unfinished = _unfinished_path(self.folder / "degree.npy")
        np.save(unfinished, degree)
        unfinished.replace(self.folder / "degree.npy")


def _unfinished_path(path: Path) -> Path:
    return place_in(path.parent, f"unfinished-{path.name}")


def write_hop(given: tuple[Exchange, int], clients: Sequence[int]) -> Iterator[None]:
    """Writes a hop of some clients into its scratch file."""
    exchange, hop = given
    dtype, r = exchange.propagation.dtype, exchange.propagation.r
    path = _unfinished_path(exchange.path(hop))
    out = np.load(path, mmap_mode="r")
    before = np.load(exchange.path(hop - 1), mmap_mode="r") if hop else None
    degree = np.load(exchange.folder / "degree.npy", mmap_mode="r")
    for client in clients:
        here = slice(*exchange.first[client : client + 2])
        shard = exchange.store.shard(client)
        if before is None:
            rows = shard.x.toarray() if isinstance(shard.x, CsrRows) else np.ascontiguousarray(shard.x)
        else:
            boundary = exchange.boundary(client)
            theirs, place = np.unique(exchange.first[boundary.client] + boundary.other, return_inverse=True)
            x = np.concatenate([before[here], before[theirs]]).astype(np.float32, copy=False)
            both = np.concatenate([degree[here], degree[theirs]]).astype(np.float64)
            pointer = np.searchsorted(boundary.row, np.arange(shard.nodes + 1))
            scalings = both**-r, both[: shard.nodes] ** (r - 1)
            neighbours = pointer, (place + shard.nodes).astype(np.int64)
            csr, means = (shard.indptr, shard.indices), exchange.propagation.form == "mean"
            weights = shard.edge_weight, boundary.weight
            rows, peak = cross_hop(csr, neighbours, x, scalings, "float64" if means else dtype, weights)
            if means:
                # A hop is a mean over a node and its neighbours. This one is over neighbours alone, so the node is
                # taken out of it.
                count = both[: shard.nodes, None] - 1
                rows = (rows * (count + 1) - x[: shard.nodes]) / np.maximum(count, 1)
                peak, rows = float(np.abs(rows).max(initial=0)), rows.astype(dtype)
            require_held(peak, rows.dtype)
        # The file is not written by its map: a page has rows of other clients, too, which another machine may write.
        with path.open("r+b") as file:
            file.seek(out.offset + here.start * out.strides[0])
            file.write(rows.data)
        yield None


def write_cross_hops(exchange: Exchange, packs: Sequence[range]) -> Iterator[FileRecord]:
    """Writes the hops of some packs, whose scratch files are finished."""
    hops = [np.load(exchange.path(hop), mmap_mode="r") for hop in range(1, exchange.propagation.hops + 1)]
    for pack in packs:
        path = exchange.store.path / hops_path(exchange.propagation.name, pack)
        if exchange.propagation.form == "two_hop":
            yield write_pack(path, "hops", (_with_neighbours(exchange, client, hops[0]) for client in pack))
            continue
        of_clients = ((client, slice(*exchange.first[client : client + 2])) for client in pack)
        columns = (
            columns_of_hops(exchange.store.shard(client), [np.asarray(hop[here]) for hop in hops], exchange.propagation)
            for client, here in of_clients
        )
        yield write_pack(path, "hops", columns)


def _with_neighbours(exchange: Exchange, client: int, hop: np.ndarray) -> dict[str, pa.Array]:
    """Joins a client's rows of a hop and those of neighbours elsewhere; with all edges of its nodes, and degrees."""
    shard, boundary = exchange.store.shard(client), exchange.boundary(client)
    theirs, place = np.unique(exchange.first[boundary.client] + boundary.other, return_inverse=True)
    rows = np.concatenate([np.arange(*exchange.first[client : client + 2]), theirs])
    row = np.concatenate([np.repeat(np.arange(shard.nodes), np.diff(shard.indptr)), boundary.row])
    by_row = np.argsort(row, kind="stable")
    column = np.concatenate([shard.indices, place + shard.nodes])[by_row]
    starts = np.concatenate([[0], np.bincount(row, minlength=len(rows)).cumsum()])
    degree = np.load(exchange.folder / "degree.npy", mmap_mode="r")
    neighbours = pa.ListArray.from_arrays(pa.array(starts.astype(np.int32)), pa.array(column.astype(np.int32)))
    columns = {"neighbors": neighbours, "degree": pa.array(degree[rows]), "hop1": rows_column(hop[rows])}
    if shard.edge_weight is None:
        return columns
    return columns | weights_column(starts, np.concatenate([shard.edge_weight, boundary.weight])[by_row])


def exchange_bytes(store: Store, propagation: CrossPropagation) -> int:
    """Returns bytes that all clients receive: sums of float64; with `two_hop` those of neighbours elsewhere, too."""
    features, sums = store.manifest.features, store.manifest.boundaries[propagation.boundaries]
    theirs = 0
    if propagation.form == "two_hop":
        theirs = sum(store.hops_file(propagation.name, c).rows for c in range(store.clients))
        theirs -= int(store.manifest.clients.count("nodes").sum())
    return propagation.hops * sums.hop_bytes(features) + 8 * features * theirs
