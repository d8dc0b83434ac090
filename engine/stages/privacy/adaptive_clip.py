"""A clip that follows a quantile of the norms of clients' changes, with noise on how many are within it.

Andrew, Thakkar, McMahan and Ramaswamy, Differentially private learning with adaptive clipping, NeurIPS 2021, algorithm
1: each client sends beside its clipped change whether the norm was at most C, and C <- C exp(-eta (b - gamma)) with the
noised share b of those within.

Bits are counted as +-1/2. A client that is replaced moves their sum by 1 and that of changes by 2 C, one that is added
or removed by half as much. So in both cases the two sums, with noise z_changes C and sigma, are one Gaussian mechanism
of the noise z with 1 / z^2 = 1 / z_changes^2 + 1 / (2 sigma)^2 (their theorem 1), of which epsilon is. The clip of a
later round is computed from what was released.
"""

import math

from shoal.storage.errors import ShoalError

# These are eta, and m / sigma.
RATE, SHARE = 0.2, 20


def split(noise: float, drawn: int) -> tuple[float, float]:
    """z_changes, in clips, and sigma = m / 20 of bits, that are z together, with m clients in the mean; no noise: 0, 0.

    Raises ShoalError: bits of so few clients need more noise than z.
    """
    if not noise:
        return 0.0, 0.0
    sigma = drawn / SHARE
    if noise >= 2 * sigma:
        raise ShoalError(
            "privacy.quantile",
            f"noise {noise:.4g} on {drawn} clients a round leaves none for the clip, which needs less than "
            f"{2 * sigma:g}; take more clients a round, less noise, or quantile=null",
        )
    return (noise**-2 - (2 * sigma) ** -2) ** -0.5, sigma


def next_clip(clip: float, within: float, quantile: float) -> float:
    """Computes the clip after a round of which the share `within`, with noise, had norms of at most the clip."""
    return clip * math.exp(-RATE * (within - quantile))
