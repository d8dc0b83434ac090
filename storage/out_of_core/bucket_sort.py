"""Scratch files of keys, one for every range of keys: a range that memory holds can be sorted by itself."""

import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Self

import numpy as np
import xxhash

from shoal.storage.errors import ShoalError
from shoal.storage.files.atomic import reopen, to_disk
from shoal.storage.files.digest import digest
from shoal.storage.files.disk import require_disk
from shoal.storage.files.reading import cannot_read
from shoal.storage.graph.graph import no_node, require_edges
from shoal.storage.kernels.edge_keys import (
    KEY_BYTES,
    KeyLayout,
    as_signed,
    distinct_pairs,
    group_by_bucket,
    keys_of,
)
from shoal.storage.out_of_core.csr_files import CsrWriter
from shoal.storage.progress import step
from shoal.storage.runner import runner
from shoal.storage.store.writer import Journal
from shoal.storage.threads import ahead

MAX_BUCKETS = 256
MAX_CHUNK = 1 << 23
# A sort holds its keys twice, and its result is sent; the one before is written meanwhile.
OF_A_SORT = 4


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
        """Yields the keys in the order of the file, at most `limit` at a time."""
        with self.path.open("rb") as file:
            while len(chunk := np.fromfile(file, dtype=np.uint64, count=min(limit, MAX_CHUNK))):
                yield chunk


def bucket_shift(bits: int, keys: int, capacity: int) -> int:
    """Returns how many trailing bits do not choose a bucket, so that an average bucket is a quarter full."""
    buckets = min(MAX_BUCKETS, max(2, 4 * keys // capacity))
    return max(1, bits - (buckets - 1).bit_length())


def buckets_in(folder: Path, low: int, end: int, shift: int) -> list[Bucket]:
    """Lists buckets for the keys from `low` to `end - 1`, 2^shift keys a bucket; no file is made."""
    count = ((end - low - 1) >> shift) + 1
    return [Bucket(folder / f"{number:03d}", low + (number << shift), shift) for number in range(count)]


NOTHING: Mapping[Bucket, tuple[int, str]] = {}


class BucketWriter:
    """Open files of successive buckets of one shift."""

    def __init__(self, buckets: list[Bucket], saved: Mapping[Bucket, tuple[int, str]] = NOTHING) -> None:
        """Opens the files and cuts them to what was `saved`. Raises ShoalError: a file is not as it was then."""
        self._buckets = buckets
        self._stack = ExitStack()
        self._files = [self._stack.enter_context(reopen(bucket.path)) for bucket in buckets]
        self._hashers = [xxhash.xxh3_128() for _ in buckets]
        for bucket, file, hasher in zip(buckets, self._files, self._hashers):
            size, digest = saved.get(bucket, (0, hasher.hexdigest()))
            file.truncate(size)
            while chunk := file.read(MAX_CHUNK):
                hasher.update(chunk)
            if hasher.hexdigest() != digest:
                raise _damage_error(bucket)
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
        for file, hasher, first, last in zip(self._files, self._hashers, starts[:-1], starts[1:]):
            if first < last:
                file.write(grouped[first:last].data)
                hasher.update(grouped[first:last].data)
        self.unsaved += keys.nbytes

    def save(self) -> list[tuple[int, str]]:
        """Brings everything to disk; gives bytes and XXH3-128 of every file, as it was written."""
        for file in self._files:
            to_disk(file)
        self.unsaved = 0
        return [(file.tell(), hasher.hexdigest()) for file, hasher in zip(self._files, self._hashers)]


def _damage_error(bucket: Bucket) -> ShoalError:
    return ShoalError(bucket.path, f"is not as it was written; delete {bucket.path.parents[1]} and run it again")


Blocks = Callable[[int], Iterable[np.ndarray]]

MAX_SLICE = 1 << 22


@dataclass(frozen=True)
class Edges:
    """The edges that a CSR is made of; attributes are arguments of `external_csr`."""

    blocks: Blocks
    nodes: int
    count: int
    where: str


def edges_to_buckets(edges: Edges, buckets: list[Bucket], work: Path, memory_limit: int, journal: Journal) -> None:
    """Writes both keys of every edge that is no loop, and notes in the journal that it is done, and the loops.

    Raises ShoalError: an end of an edge is not a node, the number of edges is another one, or the disk is too small.

    Args:
        edges: The edges; those that the journal has are not read again.
        memory_limit: Bytes of memory to use; about as many bytes of scratch are written between two journal entries.
    """
    layout = KeyLayout(edges.nodes)
    start: dict[str, Any] = journal.entries[-1] if len(journal.entries) > 1 else {"edges": 0, "loops": 0}
    read, loops = int(start["edges"]), int(start["loops"])
    require_disk(work, 2 * KEY_BYTES * (edges.count - read), "the edges being sorted")
    # An edge has two keys, and both are in memory twice while they are grouped by bucket.
    slice_edges = min(MAX_SLICE, max(1, memory_limit // (8 * KEY_BYTES)))
    writer = BucketWriter(buckets, dict(zip(buckets, start.get("saved", ()))))
    keys = np.empty(2 * slice_edges, dtype=np.uint64)
    with writer, step(f"{edges.where}: edges", edges.count, "edges", read) as advance:
        for block in ahead(iter(edges.blocks(read))):
            require_edges(block, edges.where)
            for first in range(0, block.shape[1], slice_edges):
                source, target = block[:, first : first + slice_edges]
                count, wrong = keys_of(as_signed(source), as_signed(target), edges.nodes, layout.row_bits, keys)
                if wrong >= 0:
                    outside = next(int(end) for end in (source[wrong], target[wrong]) if not 0 <= end < edges.nodes)
                    raise no_node(outside, edges.nodes, edges.where)
                loops += len(source) - count // 2
                writer.write(keys[:count])
            read += block.shape[1]
            advance(block.shape[1])
            if writer.unsaved >= memory_limit:
                journal.append({"edges": read, "loops": loops, "saved": writer.save()})
        if read != edges.count:
            raise ShoalError(edges.where, f"{read} edges, but {edges.count} are announced; get the file again")
        saved = writer.save()
    journal.append({"distributed": saved, "loops": loops})


@dataclass(frozen=True)
class Counts:
    """Entries of the CSR so far; directed edges given for them, without loops; different ones among these."""

    indices: int = 0
    given: int = 0
    distinct: int = 0


def buckets_to_rows(
    buckets: list[Bucket], layout: KeyLayout, work: Path, capacity: int, journal: Journal, where: str
) -> Counts:
    """Writes `indptr.npy` and `indices.npy`, from where the journal says, and deletes the buckets.

    Raises ShoalError: the disk is too small.
    """
    begin = next(number for number, entry in enumerate(journal.entries) if "distributed" in entry)
    done = journal.entries[begin + 1 :]
    counts = Counts(**done[-1]) if done else Counts()
    left = buckets[len(done) :]
    size = sum(bucket.bytes for bucket in left)
    require_disk(work, size // 2 + (0 if done else KEY_BYTES * layout.nodes), "the sorted edges")
    digests = {bucket: digest for bucket, (_, digest) in zip(buckets, journal.entries[begin]["distributed"])}
    whole = [bucket for bucket in left if not _is_divided(bucket, capacity)]
    memory = OF_A_SORT * KEY_BYTES * min(capacity, max((bucket.keys for bucket in whole), default=0))
    results = ahead(
        runner(size, work).results(_sort, (digests, capacity), [[item] for item in whole], memory, ordered=True)
    )
    csr = CsrWriter(work, layout, counts.indices, capacity)
    with csr, step(f"{where}: sort", len(buckets), "buckets", len(done)) as advance:
        for bucket in left:
            if _is_divided(bucket, capacity):
                _require_sound(bucket, digests)
                given, distinct = _append_parts(csr, bucket, layout, capacity)
            else:
                _, (pairs, given, distinct) = next(results)
                csr.append(pairs, *_rows(bucket, layout))
                del pairs
            csr.save()
            counts = Counts(csr.entries, counts.given + given, counts.distinct + distinct)
            journal.append(asdict(counts))
            bucket.path.unlink()
            advance(1)
        csr.finish()
    return counts


def _is_divided(bucket: Bucket, capacity: int) -> bool:
    """Whether a bucket is too large to be sorted at once; one of a single pair of nodes, repeated, needs no sort."""
    return bucket.keys > capacity and bucket.shift > 1


def _rows(bucket: Bucket, layout: KeyLayout) -> tuple[int, int]:
    """Returns the first row of a bucket, and the end of its last."""
    last = bucket.low + (1 << bucket.shift) - 1
    return bucket.low >> layout.row_bits, min((last >> layout.row_bits) + 1, layout.nodes)


def _require_sound(bucket: Bucket, digests: Mapping[Bucket, str]) -> None:
    """Compares a bucket with what was written. Raises ShoalError: it is lost or damaged."""
    try:
        if digest(bucket.path) == digests[bucket]:
            return
    except OSError as error:
        raise cannot_read(bucket.path, error) from error
    raise _damage_error(bucket)


def _sort(given: tuple[Mapping[Bucket, str], int], buckets: Sequence[Bucket]) -> Iterator[tuple[np.ndarray, int, int]]:
    """Sorts every bucket: its distinct pairs, ascending, and given and distinct edges as `Counts` has them."""
    digests, capacity = given
    for bucket in buckets:
        _require_sound(bucket, digests)
        yield _pairs_of(bucket, capacity)


def _pairs_of(bucket: Bucket, capacity: int) -> tuple[np.ndarray, int, int]:
    if bucket.keys > capacity:
        # All are one pair of nodes, repeated.
        given = sum(int((chunk & np.uint64(1) == 0).sum()) for chunk in bucket.chunks(capacity))
        return np.array([bucket.low >> 1], dtype=np.uint64), given, min(1, given)
    keys = bucket.read()
    keys.sort()
    count, given, distinct = distinct_pairs(keys)
    return keys[:count], given, distinct


def _append_parts(csr: CsrWriter, bucket: Bucket, layout: KeyLayout, capacity: int) -> tuple[int, int]:
    """Divides a bucket, and appends the rows of part after part."""
    folder = bucket.path.with_name(bucket.path.name + ".parts")
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    keys = bucket.keys
    require_disk(folder, KEY_BYTES * keys, "the edges of one bucket")
    shift = bucket_shift(bucket.shift, keys, capacity)
    parts = buckets_in(folder, bucket.low, bucket.low + (1 << bucket.shift), shift)
    with BucketWriter(parts) as writer:
        for chunk in bucket.chunks(capacity):
            writer.write(chunk)
    given = distinct = 0
    for part in parts:
        if _is_divided(part, capacity):
            own_given, own_distinct = _append_parts(csr, part, layout, capacity)
        else:
            pairs, own_given, own_distinct = _pairs_of(part, capacity)
            csr.append(pairs, *_rows(part, layout))
        given, distinct = given + own_given, distinct + own_distinct
        part.path.unlink()
    folder.rmdir()
    return given, distinct
