"""Exponentials and logarithms that LLVM makes vector code of."""

import math

import numba
import numpy as np

ONE = np.float32(1)
# The logarithm of 2 in two parts, of which the first has so few bits that its multiples are exact.
LN2_HIGH, LN2_LOW, LOG2_E = np.float32(0.693359375), np.float32(-2.12194440e-4), np.float32(math.log2(math.e))
# The least exponent of which `exp` is a normal number, and the smallest of these.
LEAST, TINY = np.float32(-87.336), np.float32(2.0**-126)
# A sum with it is rounded to an integer, whose last bits are an exponent as float32 has it.
ROUND = np.float32(1.5 * 2**23 + 127)
# Minimax polynomials of Cephes: of (exp(r) - 1 - r) / r² and of (log(1 + r) - r + r² / 2) / r³, highest power first.
E5, E4, E3, E2, E1, E0 = (
    np.float32(c)
    for c in (1.9875691500e-4, 1.3981999507e-3, 8.3334519073e-3, 4.1665795894e-2, 1.6666665459e-1, 5.0000001201e-1)
)
L8, L7, L6, L5, L4, L3, L2, L1, L0 = (
    np.float32(c)
    for c in (
        *(7.0376836292e-2, -1.1514610310e-1, 1.1676998740e-1, -1.2420140846e-1, 1.4249322787e-1),
        *(-1.6668057665e-1, 2.0000714765e-1, -2.4999993993e-1, 3.3333331174e-1),
    )
)
ROOT_HALF = np.float32(math.sqrt(0.5)).view(np.int32)


@numba.njit(cache=True, nogil=True, fastmath={"contract"})
def exp(x: np.float32) -> np.float32:
    """Computes the exponential of a float32 of at most 88, to 1 unit in the last place; 0 where it is below 2^-126."""
    shifted = x * LOG2_E + ROUND
    n = shifted - ROUND
    r = x - n * LN2_HIGH - n * LN2_LOW
    part = ((((E5 * r + E4) * r + E3) * r + E2) * r + E1) * r + E0
    power = np.int32(np.float32(shifted).view(np.int32) << np.int32(23)).view(np.float32)
    return np.float32(0) if x < LEAST else (part * (r * r) + r + ONE) * power


@numba.njit(cache=True, nogil=True, fastmath={"contract"})
def log(x: np.float32) -> np.float32:
    """Computes the logarithm of a finite float32, to 2 units in the last place; below 2^-126 it is -126 log 2."""
    bits = np.float32(x if x > TINY else TINY).view(np.int32)
    # x = 2^e (1 + r), with 1 + r between the root of a half and that of two.
    e = np.int32((bits - ROOT_HALF) >> np.int32(23))
    r = np.int32(bits - np.int32(e << np.int32(23))).view(np.float32) - ONE
    n = np.float32(e)
    part = (((((((L8 * r + L7) * r + L6) * r + L5) * r + L4) * r + L3) * r + L2) * r + L1) * r + L0
    square = r * r
    return part * square * r + n * LN2_LOW - np.float32(0.5) * square + r + n * LN2_HIGH
