"""Numbers of a .csv.gz file without a header, in blocks of rows."""

import gzip
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
from pyarrow import csv

from shoal.storage.datasets.sources.source import reading

LONGEST_LINE = 1 << 20


def csv_blocks(path: Path, dtype: type, block_bytes: int, advice: str, first: int = 0) -> Iterator[np.ndarray]:
    """Rows from number `first` on, in blocks `[n, columns]` of int64, float32 or float64; an empty field is NaN.

    `block_bytes`, the text worked on at a time, are more than a line has.

    Raises:
        ShoalError: The file is damaged, cut off, or holds other things than rows of numbers.
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
    """The one number that a file holds, as OGB's counts do, at least 1; a ShoalError says that it is none."""
    with reading(path, advice), gzip.open(path) as file:
        number = int(file.read(64))
        if not 1 <= number < 2**63:
            raise ValueError(f"{number} is no count")
        return number
