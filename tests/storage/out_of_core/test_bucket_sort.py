"""Buckets cover a range of keys without gap or overlap; a file is cut to what was saved."""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.storage.out_of_core.bucket_sort import MAX_BUCKETS, BucketWriter, bucket_shift, buckets_in


@given(low=st.integers(0, 1 << 40), length=st.integers(0, 2000), shift=st.integers(1, 12))
def test_buckets_cover_the_range(low: int, length: int, shift: int) -> None:
    buckets = buckets_in(Path("scratch"), low, low + length, shift)
    edges = [low, *(bucket.low + (1 << bucket.shift) for bucket in buckets)]
    assert [bucket.low for bucket in buckets] == edges[:-1]
    assert edges[-1] - (1 << shift) < low + length <= edges[-1]
    assert len({bucket.path for bucket in buckets}) == len(buckets)


@given(bits=st.integers(2, 63), keys=st.integers(0, 1 << 40), capacity=st.integers(4, 1 << 30))
def test_a_division_makes_progress_and_few_files(bits: int, keys: int, capacity: int) -> None:
    shift = bucket_shift(bits, keys, capacity)
    assert 1 <= shift < bits
    assert 1 << (bits - shift) <= MAX_BUCKETS


@pytest.mark.parametrize("limit", [1, 2, 100])
def test_chunks_are_the_file(limit: int, tmp_path: Path) -> None:
    (bucket,) = buckets_in(tmp_path, 0, 16, 4)
    np.array([5, 3, 5], dtype=np.uint64).tofile(bucket.path)
    chunks = list(bucket.chunks(limit))
    assert np.concatenate(chunks).tolist() == [5, 3, 5] == bucket.read().tolist()
    assert max(map(len, chunks)) <= limit
    assert (bucket.keys, bucket.bytes) == (3, 24)


def test_a_reopened_bucket_is_cut_to_what_was_saved(tmp_path: Path) -> None:
    buckets = buckets_in(tmp_path, 32, 64, 4)
    with BucketWriter(buckets, [0, 0]) as writer:
        writer.write(np.array([50, 33, 47], dtype=np.uint64))
        assert writer.unsaved == 24
        sizes = writer.save()
        assert (sizes, writer.unsaved) == ([16, 8], 0)
        writer.write(np.array([34, 63], dtype=np.uint64))
    assert [bucket.read().tolist() for bucket in buckets] == [[33, 47, 34], [50, 63]]
    with BucketWriter(buckets, sizes) as writer:
        writer.write(np.array([48, 32], dtype=np.uint64))
    assert [bucket.read().tolist() for bucket in buckets] == [[33, 47, 32], [50, 48]]
