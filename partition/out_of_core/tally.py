"""Sums of weights by key in a small open-addressing table: the inner loop of clustering and contraction."""

import numba
import numpy as np

from shoal.storage.kernels.prefetch import fetch_ahead

# 2^64 over the golden ratio (Knuth, The Art of Computer Programming 3, section 6.4).
GOLDEN = np.uint64(0x9E3779B97F4A7C15)


@numba.njit(cache=True)
def widest_row(indptr: np.ndarray) -> int:
    """Entries of the longest row."""
    widest = 0
    for row in range(len(indptr) - 1):
        widest = max(widest, indptr[row + 1] - indptr[row])
    return widest


@numba.njit(cache=True)
def slots_for(entries: int) -> int:
    """Slots of a table at most half full with `entries` keys, a power of two of at least 16."""
    slots = 16
    while slots < 2 * entries:
        slots *= 2
    return slots


@numba.njit(cache=True)
def shift_for(entries: int) -> np.uint64:
    """Right shift of a 64-bit hash that gives a slot of a table of `slots_for(entries)`."""
    shift = 60
    slots = 16
    while slots < 2 * entries:
        slots *= 2
        shift -= 1
    return np.uint64(shift)


@numba.njit(cache=True)
def slot_of(key: int, shift: np.uint64) -> np.int64:
    """Where the search for a key starts."""
    return np.int64((np.uint64(key) * GOLDEN) >> shift)


@numba.njit(cache=True)
def mix(key: int, seed: int) -> np.uint64:
    """A hash of key and seed, 64 bits (the finaliser of SplitMix64)."""
    h = (np.uint64(key) ^ (np.uint64(seed) << np.uint64(32))) * GOLDEN
    h = (h ^ (h >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    h = (h ^ (h >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return h ^ (h >> np.uint64(31))


@numba.njit(cache=True)
def tally(
    indices: np.ndarray,
    weights: np.ndarray | None,
    start: int,
    stop: int,
    label_N: np.ndarray,
    key: np.ndarray,
    value: np.ndarray,
    touched: np.ndarray,
) -> int:
    """Sums the weights of entries `start` to `stop` by the label of their neighbour.

    The number of labels is returned, and the slot of each in `touched`, in the order of their first entry; `key`
    must be all -1, and the caller resets it.
    """
    shift = shift_for(stop - start)
    mask = slots_for(stop - start) - 1
    count = 0
    for e in range(start, stop):
        fetch_ahead(label_N, indices, e)
        label = label_N[indices[e]]
        weight = np.int64(1) if weights is None else np.int64(weights[e])
        slot = slot_of(label, shift)
        while key[slot] != label and key[slot] != -1:
            slot = (slot + 1) & mask
        if key[slot] == -1:
            key[slot] = label
            value[slot] = weight
            touched[count] = slot
            count += 1
        else:
            value[slot] += weight
    return count
