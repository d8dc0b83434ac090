"""Arrow IPC files, a record batch a client: written atomically, opened as a private memory map without a copy."""

import ctypes
import mmap
import os
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import xxhash

from shoal.storage.errors import ShoalError
from shoal.storage.files.atomic import replacing
from shoal.storage.files.digest import digest
from shoal.storage.files.names import require_digest
from shoal.storage.files.reading import cannot_read, open_plain
from shoal.storage.graph.rows import CsrRows, Rows

FORMAT = 1
# Sparse rows have so many columns; their own numbers need not name the last.
WIDTH = b"width"
REMAKE = "delete the file and run `shoal prepare` again"
AGAIN = "run `shoal verify` to see what else is damaged, delete the file and run `shoal prepare` again"
LIBC = ctypes.CDLL(None, use_errno=True)
LIBC.mmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long)
LIBC.mmap.restype = ctypes.c_void_p
LIBC.munmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t)


@dataclass(frozen=True)
class FileRecord:
    """Size in bytes and XXH3-128 of a finished file, as the manifest keeps them."""

    bytes: int
    xxh3: str


@dataclass(frozen=True)
class PackedRecord(FileRecord):
    """One client's record batch in a pack, a file of several: `bytes` and checksum are the client's own.

    The checksum is of the batch and of what every client of the pack is read by: the bytes before the first batch, and
    those after the last. In a file of one batch that is the whole file.

    Attributes:
        number: Number of the batch in the pack.
        start: Its first byte.
        batches: First byte of the first batch of the pack, and the end of the last.
        pack: Record of the whole file.
    """

    number: int
    start: int
    batches: tuple[int, int]
    pack: FileRecord


def read_record(where: object, plain: Mapping[str, Any]) -> FileRecord:
    """Returns the record that a manifest or a journal has of a file.

    Raises ShoalError: its digest is none. TypeError, KeyError: it has no digest and no number of bytes.
    """
    size = plain["bytes"]
    if not isinstance(size, int):
        raise TypeError(f"{size!r} bytes")
    return FileRecord(size, require_digest(where, plain["xxh3"]))


def record_of(path: Path) -> FileRecord:
    """Records a file as it is now. Raises OSError: it cannot be read."""
    return FileRecord(path.stat().st_size, digest(path))


def require_content(path: Path, record: FileRecord, where: str = "the manifest") -> None:
    """Compares a whole file with its record in `where`. Raises ShoalError: it is missing, unreadable or has changed."""
    try:
        size, expected = path.stat().st_size, size_of(record)
        if size != expected:
            raise ShoalError(path, f"{size} bytes, {where} says {expected}; {AGAIN}")
        # The file is read, not mapped: what a disk cannot read is an error here, and the end of the process in a map.
        if (_packed_digest(path, record) if isinstance(record, PackedRecord) else digest(path)) != record.xxh3:
            raise ShoalError(path, f"checksum does not match {where}; {AGAIN}")
    except FileNotFoundError:
        raise ShoalError(path, "missing; run `shoal prepare` again") from None
    except OSError as error:
        raise cannot_read(path, error) from error


def size_of(record: FileRecord) -> int:
    """Returns the bytes of the file that a record is of, or that it is in."""
    return record.pack.bytes if isinstance(record, PackedRecord) else record.bytes


def _packed_digest(path: Path, record: PackedRecord) -> str:
    hasher = xxhash.xxh3_128()
    first, last = record.batches
    with open_plain(path) as file:
        for start, end in ((0, first), (record.start, record.start + record.bytes), (last, record.pack.bytes)):
            file.seek(start)
            hasher.update(file.read(end - start))
    return hasher.hexdigest()


def require_none(path: Path, faults: Sequence[str]) -> None:
    """Refuses a file with faults. Raises ShoalError: there is one."""
    if faults:
        raise ShoalError(path, f"{faults[0]}; {AGAIN}")


def fixed_rows(array: np.ndarray) -> pa.FixedSizeListArray:
    """Makes an Arrow column of N lists of length F from a `[N, F]` array, without a copy if it is contiguous."""
    rows, width = array.shape
    flat = np.ascontiguousarray(array).reshape(-1)
    values = pa.Array.from_buffers(pa.from_numpy_dtype(flat.dtype), len(flat), [None, pa.py_buffer(flat)])
    return pa.FixedSizeListArray.from_arrays(values, width) if rows else pa.array([], pa.list_(values.type, width))


def rows_column(x: Rows) -> pa.Array:
    """Makes an Arrow column of features `[N, F]`, without a copy: lists of length F, or of columns beside values."""
    if isinstance(x, np.ndarray):
        return fixed_rows(x)
    fields = [
        pa.field("column", pa.int32(), metadata={WIDTH: str(x.features)}),
        pa.field("value", pa.from_numpy_dtype(x.dtype)),
    ]
    entries = pa.StructArray.from_arrays([pa.array(x.columns), pa.array(x.values)], fields=fields)
    return pa.ListArray.from_arrays(pa.array(x.indptr), entries)


def either_column(x: Rows) -> pa.Array:
    """Makes the same in one type for dense and sparse rows, which a column of a pack needs if it has both: a union."""
    rows, features = x.shape
    dense = fixed_rows(np.empty((0, features), x.dtype) if isinstance(x, CsrRows) else x)
    none = CsrRows(np.zeros(1, np.int32), np.empty(0, np.int32), np.empty(0, x.dtype), features)
    sparse = rows_column(x if isinstance(x, CsrRows) else none)
    kinds = pa.array(np.full(rows, isinstance(x, CsrRows), dtype=np.int8))
    places = pa.array(np.arange(rows, dtype=np.int32))
    return pa.UnionArray.from_dense(kinds, places, [dense, sparse], ["dense", "sparse"])


def write(path: Path, kind: str, columns: Mapping[str, pa.Array]) -> FileRecord:
    """Writes columns as one record batch of a kind (`shard`, `split`, `hops`); the file appears when it is complete.

    Raises ShoalError: it cannot be written.
    """
    return write_pack(path, kind, [columns])


def write_pack(path: Path, kind: str, clients: Iterable[Mapping[str, pa.Array]]) -> FileRecord:
    """Writes a pack: the columns of every client, which have the same names and types, as a record batch each.

    Raises ShoalError: it cannot be written.
    """
    schema, batches = None, []
    metadata = {"shoal.kind": kind, "shoal.format": str(FORMAT)}
    for columns in clients:
        if schema is None:
            schema = pa.schema([pa.field(name, column.type) for name, column in columns.items()], metadata=metadata)
        batches.append(pa.RecordBatch.from_arrays(list(columns.values()), schema=schema))
    with replacing(path) as unfinished:
        with pa.OSFile(str(unfinished), "wb") as sink, pa.ipc.new_file(sink, schema) as writer:
            for batch in batches:
                writer.write_batch(batch)
        return record_of(unfinished)


class Pack:
    """An Arrow file of a kind, open as one private (copy-on-write) memory map.

    Pages are shared by all processes of a machine through the page cache. Writing into an array changes a private
    copy of the page, never the file.

    Attributes:
        content: All its bytes, uint8.
    """

    def __init__(self, path: Path, kind: str, size: int | None = None) -> None:
        """Maps a file, of `size` bytes if that is given.

        Raises ShoalError: it is missing, unreadable, damaged, or not of this kind and format.
        """
        self.path, self._inode = path, _inode(path)
        self.content = _map_file(path, size)
        with self._reading():
            self._reader = pa.ipc.open_file(pa.BufferReader(pa.py_buffer(self.content)))
            metadata = self._reader.schema.metadata or {}
        if metadata.get(b"shoal.kind") != kind.encode() or metadata.get(b"shoal.format") != str(FORMAT).encode():
            raise ShoalError(path, f"not a {kind} of format {FORMAT}; {AGAIN}")

    @property
    def is_there(self) -> bool:
        """Whether the file is still the one that is mapped: it may have been made again."""
        return self._inode is not None and self._inode == _inode(self.path)

    def __len__(self) -> int:
        return int(self._reader.num_record_batches)

    def batch(self, number: int) -> pa.RecordBatch:
        """Reads the columns of one client. Raises ShoalError: they are damaged."""
        with self._reading():
            batch = self._reader.get_batch(number)
            batch.validate()
            return batch

    def bounds(self) -> np.ndarray:
        """Returns the first byte of every batch, and the end of the last, int64 `[n + 1]`."""
        source = pa.BufferReader(pa.py_buffer(self.content))
        # The stream of messages, of which the first is the schema, follows a mark of eight bytes.
        source.seek(8)
        messages = pa.ipc.MessageReader.open_stream(source)
        messages.read_next_message()
        ends = [source.tell()]
        for _ in range(len(self)):
            messages.read_next_message()
            ends.append(source.tell())
        return np.array(ends, dtype=np.int64)

    def checksums(self, bounds: np.ndarray) -> np.ndarray:
        """Computes the checksum of every client, as `PackedRecord` has it, uint8 `[n, 16]`."""
        head, end = xxhash.xxh3_128(self.content[: bounds[0]].data), self.content[bounds[-1] :].data
        digests = []
        for start, stop in pairwise(bounds.tolist()):
            hasher = head.copy()
            hasher.update(self.content[start:stop].data)
            hasher.update(end)
            digests.append(hasher.digest())
        return np.frombuffer(b"".join(digests), dtype=np.uint8).reshape(-1, 16)

    @contextmanager
    def _reading(self) -> Iterator[None]:
        try:
            yield
        except (pa.ArrowException, ValueError, OSError) as error:
            raise ShoalError(self.path, f"truncated or not an Arrow file ({error}); {AGAIN}") from error


# Packs that are open, by path; None: each file is mapped by itself.
Packs = dict[Path, Pack] | None


class MappedFile:
    """The columns of one client as NumPy arrays over the memory map of a pack, or of a file of its own."""

    def __init__(self, path: Path, kind: str, record: FileRecord | None = None, opened: Packs = None) -> None:
        """Opens a client's columns in the pack, or file, at `path`; raises what `Pack` raises.

        Packs in `opened` are reused by path, and a new one is put there.
        """
        self.path = path
        pack = None if opened is None else opened.get(path)
        if pack is None or not pack.is_there:
            pack = Pack(path, kind, None if record is None else size_of(record))
        if opened is not None:
            opened[path] = pack
        self._bytes = pack.content
        self._batch = pack.batch(record.number if isinstance(record, PackedRecord) else 0)

    @property
    def rows(self) -> int:
        return int(self._batch.num_rows)

    @property
    def names(self) -> list[str]:
        return list(self._batch.schema.names)

    def primitive(self, name: str) -> np.ndarray:
        """Reads a column of numbers, `[N]`."""
        return self._array(self._column(name, pa.types.is_primitive))

    def numbers(self, name: str) -> np.ndarray:
        """Reads a column of a table: numbers, `[N]`, or lists of one length of them, `[N, F]`."""
        listed = pa.types.is_fixed_size_list(self._column(name, lambda kind: True).type)
        return self.matrix(name) if listed else self.primitive(name)

    def lists(self, name: str) -> tuple[np.ndarray, np.ndarray]:
        """Reads a column of lists: offsets int32 `[N + 1]` and values."""
        column = self._column(name, pa.types.is_list)
        return self._offsets(column), self._array(column.values)

    def has_lists(self, name: str) -> bool:
        """Whether a column is one of lists of any lengths."""
        return pa.types.is_list(self._column(name, lambda kind: True).type)

    def lists_of_rows(self, name: str) -> tuple[np.ndarray, np.ndarray]:
        """Reads a column of lists of rows of one length: offsets int32 `[N + 1]` and values `[E, D]`."""
        column = self._column(
            name, lambda kind: pa.types.is_list(kind) and pa.types.is_fixed_size_list(kind.value_type)
        )
        rows = column.values
        return self._offsets(column), self._array(rows.values).reshape(len(rows), rows.type.list_size)

    def structs(self, name: str) -> tuple[np.ndarray, ...]:
        """Reads a column of lists of numbers of several kinds: offsets int32 `[N + 1]`, and values of each kind."""
        column = self._column(name, lambda kind: pa.types.is_list(kind) and pa.types.is_struct(kind.value_type))
        kinds = range(column.type.value_type.num_fields)
        return self._offsets(column), *(self._array(column.values.field(number)) for number in kinds)

    def matrix(self, name: str) -> np.ndarray:
        """Reads a column of fixed-size lists: `[N, F]`."""
        column = self._column(name, pa.types.is_fixed_size_list)
        return self._array(column.values).reshape(self.rows, column.type.list_size)

    def features(self, name: str) -> Rows:
        """Reads a column of features, dense or sparse: `[N, F]`. Raises ShoalError: it is neither, or damaged."""
        type_ = self._column(name, lambda kind: True).type
        if not _is_sparse(type_):
            return self.matrix(name)
        indptr, columns, values = self.structs(name)
        if len(indptr) != self.rows + 1 or indptr[0] != 0 or indptr[-1] != len(columns):
            raise ShoalError(self.path, f"the row pointer of {name!r} does not fit its values; {REMAKE}")
        width = int(type_.value_type.field(0).metadata[WIDTH])
        return CsrRows(indptr, columns, values, width)

    def _offsets(self, column: pa.ListArray) -> np.ndarray:
        return self._view(column.buffers()[1], np.dtype(np.int32))[: self.rows + 1]

    def _column(self, name: str, fits: Callable[[pa.DataType], bool]) -> pa.Array:
        column = self._batch.column(name) if name in self.names else None
        if column is not None and pa.types.is_union(column.type):
            dense, sparse = (column.field(kind) for kind in range(2))
            column = dense if len(dense) == self.rows else sparse
        if column is None or not fits(column.type):
            fault = "is missing" if column is None else f"is {column.type}"
            raise ShoalError(self.path, f"column {name!r} {fault}; {REMAKE}")
        return column

    def _array(self, column: pa.Array) -> np.ndarray:
        return self._view(column.buffers()[1], np.dtype(column.type.to_pandas_dtype()))[: len(column)]

    def _view(self, buffer: pa.Buffer | None, dtype: np.dtype) -> np.ndarray:
        """Views the part of the map that an Arrow buffer points to, as an array that may be written to privately."""
        if buffer is None or not buffer.size:
            return np.empty(0, dtype)  # an empty buffer has an address outside the map
        start = buffer.address - self._bytes.ctypes.data
        if start < 0 or start + buffer.size > len(self._bytes):
            raise ShoalError(self.path, "compressed; Shoal maps files without a copy, write it uncompressed")
        return self._bytes[start : start + buffer.size - buffer.size % dtype.itemsize].view(dtype)


def _is_sparse(type_: pa.DataType) -> bool:
    """Whether a column is what `rows_column` makes of sparse rows."""
    if not pa.types.is_list(type_) or not pa.types.is_struct(type_.value_type):
        return False
    fields = list(type_.value_type)
    width = (fields[0].metadata or {}).get(WIDTH, b"") if fields else b""
    types = [field.type for field in fields]
    return width.isdigit() and types in ([pa.int32(), pa.float32()], [pa.int32(), pa.float16()])


def _map_file(path: Path, expected: int | None) -> np.ndarray:
    """Maps the bytes of a file, uint8, in a private map."""
    try:
        with open_plain(path) as file:
            size = os.fstat(file.fileno()).st_size
            if expected not in (None, size):
                raise ShoalError(path, f"{size} bytes, the manifest says {expected}; {AGAIN}")
            return _private_map(file.fileno(), size)
    except FileNotFoundError:
        raise ShoalError(path, "missing; run `shoal prepare` again") from None
    except OSError as error:
        raise cannot_read(path, error) from error


def _inode(path: Path) -> int | None:
    try:
        return path.stat().st_ino
    except OSError:
        return None


def _private_map(file: int, size: int) -> np.ndarray:
    """Maps the first bytes of an open file privately; the map stays when the file is closed. Raises OSError.

    Python's own map, as one of ACCESS_COPY, keeps a file descriptor open: a host has thousands of maps.
    """
    if size == 0:
        return np.empty(0, np.uint8)
    address = LIBC.mmap(None, size, mmap.PROT_READ | mmap.PROT_WRITE, mmap.MAP_PRIVATE, file, 0)
    if address == ctypes.c_void_p(-1).value:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    content = (ctypes.c_uint8 * size).from_address(address)
    weakref.finalize(content, LIBC.munmap, address, size).atexit = False
    return np.frombuffer(memoryview(content), np.uint8)
