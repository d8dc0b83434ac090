"""The second step of a CSR on disk: bucket after bucket is sorted and appended as rows, without duplicates.

A bucket that memory cannot hold is divided into parts by the next bits of its keys, and those are sorted instead.
"""

import shutil
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from storage.bucket_files import Bucket, BucketWriter, bucket_shift, buckets_in
from storage.csr_files import CsrWriter
from storage.disk import require_disk
from storage.edge_keys import KEY_BYTES, KeyLayout, distinct_pairs, sorted_keys
from storage.journal import Journal
from storage.watch import step


@dataclass(frozen=True)
class Counts:
    """What the rows written so far hold.

    Attributes:
        indices: Entries of the CSR.
        given: Directed edges that were given, loops left out.
        distinct: Different ones among those.
    """

    indices: int = 0
    given: int = 0
    distinct: int = 0


def buckets_to_rows(
    buckets: list[Bucket], layout: KeyLayout, work: Path, capacity: int, journal: Journal, where: str
) -> Counts:
    """Writes `indptr.npy` and `indices.npy`, and deletes the buckets.

    Args:
        buckets: All keys of the graph.
        layout: How keys hold source and target.
        work: Folder of the CSR in the making.
        capacity: Keys that memory holds at once.
        journal: Says that all keys are in buckets, and which of these are done.
        where: File or dataset, for the report of progress.

    Raises:
        ShoalError: The disk is too small.
    """
    begin = next(number for number, entry in enumerate(journal.entries) if "distributed" in entry)
    done = journal.entries[begin + 1 :]
    counts = Counts(**done[-1]) if done else Counts()
    left = sum(bucket.bytes for bucket in buckets[len(done) :])
    require_disk(work, left // 2 + (0 if done else KEY_BYTES * layout.nodes), "the sorted edges")
    csr = CsrWriter(work, layout, counts.indices, capacity)
    with csr, step(f"{where}: sort", len(buckets), "buckets", len(done)) as advance:
        for bucket in buckets[len(done) :]:
            given, distinct = _append_rows(csr, bucket, layout, capacity)
            csr.save()
            counts = Counts(csr.entries, counts.given + given, counts.distinct + distinct)
            journal.append(asdict(counts))
            bucket.path.unlink()
            advance(1)
        csr.finish()
    return counts


def _append_rows(csr: CsrWriter, bucket: Bucket, layout: KeyLayout, capacity: int) -> tuple[int, int]:
    """Appends the rows of a bucket; given and distinct edges as `Counts` has them."""
    if bucket.keys > capacity and bucket.shift > 1:
        return _append_parts(csr, bucket, layout, capacity)
    if bucket.keys > capacity:
        # All are one pair of nodes, repeated.
        given = sum(int((chunk & np.uint64(1) == 0).sum()) for chunk in bucket.chunks(capacity))
        pairs, distinct = np.array([bucket.low >> 1], dtype=np.uint64), min(1, given)
    else:
        keys = sorted_keys(bucket.read(), bucket.shift)
        count, given, distinct = distinct_pairs(keys)
        pairs = keys[:count]
    last = bucket.low + (1 << bucket.shift) - 1
    csr.append(pairs, bucket.low >> layout.row_bits, min((last >> layout.row_bits) + 1, layout.nodes))
    return given, distinct


def _append_parts(csr: CsrWriter, bucket: Bucket, layout: KeyLayout, capacity: int) -> tuple[int, int]:
    """Divides a bucket, and appends the rows of part after part."""
    folder = bucket.path.with_name(bucket.path.name + ".parts")
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    keys = bucket.keys
    require_disk(folder, KEY_BYTES * keys, "the edges of one bucket")
    shift = bucket_shift(bucket.shift, keys, capacity)
    parts = buckets_in(folder, bucket.low, bucket.low + (1 << bucket.shift), shift)
    with BucketWriter(parts, [0] * len(parts)) as writer:
        for chunk in bucket.chunks(capacity):
            writer.write(chunk)
    given = distinct = 0
    for part in parts:
        counts = _append_rows(csr, part, layout, capacity)
        given, distinct = given + counts[0], distinct + counts[1]
        part.path.unlink()
    folder.rmdir()
    return given, distinct
