"""The clients of a store as columns: how large each is, and where its shard, its split and its hops lie.

Shards, each split and each kernel's hops have a table, an Arrow file below `tables/`. What is asked for one client is
made when it is asked for: a store has up to ten million.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import xxhash

from shoal.storage.errors import ShoalError
from shoal.storage.graph.targets import Scale
from shoal.storage.shards import arrow_file
from shoal.storage.shards.arrow_file import FileRecord, MappedFile, Pack, PackedRecord, record_of

TABLES = "tables"
# Smaller mean shards are packed: into files of so many bytes, and of so many clients, at most.
PACKED_BELOW, PACK_BYTES, MOST_IN_A_PACK = 1 << 20, 1 << 26, 1000
Columns = dict[str, np.ndarray]


def clients_a_pack(clients: int, shard_bytes: int) -> int:
    """Returns how many clients share a file, if shards take so many bytes together; 1: each has its own files."""
    mean = max(1, shard_bytes // clients)
    return 1 if mean >= PACKED_BELOW else min(clients, MOST_IN_A_PACK, PACK_BYTES // mean)


# The pattern of the files that `name_of` names.
OF_CLIENTS = r"\d{5,}(-\d{5,})?\.arrow"


def name_of(clients: range) -> str:
    """Names a file with the data of some clients in a row."""
    first, last = clients[0], clients[-1]
    return f"{first:05d}.arrow" if first == last else f"{first:05d}-{last:05d}.arrow"


def clients_of(name: str) -> range:
    """Inverts `name_of`; no clients for any other name."""
    first, _, last = name.removesuffix(".arrow").partition("-")
    last = last or first
    return range(int(first), int(last) + 1) if first.isdigit() and last.isdigit() else range(0)


def ranges(clients: int, pack: int) -> list[range]:
    """Lists the clients of every file."""
    return [range(first, min(first + pack, clients)) for first in range(0, clients, pack)]


class Table:
    """Columns of one length; they may not be changed.

    Attributes:
        columns: Numbers of every client, `[N]` or `[N, …]`, by name.
        table: Record of the file that they were read from, or written to; None: they are in no file yet.
    """

    def __init__(self, columns: Columns, table: FileRecord | None = None) -> None:
        self.columns, self.table = columns, table

    def __len__(self) -> int:
        return len(next(iter(self.columns.values())))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Table) and self.digest == other.digest

    @cached_property
    def digest(self) -> str:
        """32 digits of the content."""
        hasher = xxhash.xxh3_128()
        for name, column in sorted(self.columns.items()):
            hasher.update(f"{name} {column.dtype} {column.shape}".encode())
            hasher.update(np.ascontiguousarray(column).data)
        return hasher.hexdigest()

    def write(self, path: Path) -> None:
        """Writes the columns unless they are there. Raises ShoalError: the disk is full."""
        if self.table is None or not path.exists() or record_of(path) != self.table:
            arrays = {
                name: pa.array(column) if column.ndim == 1 else arrow_file.fixed_rows(column)
                for name, column in self.columns.items()
            }
            self.table = arrow_file.write(path, "table", arrays)

    @staticmethod
    def read(path: Path, record: FileRecord, manifest: Path) -> Columns:
        """Reads the columns of a file. Raises ShoalError: it is not the one that the manifest names."""
        try:
            present = record_of(path)
        except OSError:
            present = None
        if present != record:
            raise ShoalError(
                path,
                f"lost, damaged, or of another store than {manifest}; delete {manifest} and run `shoal prepare` again, "
                "finished shards are kept",
            )
        file = MappedFile(path, "table", record)
        return {name: file.numbers(name) for name in file.names}


class Files(Table):
    """The files of one kind: what is kept of the data of every client; as a sequence, a record a client.

    Where each client has a file of its own, columns are `bytes` and `xxh3`, its checksum, uint8 `[N, 16]`. Of packs
    these are those of the client's batch, beside `start`, and `file_bytes` and `file_xxh3` of the whole file.

    Attributes:
        pack: Clients in a file; the last may have fewer.
    """

    NAMES = ("bytes", "xxh3", "start", "file_bytes", "file_xxh3")

    def __init__(self, pack: int, columns: Columns, table: FileRecord | None = None) -> None:
        super().__init__({name: columns[name] for name in self.NAMES if name in columns}, table)
        self.pack = pack

    @classmethod
    def of(cls, records: Sequence[FileRecord]) -> "Files":
        """Builds the table of clients with a file each."""
        return cls(1, {"bytes": np.array([record.bytes for record in records]), "xxh3": _checksums(records)})

    @classmethod
    def of_packs(
        cls, paths: Iterable[Path], kind: str, records: Sequence[FileRecord], clients: int, pack: int
    ) -> "Files":
        """Builds the table from finished files; reads their packs."""
        if pack == 1:
            return cls.of(records)
        bounds, checksums = [], []
        for path, record in zip(paths, records):
            file = Pack(path, kind, record.bytes)
            bounds.append(file.bounds())
            checksums.append(file.checksums(bounds[-1]))
        counts = [len(bound) - 1 for bound in bounds]
        assert counts == [len(bound) for bound in ranges(clients, pack)]
        columns = {
            "bytes": np.concatenate([np.diff(bound) for bound in bounds]),
            "xxh3": np.concatenate(checksums),
            "start": np.concatenate([bound[:-1] for bound in bounds]),
            "file_bytes": np.repeat([record.bytes for record in records], counts),
            "file_xxh3": np.repeat(_checksums(records), counts, axis=0),
        }
        return cls(pack, columns)

    def __getitem__(self, client: int) -> FileRecord:
        record = self._record(client, "bytes", "xxh3")
        if self.pack == 1:
            return record
        clients = self.clients_with(client)
        start, last = self.columns["start"], clients[-1]
        batches = int(start[clients[0]]), int(start[last] + self.columns["bytes"][last])
        number = client - clients[0]
        return PackedRecord(record.bytes, record.xxh3, number, int(start[client]), batches, self.file(client))

    def __iter__(self) -> Iterator[FileRecord]:
        return map(self.__getitem__, range(len(self)))

    def clients_with(self, client: int) -> range:
        """Returns the clients of the file with the data of one."""
        first = client // self.pack * self.pack
        return range(first, min(first + self.pack, len(self)))

    def file(self, client: int) -> FileRecord:
        """Returns the record of the file with the data of a client."""
        return self._record(client, *(("bytes", "xxh3") if self.pack == 1 else ("file_bytes", "file_xxh3")))

    def files(self) -> Iterator[tuple[range, FileRecord]]:
        """Yields every file's clients and record."""
        return ((clients, self.file(clients[0])) for clients in ranges(len(self), self.pack))

    @property
    def total(self) -> int:
        """Bytes of all files."""
        return sum(record.bytes for _, record in self.files())

    def content(self) -> Any:
        """Returns what a run reads of it: records, as stores without packs always had them, or the digest."""
        return [asdict(record) for record in self] if self.pack == 1 else self.digest

    def _record(self, client: int, size: str, checksum: str) -> FileRecord:
        return FileRecord(int(self.columns[size][client]), self.columns[checksum][client].tobytes().hex())


def _checksums(records: Sequence[FileRecord]) -> np.ndarray:
    return np.frombuffer(bytes.fromhex("".join(record.xxh3 for record in records)), np.uint8).reshape(-1, 16)


@dataclass(frozen=True)
class ClientRecord:
    """Counts of a client's shard, known without opening it.

    Attributes:
        entries: Directed entries of its adjacency.
        labelled: Items with a label.
        classes: Number of labelled items of every class, `[C]`.
        graphs: Graphs in the shard, where labels are of graphs; None: they are of nodes, or of pairs of them.
        pairs: Pairs in the shard, where labels are of pairs of nodes.
    """

    client: int
    nodes: int
    entries: int
    labelled: int
    classes: list[int]
    file: FileRecord
    graphs: int | None = None
    pairs: int | None = None

    @property
    def items(self) -> int:
        """Number of items: nodes, graphs, or pairs of nodes."""
        return next(count for count in (self.pairs, self.graphs, self.nodes) if count is not None)


COUNTS = ("nodes", "entries", "labelled", "graphs", "pairs")


class Clients(Table):
    """All clients, as a sequence of `ClientRecord`: columns have its fields, `classes` is `[N, C]`.

    Attributes:
        files: Those of shards.
    """

    def __init__(self, columns: Columns, files: Files, table: FileRecord | None = None) -> None:
        counts = {name: columns[name].astype(np.int64, copy=False) for name in COUNTS if name in columns}
        classes = columns["classes"].astype(np.int32, copy=False)
        super().__init__({**counts, "classes": classes, **files.columns}, table)
        self.files = files

    @classmethod
    def of(cls, records: Sequence[ClientRecord]) -> "Clients":
        """Builds the table of clients with a file each."""
        names = [name for name in (*COUNTS, "classes") if getattr(records[0], name) is not None]
        columns = {name: np.array([getattr(record, name) for record in records]) for name in names}
        return cls(columns, Files.of([record.file for record in records]))

    def __getitem__(self, client: int) -> ClientRecord:
        if not 0 <= client < len(self):
            raise IndexError(client)
        counts = {name: int(self.columns[name][client]) for name in COUNTS if name in self.columns}
        classes = self.columns["classes"][client].tolist()
        return ClientRecord(client, **counts, classes=classes, file=self.files[client])

    def __iter__(self) -> Iterator[ClientRecord]:
        return map(self.__getitem__, range(len(self)))

    def count(self, name: str) -> np.ndarray:
        """Returns a count of every client, `[N]`: `nodes`, `entries`, `labelled`, or `items`."""
        if name == "items":
            name = next(kind for kind in ("pairs", "graphs", "nodes") if kind in self.columns)
        return self.columns[name]


class SplitRecord(Table):
    """The counts of a split at every client.

    Attributes:
        counts: Items that train, validate and test, `[N, 3]`.
        unreachable: Test items of classes without a training item at their client.
        scale: Of the numbers that are predicted, over the training items of all clients; None: classes are predicted.
        distinct: Different items that train, validate and test, of all clients; None: no client shares any.
    """

    def __init__(
        self,
        counts: Any,
        unreachable: int,
        files: Files,
        table: FileRecord | None = None,
        scale: Scale | None = None,
        distinct: list[int] | None = None,
    ) -> None:
        self.counts, self.unreachable, self.files = np.asarray(counts, dtype=np.int64), unreachable, files
        self.scale, self.distinct = scale, distinct
        super().__init__({"counts": self.counts, **files.columns}, table)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, SplitRecord) and super().__eq__(other) and self.unreachable == other.unreachable

    @property
    def without_training(self) -> list[int]:
        """Clients without an item to train on."""
        return np.flatnonzero(self.counts[:, 0] == 0).tolist()

    def content(self) -> Any:
        """Returns what a run reads of it."""
        if self.files.pack > 1:
            return {"split": self.digest, "unreachable": self.unreachable}
        rest = {"without_training": self.without_training, "unreachable": self.unreachable}
        return {"counts": self.counts.tolist(), **rest, "files": self.files.content()}


class BoundaryRecord(Table):
    """The edges between clients that hops run over.

    Attributes:
        counts: Of every client, int64 `[N, 5]`: its edges to others, sums that it gets a hop, and those of them that
            run over one neighbour; edges with labels at both ends, and those of one class.
    """

    def __init__(self, counts: Any, files: Files, table: FileRecord | None = None) -> None:
        self.counts, self.files = np.asarray(counts, dtype=np.int64), files
        super().__init__({"counts": self.counts, **files.columns}, table)

    def hop_bytes(self, features: int) -> int:
        """Counts the bytes that all clients get for a hop: sums of float64."""
        return 8 * features * int(self.counts[:, 1].sum())


def sizes(packs: Iterable[Pack], classes: int) -> tuple[Columns, int]:
    """Computes the columns of `Clients` of shards, pack by pack, and the values they keep of sparse features."""
    columns_of: dict[str, list[np.ndarray]] = {}
    values = 0
    for pack in packs:
        batches = [pack.batch(number) for number in range(len(pack))]
        names = batches[0].schema.names
        nodes = np.array([batch.num_rows for batch in batches])
        entries = np.array([len(batch.column("neighbors").values) for batch in batches])
        client = np.repeat(np.arange(len(batches)), nodes)
        columns = {"nodes": nodes, "entries": entries}
        if "pairs" in names:
            pairs = [batch.column("pairs").values.field("label") for batch in batches]
            columns["pairs"] = np.array([len(column) for column in pairs])
            client, label = np.repeat(np.arange(len(batches)), columns["pairs"]), _join(pairs)
        else:
            label = _join([batch.column("label") for batch in batches])
        if "graph" in names:
            graph = _join([batch.column("graph") for batch in batches])
            first = np.flatnonzero(np.diff(graph, prepend=-1) | np.diff(client, prepend=-1))
            client, label = client[first], label[first]
            columns["graphs"] = np.bincount(client, minlength=len(batches))
        labelled = label >= 0
        of_class = np.bincount(client[labelled] * classes + label[labelled], minlength=len(batches) * classes)
        columns["classes"] = of_class.reshape(-1, classes)
        columns["labelled"] = columns["classes"].sum(1)
        for name, column in columns.items():
            columns_of.setdefault(name, []).append(column)
        x = [batch.column("x") for batch in batches]
        values += sum(len(column.values) for column in x if pa.types.is_list(column.type))
    return {name: np.concatenate(several) for name, several in columns_of.items()}, values


def _join(columns: Sequence[pa.Array]) -> np.ndarray:
    return np.concatenate([column.to_numpy() for column in columns])
