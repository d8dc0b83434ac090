"""The folder that `prepare` writes: shards, splits and hops of every client behind one manifest."""

import threading
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

import numpy as np
import pyarrow as pa

from shoal.storage.errors import FetchError, ShoalError
from shoal.storage.files.names import FOLDER
from shoal.storage.graph.rows import Rows
from shoal.storage.options.propagation import propagation_of
from shoal.storage.shards.arrow_file import REMAKE, FileRecord, MappedFile, Pack, require_content
from shoal.storage.shards.shard import (
    AllEdges,
    Shard,
    only_labelled,
    open_hops,
    open_shard,
    weights_of,
    with_training_labels,
)
from shoal.storage.shards.split import Split, open_split
from shoal.storage.store.client_table import OF_CLIENTS, Files, name_of
from shoal.storage.store.manifest import NAME, Manifest, read_manifest

if TYPE_CHECKING:
    from shoal.storage.graph.edges.cross_edges import Boundary
    from shoal.storage.shards.computed_hops import ComputedHops

IDS = Path("nodes") / "ids.arrow"
# The client of every node.
ASSIGNMENT = Path("assignment.npy")
WHOLE, DOMAINS, TRAINING = "whole", "domains", "training"
T = TypeVar("T")


Place = Callable[[int | range], Path]


def shard_path(clients: int | range) -> Path:
    """Returns the path of the shards of some clients inside a store, or of that of one."""
    return Path("clients") / _name(clients)


def split_path(split: str, clients: int | range) -> Path:
    """Returns the path of the splits of some clients inside a store, or of that of one."""
    return Path("splits") / split / _name(clients)


def hops_path(propagation: str, clients: int | range) -> Path:
    """Returns the path of the hops of some clients inside a store, or of those of one."""
    return Path("hops") / propagation / _name(clients)


def boundary_path(edges: str, clients: int | range) -> Path:
    """Returns the path of edges of some clients to others inside a store, or of those of one, by a choice of edges."""
    return Path("boundaries") / edges / _name(clients)


def scratch_path(edges: str, propagation: str) -> Path:
    """Returns the path inside a store of the folder of files from which hops over edges between clients are made."""
    return boundary_path(edges, 0).parent / f"scratch-{propagation}"


# Paths below a store of what lies at the paths above, and of the links that an overlay has there.
WRITTEN = (
    *(str(ASSIGNMENT), str(IDS), rf"clients/{OF_CLIENTS}", rf"(splits|hops|boundaries)/{FOLDER}/{OF_CLIENTS}"),
    rf"boundaries/{FOLDER}/scratch-{FOLDER}/[^/]+\.npy",
)
LINKS = (rf"clients|nodes|(splits|hops)/{FOLDER}",)
# The pattern of the stores below a store.
BELOW = rf"(({WHOLE}/)?({TRAINING}/{FOLDER}/)?|{DOMAINS}/)"


def _name(clients: int | range) -> str:
    return name_of(range(clients, clients + 1) if isinstance(clients, int) else clients)


def training_path(split: str) -> Path:
    """Returns the path inside a store of the store of what training sees, if it sees a split's training nodes alone."""
    return Path(TRAINING) / split


def stores_below(store: Path) -> list[Path]:
    """Lists folders of the finished stores inside the folder of a store, and inside each other, ordered by name."""
    # Splits and hops do not lie so deep, and shards lie in no folder of these names.
    kinds = (WHOLE, DOMAINS, f"{TRAINING}/*", f"{WHOLE}/{TRAINING}/*")
    return sorted(path.parent for kind in kinds for path in store.glob(f"{kind}/{NAME}"))


class Elsewhere(Protocol):
    """Files of stores that are not in their folders: of the one at `path`, and of those below."""

    path: Path
    remote: Any

    def fetch(self, relative: Path, record: FileRecord) -> Path:
        """Returns the path of a file on this machine."""
        ...


class Store:
    """A finished store, opened for reading.

    All that open a file of it raise ShoalError: it was not prepared, there is no such client, or it is missing or
    damaged.
    """

    def __init__(
        self,
        path: Path,
        first_read: bool = True,
        manifest: Manifest | None = None,
        remote: Elsewhere | None = None,
    ) -> None:
        """Reads the manifest; `first_read`: each file is checked byte by byte when it is first opened.

        All other files of a `remote` store, or of one below it, are in the cache of the machine.
        """
        self.path, self.remote = path, remote
        self.manifest = read_manifest(path) if manifest is None else manifest
        self._first_read = first_read
        # Data that was checked, by kind and client; the place of a file on this machine, by kind and first client.
        self._checked: dict[int, np.ndarray] = {}
        self._found: dict[tuple[int, int], Path] = {}
        self._packs: dict[Path, Pack] | None = None if self.manifest.pack == 1 else {}
        self._opening = threading.Lock()

    def __reduce__(self) -> tuple[Any, ...]:
        # Another process checks what it reads for itself.
        return Store, (self.path, self._first_read, self.manifest, self.remote)

    @property
    def clients(self) -> int:
        return len(self.manifest.clients)

    def whole(self) -> "Store":
        """Opens the same nodes as one client that keeps every edge (made for centralised training)."""
        return Store(self.path / WHOLE, remote=self.remote)

    def domain_graphs(self) -> "Store":
        """Opens the graphs that clients come from, each whole and with all edges: client d is that of domain d."""
        return Store(self.path / DOMAINS, self._first_read, remote=self.remote)

    def training(self, split: str) -> "Store":
        """Opens the same clients with a split's training nodes alone, and what these make of edges and hops."""
        return Store(self.path / training_path(split), self._first_read, remote=self.remote)

    def _here(self, relative: Path, record: FileRecord) -> Path:
        path = self.path / relative
        return path if self.remote is None else self.remote.fetch(path.relative_to(self.remote.path), record)

    def shard(self, client: int) -> Shard:
        """Maps a client's shard."""
        return self._open(client, self.manifest.clients.files, shard_path, open_shard, client)

    def split(self, name: str, client: int) -> Split:
        """Maps a client's split."""
        if name not in self.manifest.splits:
            raise ShoalError(self.path, f"no split {name!r}; run `shoal prepare` on the config")
        items = self._count("items", client)
        return self._open(client, self.manifest.splits[name].files, partial(split_path, name), open_split, items)

    def ids(self) -> pa.Array | None:
        """Reads what the user calls the nodes `[N]`, int64 or texts; None: they are 0 to N - 1."""
        if self.manifest.ids is None:
            return None
        path = self._here(IDS, self.manifest.ids)
        require_content(path, self.manifest.ids)
        with pa.OSFile(str(path)) as file:
            return pa.ipc.open_file(file).read_all()["id"].combine_chunks()

    def data(
        self, split: str, propagation: str | None, client: int
    ) -> tuple[Shard, Split, "list[Rows] | ComputedHops"]:
        """Maps all that a client trains on; of hops of labelled rows, the part of the graph that they keep."""
        rows = self.split(split, client)
        shard = with_training_labels(self.shard(client), rows)
        if propagation is None:
            return shard, rows, []
        options = propagation_of(propagation)
        if options.computed:
            # The import of what computes hops takes a third of a second.
            from shoal.storage.shards.computed_hops import open_computed

            file = None if options.folder is None else self.hops_file(options.folder, client)
            return open_computed(shard, rows, options, file, self.manifest.relations)
        file = self.hops_file(propagation, client)
        if "row" in file.names:
            return only_labelled(file, shard, rows)
        return shard, rows, self.hops(propagation, client)

    def hops(self, propagation: str, client: int) -> list[Rows]:
        """Maps hop 1, 2, … of all rows of a client, each `[N, F]`, dense or sparse."""
        file = self.hops_file(propagation, client)
        nodes = self._count("nodes", client)
        if file.rows != nodes and "degree" not in file.names:
            raise ShoalError(file.path, f"{file.rows} rows for a shard of {nodes}; {REMAKE}")
        return [file.features(name) for name in file.names if name.startswith("hop")]

    def all_edges(self, propagation: str, client: int) -> AllEdges | None:
        """Maps a client's neighbours at all clients, see `AllEdges`; None: hops are not so kept."""
        file = self.hops_file(propagation, client)
        if "degree" not in file.names:
            return None
        indptr, indices = file.lists("neighbors")
        return AllEdges(indptr, indices, file.primitive("degree"), weights_of(file, indptr))

    def hops_file(self, propagation: str, client: int) -> MappedFile:
        """Maps a client's hops as they are stored, of all rows or of labelled ones."""
        if propagation not in self.manifest.hops:
            raise ShoalError(self.path, f"no hops {propagation!r}; run `shoal prepare` on the config")
        shape = self._count("nodes", client), propagation_of(propagation)
        return self._open(client, self.manifest.hops[propagation], partial(hops_path, propagation), open_hops, *shape)

    def boundary(self, edges: str, client: int) -> "Boundary":
        """Maps a client's edges to other clients, of a choice of edges by its name."""
        if edges not in self.manifest.boundaries:
            raise ShoalError(self.path, f"no edges between clients {edges!r}; run `shoal prepare` on the config")
        # Runs do not read them.
        from shoal.storage.store.boundary import open_boundary

        files, nodes = self.manifest.boundaries[edges].files, self.manifest.clients.count("nodes")
        return self._open(client, files, partial(boundary_path, edges), open_boundary, nodes, client)

    def _open(self, client: int, files: Files, place: Place, open_data: Callable[..., T], *shape: object) -> T:
        """Opens the data of a client, the first time with the limits that its numbers must keep."""
        self._count("nodes", client)
        record, clients = files[client], files.clients_with(client)
        # Other threads wait, so that each file is read once.
        with self._opening:
            path = self._found.get((id(files), clients[0]))
            if path is None:
                path = self._found[id(files), clients[0]] = self._here(place(clients), files.file(client))
            checked = self._checked.get(id(files))
            if checked is None:
                checked = self._checked[id(files)] = np.zeros(self.clients, dtype=bool)
            limits = self.manifest.limits if self._first_read and not checked[client] else None
            try:
                opened = open_data(path, *shape, record, limits, self._packs)
            except ShoalError as error:
                if self._packs is None or isinstance(error, FetchError):
                    raise
                raise ShoalError(path, f"client {client}", *error.args[1:]) from error
            checked[client] = True
        return opened

    def _count(self, what: str, client: int) -> int:
        if not 0 <= client < self.clients:
            raise ShoalError(self.path, f"no client {client}; it has clients 0 to {self.clients - 1}")
        return int(self.manifest.clients.count(what)[client])

    def files(self) -> Iterator[tuple[Path, FileRecord]]:
        """Yields every file of the store with its record, path relative to the store."""
        if self.manifest.ids is not None:
            yield IDS, self.manifest.ids
        kinds: list[tuple[Place, Files]] = [(shard_path, self.manifest.clients.files)]
        kinds += [(partial(split_path, name), split.files) for name, split in self.manifest.splits.items()]
        kinds += [(partial(hops_path, name), files) for name, files in self.manifest.hops.items()]
        kinds += [(partial(boundary_path, name), record.files) for name, record in self.manifest.boundaries.items()]
        for place, files in kinds:
            for clients, record in files.files():
                yield place(clients), record
        for relative, table in self.manifest.tables():
            if table.table is not None:
                yield relative, table.table
