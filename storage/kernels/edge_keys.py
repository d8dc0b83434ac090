"""Edges as 64-bit keys that, once sorted, are the rows of a CSR; the loops over such keys, on one core.

An edge has two keys, one a direction. From its highest bit down a key holds the source, the target, and a last bit
that is 0 for the direction that was given and 1 for the other. A key without its last bit is a pair.
"""

from dataclasses import dataclass

import numba
import numpy as np

KEY_BYTES = 8


@dataclass(frozen=True)
class KeyLayout:
    """Places of the parts of a key, for a graph of `nodes` nodes, at most 2^31 - 1."""

    nodes: int

    @property
    def target_bits(self) -> int:
        return max(1, (self.nodes - 1).bit_length())

    @property
    def row_bits(self) -> int:
        """Bits below the source: those of the target, and the last one."""
        return self.target_bits + 1

    @property
    def bits(self) -> int:
        """Bits of a whole key."""
        return self.target_bits + self.row_bits

    @property
    def end(self) -> int:
        """All keys are smaller."""
        return self.nodes << self.row_bits


def as_signed(ends: np.ndarray) -> np.ndarray:
    """Converts node numbers to int32 or int64, the types that loops are compiled for; one beyond int64 becomes -1."""
    if ends.dtype in (np.int32, np.int64):
        return ends
    wide = ends.astype(np.int64)
    return np.where(wide == ends, wide, -1) if ends.dtype == np.uint64 else wide


@numba.njit(cache=True, nogil=True)
def keys_of(source: np.ndarray, target: np.ndarray, nodes: int, row_bits: int, keys: np.ndarray) -> tuple[int, int]:
    """Fills `keys`, uint64 `[2 e]`, with both keys of every edge that is no loop.

    Returns how many there are, and the number of the first edge with an end that is no node, or -1.
    """
    count = 0
    for edge in range(len(source)):
        a, b = np.int64(source[edge]), np.int64(target[edge])
        if a < 0 or a >= nodes or b < 0 or b >= nodes:
            return count, edge
        if a != b:
            keys[count] = (a << row_bits) | (b << 1)
            keys[count + 1] = (b << row_bits) | (a << 1) | 1
            count += 2
    return count, -1


@numba.njit(cache=True, nogil=True)
def group_by_bucket(keys: np.ndarray, low: np.uint64, shift: np.uint64, buckets: int, out: np.ndarray) -> np.ndarray:
    """Sorts keys stably by `(key - low) >> shift` into `out`; where each bucket begins and the last ends, int64."""
    starts = np.zeros(buckets + 1, dtype=np.int64)
    for key in keys:
        starts[((key - low) >> shift) + np.uint64(1)] += 1
    for bucket in range(buckets):
        starts[bucket + 1] += starts[bucket]
    heads = starts[:-1].copy()
    for key in keys:
        bucket = (key - low) >> shift
        out[heads[bucket]] = key
        heads[bucket] += 1
    return starts


@numba.njit(cache=True, nogil=True)
def distinct_pairs(keys: np.ndarray) -> tuple[int, int, int]:
    """Overwrites the front of ascending keys with their distinct pairs.

    Returns how many pairs there are, how many keys are of a direction that was given, and how many pairs have one.
    """
    pairs = given_keys = given_pairs = 0
    last = np.uint64(0)
    for at in range(len(keys)):
        pair, is_given = keys[at] >> np.uint64(1), (keys[at] & np.uint64(1)) == 0
        is_new = at == 0 or pair != last
        given_keys += is_given
        # A given key sorts before its reverse, so the first key of a pair says whether the pair was given.
        given_pairs += is_new and is_given
        if is_new:
            keys[pairs] = pair
            pairs += 1
            last = pair
    return pairs, given_keys, given_pairs


@numba.njit(cache=True, nogil=True)
def row_ends(pairs: np.ndarray, first: int, row: int, target_bits: int, before: int, ends: np.ndarray) -> int:
    """Fills `ends`, int64, of rows `row`, `row + 1`, …, from ascending pairs, uint64; gives the first pair behind them.

    The CSR has `before` entries before pair 0.
    """
    at = first
    for i in range(len(ends)):
        while at < len(pairs) and np.int64(pairs[at] >> np.uint64(target_bits)) <= row + i:
            at += 1
        ends[i] = before + at
    return at
