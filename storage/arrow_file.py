"""One Arrow IPC file with one record batch: written atomically, opened as a private memory map without a copy."""

import hashlib
import mmap
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa

from storage.errors import ShoalError

FORMAT = 1


@dataclass(frozen=True)
class FileRecord:
    """Size in bytes and SHA-256 of a finished file, as the manifest keeps them."""

    bytes: int
    sha256: str


def checksum(path: Path) -> str:
    """SHA-256 of a file, in hexadecimal."""
    with path.open("rb") as f:
        return hashlib.file_digest(f, "sha256").hexdigest()


def fixed_rows(array: np.ndarray) -> pa.FixedSizeListArray:
    """A `[N, F]` array as an Arrow column of N lists of length F, without a copy if it is contiguous."""
    rows, width = array.shape
    flat = np.ascontiguousarray(array).reshape(-1)
    values = pa.Array.from_buffers(pa.from_numpy_dtype(flat.dtype), len(flat), [None, pa.py_buffer(flat)])
    return pa.FixedSizeListArray.from_arrays(values, width) if rows else pa.array([], pa.list_(values.type, width))


def write(path: Path, kind: str, columns: Mapping[str, pa.Array]) -> FileRecord:
    """Writes columns as one record batch; the file appears under its name only when it is complete.

    Args:
        path: Where to write; the folder is made.
        kind: What the file holds (`shard`, `split`, `hops`), checked by `open_file`.
        columns: Arrow columns of equal length.

    Raises:
        ShoalError: The disk is full.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    unfinished = path.with_name(path.name + ".unfinished")
    metadata = {"shoal.kind": kind, "shoal.format": str(FORMAT)}
    schema = pa.schema([pa.field(name, column.type) for name, column in columns.items()], metadata=metadata)
    try:
        with pa.OSFile(str(unfinished), "wb") as sink, pa.ipc.new_file(sink, schema) as writer:
            writer.write_batch(pa.RecordBatch.from_arrays(list(columns.values()), schema=schema))
        with unfinished.open("rb") as f:
            os.fsync(f.fileno())
        record = FileRecord(unfinished.stat().st_size, checksum(unfinished))
        os.replace(unfinished, path)
    except OSError as error:
        unfinished.unlink(missing_ok=True)
        raise ShoalError(
            f"{path}: cannot be written: {error.strerror or error}; free space or choose another folder"
        ) from error
    return record


class MappedFile:
    """The columns of an Arrow file as NumPy arrays over one private (copy-on-write) memory map.

    Pages are shared by all processes of a machine through the page cache. Writing into an array changes a private
    copy of the page, never the file.
    """

    def __init__(self, path: Path, kind: str, record: FileRecord | None = None) -> None:
        """Maps a file.

        Raises:
            ShoalError: The file is missing, truncated, damaged, or not of this kind and format.
        """
        self.path = path
        again = "run `shoal verify` to see what else is damaged, delete the file and run `shoal prepare` again"
        try:
            size = path.stat().st_size
            if record is not None and size != record.bytes:
                raise ShoalError(f"{path}: {size} bytes, the manifest says {record.bytes}; {again}")
            with path.open("rb") as f:
                self._bytes = np.frombuffer(mmap.mmap(f.fileno(), 0, access=mmap.ACCESS_COPY), dtype=np.uint8)
            reader = pa.ipc.open_file(pa.BufferReader(pa.py_buffer(self._bytes)))
            self._batch = reader.get_batch(0)
        except FileNotFoundError:
            raise ShoalError(f"{path}: missing; run `shoal prepare` again") from None
        except (pa.ArrowInvalid, pa.ArrowSerializationError, ValueError, IndexError, OSError) as error:
            raise ShoalError(f"{path}: truncated or not an Arrow file ({error}); {again}") from error
        metadata = reader.schema.metadata or {}
        if metadata.get(b"shoal.kind") != kind.encode() or metadata.get(b"shoal.format") != str(FORMAT).encode():
            raise ShoalError(f"{path}: not a {kind} of format {FORMAT}; {again}")

    @property
    def rows(self) -> int:
        return int(self._batch.num_rows)

    @property
    def names(self) -> list[str]:
        return list(self._batch.schema.names)

    def primitive(self, name: str) -> np.ndarray:
        """A column of numbers, `[N]`."""
        return self._array(self._column(name))

    def lists(self, name: str) -> tuple[np.ndarray, np.ndarray]:
        """A column of lists: offsets int32 `[N + 1]` and values."""
        column = self._column(name)
        offsets = self._view(column.buffers()[1], np.dtype(np.int32))[: self.rows + 1]
        return offsets, self._array(column.values)

    def matrix(self, name: str) -> np.ndarray:
        """A column of fixed-size lists: `[N, F]`."""
        column = self._column(name)
        return self._array(column.values).reshape(self.rows, column.type.list_size)

    def _column(self, name: str) -> pa.Array:
        if name not in self._batch.schema.names:
            raise ShoalError(f"{self.path}: column {name!r} is missing; delete the file and run `shoal prepare` again")
        return self._batch.column(name)

    def _array(self, column: pa.Array) -> np.ndarray:
        return self._view(column.buffers()[1], np.dtype(column.type.to_pandas_dtype()))[: len(column)]

    def _view(self, buffer: pa.Buffer, dtype: np.dtype) -> np.ndarray:
        """The part of the map that an Arrow buffer points to, as an array that may be written to privately."""
        start = buffer.address - self._bytes.ctypes.data
        if start < 0 or start + buffer.size > len(self._bytes):
            raise ShoalError(f"{self.path}: compressed; Shoal maps files without a copy, write it uncompressed")
        return self._bytes[start : start + buffer.size - buffer.size % dtype.itemsize].view(dtype)
