"""The folder that `prepare` writes: shards, splits and hops of every client behind one manifest."""

from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np

from storage.arrow_file import FileRecord, MappedFile, checksum
from storage.errors import ShoalError
from storage.hops import only_labelled
from storage.manifest import Manifest, read_manifest
from storage.shard import Shard, check_bounds, open_shard
from storage.split import Split, open_split

WHOLE = "whole"


def shard_path(client: int) -> Path:
    """Path of a client's shard inside a store."""
    return Path("clients") / f"{client:05d}.arrow"


def split_path(split: str, client: int) -> Path:
    """Path of a client's split inside a store."""
    return Path("splits") / split / f"{client:05d}.arrow"


def hops_path(kernel: str, client: int) -> Path:
    """Path of a client's hops inside a store."""
    return Path("hops") / kernel / f"{client:05d}.arrow"


class Store:
    """A finished store, opened for reading."""

    def __init__(self, path: Path) -> None:
        """Reads the manifest.

        Raises:
            ShoalError: There is no finished store, or one of another version.
        """
        self.path = path
        self.manifest: Manifest = read_manifest(path)

    @property
    def clients(self) -> int:
        return len(self.manifest.clients)

    def whole(self) -> "Store":
        """The same nodes as one client that keeps every edge (made for centralised training).

        Raises:
            ShoalError: It was not prepared.
        """
        return Store(self.path / WHOLE)

    def shard(self, client: int) -> Shard:
        """Maps a client's shard.

        Raises:
            ShoalError: No such client, or its file is missing or damaged.
        """
        self._check(client)
        return open_shard(self.path / shard_path(client), client, self.manifest.clients[client].file)

    def split(self, name: str, client: int) -> Split:
        """Maps a client's split.

        Raises:
            ShoalError: The split was not prepared, there is no such client, or its file is missing or damaged.
        """
        if name not in self.manifest.splits:
            raise ShoalError(f"{self.path}: no split {name!r}; run `shoal prepare` on the config")
        self._check(client)
        record = self.manifest.splits[name].files[client]
        return open_split(self.path / split_path(name, client), self.manifest.clients[client].nodes, record)

    def data(self, split: str, kernel: str | None, client: int) -> tuple[Shard, Split, list[np.ndarray]]:
        """Maps all that a client trains on; of hops of labelled rows, the part of the graph that they keep.

        Raises:
            ShoalError: Something was not prepared, there is no such client, or a file is missing or damaged.
        """
        shard, rows = self.shard(client), self.split(split, client)
        if kernel is None:
            return shard, rows, []
        file = self._hops(kernel, client)
        return only_labelled(file, shard, rows) if "row" in file.names else (shard, rows, self.hops(kernel, client))

    def hops(self, kernel: str, client: int) -> list[np.ndarray]:
        """Maps hop 1, 2, … of all rows of a client, each `[N, F]`.

        Raises:
            ShoalError: The hops were not prepared, there is no such client, or their file is missing or damaged.
        """
        file = self._hops(kernel, client)
        nodes = self.manifest.clients[client].nodes
        if file.rows != nodes:
            raise ShoalError(
                f"{file.path}: {file.rows} rows for a shard of {nodes}; delete the file and run `shoal prepare` again"
            )
        return [file.matrix(name) for name in file.names]

    def _hops(self, kernel: str, client: int) -> MappedFile:
        if kernel not in self.manifest.hops:
            raise ShoalError(f"{self.path}: no hops {kernel!r}; run `shoal prepare` on the config")
        self._check(client)
        return MappedFile(self.path / hops_path(kernel, client), "hops", self.manifest.hops[kernel][client])

    def _check(self, client: int) -> None:
        if not 0 <= client < self.clients:
            raise ShoalError(f"{self.path}: no client {client}; it has clients 0 to {self.clients - 1}")

    def files(self) -> Iterator[tuple[Path, FileRecord]]:
        """Every file of the store with its record, path relative to the store."""
        for client in self.manifest.clients:
            yield shard_path(client.client), client.file
        for name, split in self.manifest.splits.items():
            for client_number, record in enumerate(split.files):
                yield split_path(name, client_number), record
        for kernel, records in self.manifest.hops.items():
            for client_number, record in enumerate(records):
                yield hops_path(kernel, client_number), record


def verify(store: Store, step: Callable[[], None] = lambda: None) -> list[str]:
    """Reads every byte of a store: checksums of all files, and the bounds of every adjacency and label.

    Args:
        store: The store to check.
        step: Called once a file, for a progress bar.

    Returns:
        One line for each fault; empty if there is none.
    """
    faults: list[str] = []
    for path, record in store.files():
        full = store.path / path
        if not full.exists():
            faults.append(f"{full}: missing")
        elif checksum(full) != record.sha256:
            faults.append(f"{full}: checksum does not match the manifest")
        elif path.parts[0] == "clients":
            try:
                shard = store.shard(int(path.stem))
            except ShoalError as error:
                faults.append(error.line)
            else:
                check_bounds(shard, store.manifest.classes, lambda fault, full=full: faults.append(f"{full}: {fault}"))  # type: ignore[misc]
        step()
    return faults
