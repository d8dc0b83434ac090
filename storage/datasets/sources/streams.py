"""Numbers of a .csv.gz file without a header, and one array of an .npz file, read without holding it whole."""

import gzip
import zipfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
from pyarrow import csv

from shoal.storage.datasets.sources.source import reading
from shoal.storage.files.bounded_npy import open_npz

LONGEST_LINE = 1 << 20


def csv_blocks(path: Path, dtype: type, block_bytes: int, advice: str, first: int = 0) -> Iterator[np.ndarray]:
    """Yields rows from number `first` on, in blocks `[n, columns]` of int64, float32 or float64; empty fields are NaN.

    `block_bytes`, the text worked on at a time, are more than a line has. A ShoalError says that the file is damaged,
    cut off, or holds other things than rows of numbers.
    """
    names = [str(column) for column in range(column_count(path, advice))]
    types = {name: pa.from_numpy_dtype(dtype) for name in names}
    read = csv.ReadOptions(column_names=names, block_size=block_bytes, use_threads=False)
    convert = csv.ConvertOptions(column_types=types)
    done = 0
    with reading(path, advice), csv.open_csv(path, read, convert_options=convert) as stream:
        for batch in stream:
            skipped = min(max(first - done, 0), batch.num_rows)
            done += batch.num_rows
            if skipped == batch.num_rows:
                continue
            columns = [column.to_numpy(zero_copy_only=False) for column in batch.slice(skipped).columns]
            if np.issubdtype(dtype, np.integer) and any(column.dtype != dtype for column in columns):
                raise ValueError("a field is empty")
            yield np.stack(columns, axis=1).astype(dtype, copy=False)


def column_count(path: Path, advice: str) -> int:
    """Fields of the first line; a ShoalError says that the file is damaged or empty."""
    with reading(path, advice), gzip.open(path) as file:
        line = file.readline(LONGEST_LINE)
        if not line.strip():
            raise ValueError("it is empty")
        return line.count(b",") + 1


def number_in(path: Path, advice: str) -> int:
    """Reads the one number of a file, as OGB's counts are, at least 1; raises a ShoalError if it is none."""
    with reading(path, advice), gzip.open(path) as file:
        number = int(file.read(64))
        if not 1 <= number < 2**63:
            raise ValueError(f"{number} is no count")
        return number


class NpzMember:
    """An array inside an .npz file: its shape and dtype, whether it is stored column by column, its name in errors."""

    def __init__(self, path: Path, name: str, advice: str) -> None:
        """Reads the array's header; a ShoalError says that the file is damaged or has no such array."""
        self._path, self._name, self._advice = path, f"{name}.npy", advice
        self.where = f"{path} ({name})"
        with reading(self.where, advice), open_npz(path) as npz:
            header = npz.header(name)
        self.shape, self.columns_first, self.dtype = header.shape, header.columns_first, header.dtype
        self._start = header.start

    def values(self, first: int, count: int) -> Iterator[np.ndarray]:
        """Yields values from number `first` on in the order of the file, in blocks of `count`."""
        return self._flat(first, int(np.prod(self.shape)), count)

    def rows(self, first: int, count: int) -> Iterator[np.ndarray]:
        """Yields rows from number `first` on of an array `[N, F]`, in blocks of `count`."""
        rows, width = self.shape
        for block in self._flat(first * width, rows * width, count * width):
            yield block.reshape(-1, width)

    def columns(self, first: int, count: int) -> Iterator[np.ndarray]:
        """Yields columns from number `first` on of an array `[2, E]`, in blocks of `count`.

        Stored row by row, the two rows are two streams; of a deflated array each inflates all that comes before it.
        """
        columns = self.shape[1]
        if self.columns_first:
            for block in self._flat(2 * first, 2 * columns, 2 * count):
                yield block.reshape(-1, 2).T
            return
        upper = self._flat(first, columns, count)
        lower = self._flat(columns + first, 2 * columns, count)
        for pair in zip(upper, lower, strict=True):
            yield np.stack(pair)

    def _flat(self, first: int, last: int, count: int) -> Iterator[np.ndarray]:
        """Yields values number `first` to `last - 1` in the order of the file, in blocks of `count`."""
        total, size = int(np.prod(self.shape)), self.dtype.itemsize
        with reading(self.where, self._advice), zipfile.ZipFile(self._path) as archive:
            file = archive.open(self._name)
            file.seek(self._start + first * size)
            for start in range(first, last, count):
                wanted = min(count, last - start) * size
                data = file.read(wanted)
                if len(data) < wanted:
                    raise EOFError("it ends early")
                yield np.frombuffer(data, dtype=self.dtype)
            # Reading up to the end compares the checksum.
            if last == total and file.read(1):
                raise ValueError("it is longer than its header says")
