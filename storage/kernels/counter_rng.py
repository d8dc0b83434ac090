"""Random numbers from a key and a position (a counter-based generator): any part of a graph can be drawn alone.

Bits are those of SplitMix64 (Steele, Lea and Flood, "Fast splittable pseudorandom number generators", OOPSLA 2014),
read at a position. Only integer arithmetic and exact roundings are used, so numbers are the same on every machine.
"""

import numba
import numpy as np

GOLDEN = np.uint64(0x9E3779B97F4A7C15)
ROUNDS = 4
TO_UNIT = 2.0**-53
# Four uniform 16-bit numbers sum to a mean of 131070 and this standard deviation.
SUM_MEAN, SUM_DEVIATION = 131070, (4 * (2**32 - 1) / 12) ** 0.5


def key_of(seed: int, purpose: str) -> np.uint64:
    """Returns the key of one stream of a seed."""
    text = np.frombuffer(purpose.encode().ljust(8, b"\0")[:8], dtype="<u8")[0]
    # Compiled code returns a plain int; given to compiled code again, a small one would be taken as signed.
    first = np.uint64(bits_at(np.uint64(seed), np.uint64(0)))
    return np.uint64(bits_at(first, text))


def bits_for(count: int) -> int:
    """Counts bits that hold numbers below `count`, at least two."""
    return max(2, (count - 1).bit_length())


@numba.njit(cache=True, inline="always")
def bits_at(key: np.uint64, position: np.uint64) -> np.uint64:
    """Draws 64 random bits."""
    z = np.uint64(key) + (np.uint64(position) + np.uint64(1)) * GOLDEN
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return z ^ (z >> np.uint64(31))


@numba.njit(cache=True, inline="always")
def uniform_at(key: np.uint64, position: np.uint64) -> float:
    """Draws a number in [0, 1)."""
    return np.float64(bits_at(key, position) >> np.uint64(11)) * TO_UNIT


@numba.njit(cache=True, inline="always")
def noise_at(key: np.uint64, position: np.uint64) -> np.float32:
    """Draws a number of mean 0 and variance 1, nearly normal: the sum of four uniform ones, within 3.5 of 0."""
    z = bits_at(key, position)
    low = np.uint64(0xFFFF)
    total = (z & low) + ((z >> np.uint64(16)) & low) + ((z >> np.uint64(32)) & low) + (z >> np.uint64(48))
    return np.float32(np.int64(total) - SUM_MEAN) * np.float32(1 / SUM_DEVIATION)


@numba.njit(cache=True)
def permute(value: int, count: int, bits: int, key: np.uint64) -> int:
    """Computes the place of a value in a random permutation of `0..count - 1`.

    Black and Rogaway, "Ciphers with arbitrary finite domains", CT-RSA 2002: a Feistel network on the next power of
    two, 2^`bits` (see `bits_for`), applied until the result is below `count`.
    """
    left, right = np.uint64(bits // 2), np.uint64(bits - bits // 2)
    x = np.uint64(value)
    while True:
        for number in range(ROUNDS):
            # The halves change places, and with them their lengths.
            a, b = (left, right) if number % 2 == 0 else (right, left)
            low = x & ((np.uint64(1) << b) - np.uint64(1))
            high = (x >> b) ^ _mask(key, np.uint64(number), low, a)
            x = (low << a) | high
        if x < np.uint64(count):
            return int(x)


@numba.njit(cache=True)
def unpermute(value: int, count: int, bits: int, key: np.uint64) -> int:
    """Computes the value that `permute` puts at a place."""
    left, right = np.uint64(bits // 2), np.uint64(bits - bits // 2)
    x = np.uint64(value)
    while True:
        for number in range(ROUNDS - 1, -1, -1):
            a, b = (left, right) if number % 2 == 0 else (right, left)
            low = x >> a
            high = (x & ((np.uint64(1) << a) - np.uint64(1))) ^ _mask(key, np.uint64(number), low, a)
            x = (high << b) | low
        if x < np.uint64(count):
            return int(x)


@numba.njit(cache=True, inline="always")
def _mask(key: np.uint64, number: np.uint64, half: np.uint64, bits: np.uint64) -> np.uint64:
    return bits_at(key + number, half) >> (np.uint64(64) - bits)
