"""The loops over keys against NumPy's own sorts, and by hand."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.storage.kernels.edge_keys import (
    KeyLayout,
    as_signed,
    distinct_pairs,
    group_by_bucket,
    keys_of,
    row_ends,
    sorted_keys,
)


@given(bits=st.integers(1, 63), seed=st.integers(0, 100), count=st.integers(0, 300))
def test_sorts_as_numpy_does(bits: int, seed: int, count: int) -> None:
    keys = np.random.default_rng(seed).integers(0, 1 << bits, count, dtype=np.uint64)
    assert sorted_keys(keys.copy(), bits).tolist() == np.sort(keys).tolist()


@given(shift=st.integers(0, 20), low=st.integers(0, 1 << 40), seed=st.integers(0, 100), count=st.integers(0, 300))
def test_groups_as_a_stable_sort_does(shift: int, low: int, seed: int, count: int) -> None:
    buckets = 7
    keys = low + np.random.default_rng(seed).integers(0, buckets << shift, count, dtype=np.uint64)
    out = np.empty_like(keys)
    starts = group_by_bucket(keys, np.uint64(low), np.uint64(shift), buckets, out)
    bucket = (keys - np.uint64(low)) >> np.uint64(shift)
    assert out.tolist() == keys[np.argsort(bucket, kind="stable")].tolist()
    assert np.diff(starts).tolist() == np.bincount(bucket.astype(np.int64), minlength=buckets).tolist()
    assert starts[0] == 0


@pytest.mark.parametrize(("nodes", "target_bits"), [(0, 1), (1, 1), (2, 1), (3, 2), (4, 2), (5, 3), (2**31 - 1, 31)])
def test_the_largest_key_fits_its_layout(nodes: int, target_bits: int) -> None:
    layout = KeyLayout(nodes)
    assert layout.target_bits == target_bits
    assert layout.bits == 2 * target_bits + 1 <= 63
    if nodes:
        largest = (nodes - 1) << layout.row_bits | (nodes - 1) << 1 | 1
        assert largest < layout.end <= 1 << layout.bits


def test_keys_and_pairs_by_hand() -> None:
    """Edges 0-1 both ways, a loop at 2, and 3-0: keys `source target direction` of 2, 2 and 1 bits."""
    source, target = np.array([0, 1, 2, 3]), np.array([1, 0, 2, 0])
    keys = np.empty(8, dtype=np.uint64)
    assert keys_of(source, target, 4, KeyLayout(4).row_bits, keys) == (6, -1)
    assert keys[:6].tolist() == [0b00010, 0b01001, 0b01000, 0b00011, 0b11000, 0b00111]
    ordered = sorted_keys(keys[:6].copy(), 5)
    assert distinct_pairs(ordered) == (4, 3, 3)
    assert ordered[:4].tolist() == [0b0001, 0b0011, 0b0100, 0b1100]
    ends = np.empty(2, dtype=np.int64)
    assert row_ends(ordered[:4], 0, 0, 2, 10, ends) == 3
    assert ends.tolist() == [12, 13]
    assert row_ends(ordered[:4], 3, 2, 2, 10, ends) == 4
    assert ends.tolist() == [13, 14]


@pytest.mark.parametrize(("source", "target"), [([0, 4], [1, 0]), ([0, 0], [1, -1])])
def test_names_the_edge_that_leaves_the_graph(source: list[int], target: list[int]) -> None:
    keys = np.empty(4, dtype=np.uint64)
    assert keys_of(np.array(source), np.array(target), 4, 3, keys) == (2, 1)


def test_numbers_beyond_int64_are_no_nodes() -> None:
    assert as_signed(np.array([3, 2**63, 2**64 - 1], dtype=np.uint64)).tolist() == [3, -1, -1]
    assert as_signed(np.array([-1, 5], dtype=np.int8)).dtype == np.int64
