"""A clean CSR on disk from more edges than memory holds.

Every edge becomes two keys, one a direction: source, target, and a last bit that says which of the two was given. Keys
go to bucket files by their leading bits, a bucket that memory cannot hold is divided again, and each is sorted and
rid of duplicates in memory: the buckets in their order are the CSR. All files are read and written front to back.
"""

import json
import os
import shutil
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path
from typing import Any, BinaryIO, Self

import numba
import numpy as np

from storage.atomic import cannot_write, replacing
from storage.disk import require_disk
from storage.errors import ShoalError
from storage.graph import Cleaning
from storage.journal import Journal
from storage.npy_rows import HEADER_BYTES, npy_header, to_disk
from storage.watch import step

Blocks = Callable[[int], Iterable[np.ndarray]]

KEY_BYTES = 8
MAX_BUCKETS = 256
MAX_SLICE = 1 << 22
DIGIT_BITS = 10
INDPTR, INDICES, CLEANING = "indptr.npy", "indices.npy", "cleaning.json"


def external_csr(
    blocks: Blocks, nodes: int, edges: int, folder: Path, memory_limit: int, where: str
) -> tuple[np.ndarray, np.ndarray, Cleaning]:
    """Makes edges undirected and simple as `clean_edges` does, with the result on disk.

    A killed call goes on where it was, losing the work on about `memory_limit` bytes of scratch, and ends with the same
    bytes; a finished one is not repeated. Only one process may work on a folder.

    Args:
        blocks: `blocks(first)` gives the edges from number `first` on, integers `[2, e]` of any block size, in the
            same order every time; asked for a `first` other than 0 only after a kill, and then at the end of a block.
        nodes: Number of nodes N, at most 2^31 - 1.
        edges: Number of edges that the blocks hold, before cleaning.
        folder: Gets the result; beside it lies scratch of 16 bytes an edge while this runs.
        memory_limit: Bytes of memory to use beside the given blocks and the interpreter; what is mapped can be evicted.
        where: File or dataset that an error names.

    Returns:
        Memory maps indptr int64 `[N + 1]` and indices int32 `[E]`, and the counts of `clean_edges`.

    Raises:
        ShoalError: An end of an edge is not a node, the number of edges is another one, or the disk is too small.
    """
    if not 0 <= nodes < 2**31:
        raise ShoalError(f"{where}: {nodes} nodes; from 0 to 2^31 - 1 can be numbered")
    if not folder.exists():
        work = folder.with_name(folder.name + ".unfinished")
        try:
            _Build(work, nodes, edges, memory_limit, where).run(blocks)
            os.replace(work, folder)
        except OSError as error:
            raise cannot_write(folder, error) from error
    return open_csr(folder)


def open_csr(folder: Path) -> tuple[np.ndarray, np.ndarray, Cleaning]:
    """Maps the result of `external_csr`.

    Raises:
        ShoalError: A file is missing or damaged.
    """
    try:
        indptr = np.load(folder / INDPTR, mmap_mode="r", allow_pickle=False)
        # An empty file cannot be mapped.
        indices = np.load(folder / INDICES, mmap_mode="r" if indptr[-1] else None, allow_pickle=False)
        cleaning = Cleaning(**json.loads((folder / CLEANING).read_text()))
        if indptr[-1] != len(indices):
            raise ValueError("the row pointer does not fit the neighbours")
    except (OSError, ValueError, TypeError, IndexError) as error:
        raise ShoalError(f"{folder}: damaged ({error}); delete the folder, and it is made again") from error
    return indptr, indices, cleaning


class _Build:
    """One CSR in the making, in a folder of its own."""

    def __init__(self, work: Path, nodes: int, edges: int, memory_limit: int, where: str) -> None:
        self.work, self.nodes, self.edges, self.where = work, nodes, edges, where
        # A sort holds its keys twice, a slice of edges two keys an edge twice.
        self.capacity = max(4, memory_limit // (3 * KEY_BYTES))
        self.slice = min(MAX_SLICE, max(1, memory_limit // (8 * KEY_BYTES)))
        self.commit_bytes = memory_limit
        self.target_bits = max(1, (nodes - 1).bit_length())
        self.row_bits = self.target_bits + 1
        self.buckets = work / "buckets"

    def run(self, blocks: Blocks) -> None:
        self.work.mkdir(parents=True, exist_ok=True)
        journal = Journal(self.work / "progress.jsonl")
        asked = {"nodes": self.nodes, "edges": self.edges}
        if not journal.entries or {key: journal.entries[0].get(key) for key in asked} != asked:
            shutil.rmtree(self.work)
            self.buckets.mkdir(parents=True)
            journal = Journal(self.work / "progress.jsonl")
            shift = _shift(self.target_bits + self.row_bits, 2 * self.edges, self.capacity)
            journal.append({**asked, "shift": shift})
        self.shift: int = journal.entries[0]["shift"]
        if not any("distributed" in entry for entry in journal.entries):
            self._distribute(blocks, journal)
        self._sort_buckets(journal)
        shutil.rmtree(self.buckets)
        (self.work / "progress.jsonl").unlink()

    def _distribute(self, blocks: Blocks, journal: Journal) -> None:
        """Writes the keys of all edges to bucket files."""
        count = self._bucket_count()
        saved: dict[str, Any] = journal.entries[-1] if len(journal.entries) > 1 else {"edges": 0, "loops": 0}
        read, loops = int(saved["edges"]), int(saved["loops"])
        require_disk(self.work, 2 * KEY_BYTES * (self.edges - read), "the edges being sorted")
        files = _Buckets([self._bucket(bucket) for bucket in range(count)], saved.get("bytes", [0] * count))
        keys = np.empty(2 * self.slice, dtype=np.uint64)
        with files, step(f"{self.where}: edges", self.edges, "edges", read) as advance:
            for block in blocks(read):
                self._check_block(block)
                for first in range(0, block.shape[1], self.slice):
                    source, target = block[:, first : first + self.slice]
                    found, stranger = _keys_of(_signed(source), _signed(target), self.nodes, self.row_bits, keys)
                    if stranger >= 0:
                        self._refuse(source[stranger], target[stranger])
                    loops += len(source) - found // 2
                    files.write(keys[:found], 0, self.shift)
                read += block.shape[1]
                advance(block.shape[1])
                if files.unsaved >= self.commit_bytes:
                    journal.append({"edges": read, "loops": loops, "bytes": files.save()})
            if read != self.edges:
                raise ShoalError(f"{self.where}: {read} edges, but {self.edges} are announced; get the file again")
            files.save()
        journal.append({"distributed": True, "loops": loops})

    def _check_block(self, block: np.ndarray) -> None:
        if block.ndim != 2 or len(block) != 2 or block.dtype.kind not in "iu":
            found = f"{block.dtype} {list(block.shape)}"
            raise ShoalError(f"{self.where}: edge_index must be integers of shape [2, E], found {found}")

    def _sort_buckets(self, journal: Journal) -> None:
        """Turns buckets into rows, one after another, and deletes them."""
        begin = next(i for i, entry in enumerate(journal.entries) if "distributed" in entry)
        done = journal.entries[begin + 1 :]
        start = done[-1] if done else {"indices": 0, "given": 0, "distinct": 0}
        self.entries, self.given, self.distinct = start["indices"], start["given"], start["distinct"]
        left = sum(self._bucket(bucket).stat().st_size for bucket in range(len(done), self._bucket_count()))
        require_disk(self.work, left // 2 + (0 if done else KEY_BYTES * self.nodes), "the sorted edges")
        with ExitStack() as stack:
            self.indptr = stack.enter_context(_reopened(self.work / INDPTR))
            self.indices = stack.enter_context(_reopened(self.work / INDICES))
            self.indices.truncate(HEADER_BYTES + 4 * self.entries)
            self.indices.seek(HEADER_BYTES + 4 * self.entries)
            self.indptr.seek(HEADER_BYTES)
            if not done:
                self.indptr.write(bytes(KEY_BYTES))
            advance = stack.enter_context(step(f"{self.where}: sort", self._bucket_count(), "buckets", len(done)))
            for bucket in range(len(done), self._bucket_count()):
                self._rows(self._bucket(bucket), bucket << self.shift, self.shift)
                for file in (self.indptr, self.indices):
                    to_disk(file)
                journal.append({"indices": self.entries, "given": self.given, "distinct": self.distinct})
                self._bucket(bucket).unlink()
                advance(1)
            for file, length, dtype in (
                (self.indptr, self.nodes + 1, np.int64),
                (self.indices, self.entries, np.int32),
            ):
                file.seek(0)
                file.write(npy_header((length,), np.dtype(dtype)))
                to_disk(file)
        loops = journal.entries[begin]["loops"]
        cleaning = Cleaning(self.edges, loops, self.given - self.distinct, self.entries - self.distinct)
        with replacing(self.work / CLEANING) as unfinished:
            unfinished.write_text(json.dumps(asdict(cleaning)))

    def _rows(self, path: Path, low: int, shift: int) -> None:
        """Appends the rows of the keys from `low` to `low + 2^shift - 1`, which a file holds in any order."""
        count = path.stat().st_size // KEY_BYTES
        if count <= self.capacity:
            keys = _sorted(np.fromfile(path, dtype=np.uint64), shift)
            kept, given, distinct = _simplify(keys)
            self._append(keys[:kept], given, distinct, low, shift)
        elif shift == 1:
            # All are one pair of nodes, repeated.
            given = sum(int((chunk & np.uint64(1) == 0).sum()) for chunk in self._chunks(path))
            self._append(np.array([low >> 1], dtype=np.uint64), given, min(1, given), low, shift)
        else:
            self._rows_of_parts(path, count, low, shift)

    def _rows_of_parts(self, path: Path, count: int, low: int, shift: int) -> None:
        """Divides a file that memory cannot hold by the next bits of its keys, and appends part after part."""
        folder = path.with_name(path.name + ".parts")
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        require_disk(folder, KEY_BYTES * count, "the edges of one bucket")
        finer = _shift(shift, count, self.capacity)
        paths = [folder / f"{part:03d}" for part in range(1 << (shift - finer))]
        with _Buckets(paths, [0] * len(paths)) as parts:
            for chunk in self._chunks(path):
                parts.write(chunk, low, finer)
        for number, part in enumerate(paths):
            self._rows(part, low + (number << finer), finer)
            part.unlink()
        folder.rmdir()

    def _append(self, pairs: np.ndarray, given: int, distinct: int, low: int, shift: int) -> None:
        """Writes the rows of ascending pairs of source and target, uint64 without the last bit of a key."""
        row, end = low >> self.row_bits, min(((low + (1 << shift) - 1) >> self.row_bits) + 1, self.nodes)
        self.indptr.seek(HEADER_BYTES + KEY_BYTES * (row + 1))
        at = 0
        while row < end:
            ends = np.empty(min(self.capacity, MAX_SLICE, end - row), dtype=np.int64)
            at = _row_ends(pairs, at, row, self.target_bits, self.entries, ends)
            self.indptr.write(ends.data)
            row += len(ends)
        target = np.uint64((1 << self.target_bits) - 1)
        for first in range(0, len(pairs), MAX_SLICE):
            self.indices.write((pairs[first : first + MAX_SLICE] & target).astype(np.int32).data)
        self.entries += len(pairs)
        self.given += given
        self.distinct += distinct

    def _chunks(self, path: Path) -> Iterator[np.ndarray]:
        with path.open("rb") as file:
            while len(chunk := np.fromfile(file, dtype=np.uint64, count=min(self.capacity, 2 * MAX_SLICE))):
                yield chunk

    def _bucket(self, number: int) -> Path:
        return self.buckets / f"{number:03d}"

    def _bucket_count(self) -> int:
        return (((self.nodes << self.row_bits) - 1) >> self.shift) + 1

    def _refuse(self, source: np.integer, target: np.integer) -> None:
        stranger = next(int(end) for end in (source, target) if not 0 <= end < self.nodes)
        raise ShoalError(f"{self.where}: edge_index names node {stranger}, but the {self.nodes} nodes count from 0")


class _Buckets:
    """Files that keys are dealt to by their leading bits."""

    def __init__(self, paths: list[Path], sizes: list[int]) -> None:
        """Opens the files and cuts them to their sizes in bytes at the last save."""
        self._stack = ExitStack()
        self._files = [self._stack.enter_context(_reopened(path)) for path in paths]
        for file, size in zip(self._files, sizes):
            file.truncate(size)
            file.seek(size)
        self._space = np.empty(0, dtype=np.uint64)
        self.unsaved = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self._stack.close()

    def write(self, keys: np.ndarray, low: int, shift: int) -> None:
        """Deals keys of at least `low` by their distance from it over 2^shift."""
        if len(self._space) < len(keys):
            self._space = np.empty(len(keys), dtype=np.uint64)
        dealt = self._space[: len(keys)]
        ends = _deal(keys, np.uint64(low), np.uint64(shift), len(self._files), dealt)
        for file, first, last in zip(self._files, ends[:-1], ends[1:]):
            if first < last:
                file.write(dealt[first:last].data)
        self.unsaved += keys.nbytes

    def save(self) -> list[int]:
        """Brings everything to disk and gives the sizes in bytes."""
        for file in self._files:
            to_disk(file)
        self.unsaved = 0
        return [file.tell() for file in self._files]


def _reopened(path: Path) -> BinaryIO:
    """A file to write anywhere, with what it has."""
    return path.open("r+b" if path.exists() else "w+b")


def _shift(bits: int, keys: int, capacity: int) -> int:
    """Trailing bits of keys of some bits that do not choose a bucket, so that an average one is a quarter full."""
    buckets = min(MAX_BUCKETS, max(2, 4 * keys // capacity))
    return max(1, bits - (buckets - 1).bit_length())


def _signed(ends: np.ndarray) -> np.ndarray:
    """As int32 or int64, the types that the kernels are compiled for; a number beyond them becomes -1."""
    if ends.dtype in (np.int32, np.int64):
        return ends
    wide = ends.astype(np.int64)
    return np.where(wide == ends, wide, -1) if ends.dtype == np.uint64 else wide


def _sorted(keys: np.ndarray, bits: int) -> np.ndarray:
    """Keys in ascending order, by their last bits only."""
    passes = -(-bits // DIGIT_BITS)
    return _radix_sorted(keys, np.empty_like(keys), passes, -(-bits // passes))


@numba.njit(cache=True)
def _keys_of(source: np.ndarray, target: np.ndarray, nodes: int, row_bits: int, keys: np.ndarray) -> tuple[int, int]:
    """Both keys of every edge that is no loop: how many, and the first edge that names no node, or -1."""
    at = 0
    for edge in range(len(source)):
        a, b = np.int64(source[edge]), np.int64(target[edge])
        if a < 0 or a >= nodes or b < 0 or b >= nodes:
            return at, edge
        if a != b:
            keys[at] = (a << row_bits) | (b << 1)
            keys[at + 1] = (b << row_bits) | (a << 1) | 1
            at += 2
    return at, -1


@numba.njit(cache=True)
def _deal(keys: np.ndarray, low: np.uint64, shift: np.uint64, buckets: int, dealt: np.ndarray) -> np.ndarray:
    """Keys in order of bucket, stable; the ends of the buckets, `[buckets + 1]`."""
    ends = np.zeros(buckets + 1, dtype=np.int64)
    for key in keys:
        ends[((key - low) >> shift) + np.uint64(1)] += 1
    for bucket in range(buckets):
        ends[bucket + 1] += ends[bucket]
    heads = ends[:-1].copy()
    for key in keys:
        bucket = (key - low) >> shift
        dealt[heads[bucket]] = key
        heads[bucket] += 1
    return ends


@numba.njit(cache=True)
def _radix_sorted(keys: np.ndarray, spare: np.ndarray, passes: int, digit_bits: int) -> np.ndarray:
    mask = np.uint64((1 << digit_bits) - 1)
    heads = np.empty(1 << digit_bits, dtype=np.int64)
    for number in range(passes):
        shift = np.uint64(number * digit_bits)
        heads[:] = 0
        for key in keys:
            heads[(key >> shift) & mask] += 1
        start = 0
        for digit in range(len(heads)):
            count = heads[digit]
            heads[digit] = start
            start += count
        for key in keys:
            digit = (key >> shift) & mask
            spare[heads[digit]] = key
            heads[digit] += 1
        keys, spare = spare, keys
    return keys


@numba.njit(cache=True)
def _simplify(keys: np.ndarray) -> tuple[int, int, int]:
    """Leaves distinct pairs, keys without their last bit, in front: how many pairs, keys given, pairs given."""
    kept = given = distinct = 0
    last = np.uint64(0)
    for at in range(len(keys)):
        pair, is_given = keys[at] >> np.uint64(1), (keys[at] & np.uint64(1)) == 0
        is_new = at == 0 or pair != last
        given += is_given
        # A given key sorts before its reverse, so the first key of a pair says whether the pair was given.
        distinct += is_new and is_given
        if is_new:
            keys[kept] = pair
            kept += 1
            last = pair
    return kept, given, distinct


@numba.njit(cache=True)
def _row_ends(pairs: np.ndarray, at: int, row: int, target_bits: int, before: int, ends: np.ndarray) -> int:
    """Fills the entries that end with each row from `row` on, reading pairs from number `at` on; where it stopped."""
    for i in range(len(ends)):
        while at < len(pairs) and np.int64(pairs[at] >> np.uint64(target_bits)) <= row + i:
            at += 1
        ends[i] = before + at
    return at
