"""Scratch files of keys, one for every range of keys: a range that memory holds can be sorted by itself."""

from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import numpy as np

from storage.edge_keys import KEY_BYTES, group_by_bucket
from storage.resumable_file import reopened, to_disk

MAX_BUCKETS = 256
MAX_CHUNK = 1 << 23


@dataclass(frozen=True)
class Bucket:
    """A file of keys from `low` to `low + 2^shift - 1`, uint64, in any order and any number of times."""

    path: Path
    low: int
    shift: int

    @property
    def bytes(self) -> int:
        return self.path.stat().st_size

    @property
    def keys(self) -> int:
        """Number of keys."""
        return self.bytes // KEY_BYTES

    def read(self) -> np.ndarray:
        return np.fromfile(self.path, dtype=np.uint64)

    def chunks(self, limit: int) -> Iterator[np.ndarray]:
        """The keys in the order of the file, at most `limit` at a time."""
        with self.path.open("rb") as file:
            while len(chunk := np.fromfile(file, dtype=np.uint64, count=min(limit, MAX_CHUNK))):
                yield chunk


def bucket_shift(bits: int, keys: int, capacity: int) -> int:
    """Trailing bits that do not choose a bucket, such that an average bucket is a quarter full.

    Args:
        bits: Bits in which the keys differ.
        keys: Number of keys.
        capacity: Keys that memory holds at once.
    """
    buckets = min(MAX_BUCKETS, max(2, 4 * keys // capacity))
    return max(1, bits - (buckets - 1).bit_length())


def buckets_in(folder: Path, low: int, end: int, shift: int) -> list[Bucket]:
    """Buckets for the keys from `low` to `end - 1`, 2^shift keys a bucket; no file is made."""
    count = ((end - low - 1) >> shift) + 1
    return [Bucket(folder / f"{number:03d}", low + (number << shift), shift) for number in range(count)]


class BucketWriter:
    """Open files of successive buckets of one shift.

    Attributes:
        unsaved: Bytes written since the last `save`.
    """

    def __init__(self, buckets: list[Bucket], sizes: list[int]) -> None:
        """Opens the files and cuts them to their sizes in bytes at the last save."""
        self._buckets = buckets
        self._stack = ExitStack()
        self._files = [self._stack.enter_context(reopened(bucket.path)) for bucket in buckets]
        for file, size in zip(self._files, sizes):
            file.truncate(size)
            file.seek(size)
        self._space = np.empty(0, dtype=np.uint64)
        self.unsaved = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self._stack.close()

    def write(self, keys: np.ndarray) -> None:
        """Appends each key to the file of its bucket."""
        if len(self._space) < len(keys):
            self._space = np.empty(len(keys), dtype=np.uint64)
        low, shift = np.uint64(self._buckets[0].low), np.uint64(self._buckets[0].shift)
        grouped = self._space[: len(keys)]
        starts = group_by_bucket(keys, low, shift, len(self._files), grouped)
        for file, first, last in zip(self._files, starts[:-1], starts[1:]):
            if first < last:
                file.write(grouped[first:last].data)
        self.unsaved += keys.nbytes

    def save(self) -> list[int]:
        """Brings everything to disk and gives the sizes in bytes."""
        for file in self._files:
            to_disk(file)
        self.unsaved = 0
        return [file.tell() for file in self._files]
