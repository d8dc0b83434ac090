"""Noise that later rounds partly take back, so that sums over rounds have less of it: DP-FTRL by a banded matrix.

Choquette-Choo et al., (Amplified) Banded matrix factorization, NeurIPS 2023: changes x `[T, P]`, the sums of T rounds,
are released as x + C^-1 z, with z Gaussian and C `[T, T]` lower triangular with b bands. C is here the banded square
root of the matrix of prefix sums (Kalinin and Lampert, NeurIPS 2024), Toeplitz and scaled to columns of norm 1.

A client that takes part at most once in any b rounds moves other rows of C x in each of its k rounds, together by as
much as it moves x. So all rounds are for it k Gaussian mechanisms of the deviation of z, also where clients read what
was released before (Denisov et al., NeurIPS 2022). Groups are not drawn anew, and nothing is amplified.
"""

import math
from collections.abc import Iterable, Sequence
from itertools import accumulate

from torch import Tensor


def column(bands: int) -> list[float]:
    """Computes the b entries of a column of C: binom(2k, k) / 4^k for k < b, divided by their norm."""
    entries = list(accumulate(range(1, bands), lambda last, k: last * (1 - 0.5 / k), initial=1.0))
    return [entry / math.hypot(*entries) for entry in entries]


def next_row(column: Sequence[float], drawn: Tensor, earlier: Iterable[Tensor]) -> Tensor:
    """Computes a row of C^-1 z from that of z, `drawn`, and the last rows of C^-1 z before it, the newest first."""
    for share, row in zip(column[1:], earlier):
        drawn = drawn - share * row
    return drawn / column[0]
