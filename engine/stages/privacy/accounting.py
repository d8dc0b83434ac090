"""Epsilon of sums with Gaussian noise, and the least noise for an epsilon.

One client moves the mean of a release by at most Delta deviations of its noise: by 2 / z where all its data are
replaced, by 1 / z where it is added or removed. T releases in which it takes part for sure are one Gaussian that moves
by Delta sqrt(T), of which epsilon is exact (Balle and Wang, Improving the Gaussian mechanism for differential privacy,
ICML 2018, theorem 8).

Cohorts that are drawn hide who took part. With P = N(0, 1), Q = N(Delta, 1), q = m / n, M = (1 - q) P + q Q and the
hockey-stick divergence H_a(A || B) = sup_S A(S) - a B(S), a = exp(epsilon), the delta of one release is at most:

- `fixed`, m of n without replacement, all data of one client replaced: H_a(M || P) for epsilon of 0 and above, below
  H_a(P || M) (Balle, Barthe and Gaboardi, Privacy amplification by subsampling, NeurIPS 2018, theorem 11; Zhu, Dong and
  Wang, Optimal accounting of differential privacy via characteristic function, AISTATS 2022, proposition 30). It is the
  trade-off function min(f_q, 1 / f_q)** of Dong, Roth and Su, Gaussian differential privacy, 2022, theorem 4.2. One
  release attains it, in which the client sends C or -C, and all others send -C. With q = 1 it is the Gaussian.
- `poisson`, one client more or less: H_a(M || P) and H_a(P || M), each for all epsilon (Zhu, Dong and Wang, theorem
  11). Epsilon is the larger one after all rounds.

Losses of T releases add up. Their law is put on a grid such that delta only grows (Doroshenko et al., Connect the dots,
PoPETs 2022) and convolved by FFT (Koskela, Jalko and Honkela, Computing tight differential privacy guarantees using
FFT, AISTATS 2020), by the package dp-accounting. Where the grid is too coarse, epsilon is that of a client that takes
part in all rounds for sure, which is never below. Draws count while what a client sends depends on its data and on what
was released before alone: what it keeps of earlier rounds can tell in which of them it took part.
"""

import math
from functools import lru_cache
from types import ModuleType

import numpy as np

from shoal.algorithms.methods.registry.load import describe, load
from shoal.engine.config.config import Config
from shoal.engine.stages.privacy.section import PRIVACY, PrivacyOptions
from shoal.storage.errors import ShoalError

# Noise for an epsilon is looked for to this accuracy, on the side of more noise, and not below.
STEP, LEAST_NOISE = 1e-3, 0.05
# The grid has so many steps in a deviation of one loss, at most so many, and leaves this share of delta out.
STEPS, MOST_STEPS, LEFT_OUT = 20, 2**17, 1e-4
# Sums by FFT are exact to about 1e-14; exponentials of larger losses are no floats.
LEAST_DELTA, LARGEST_LOSS = 1e-11, 500.0


def accounting() -> ModuleType:
    """Imports the package dp_accounting; raises a ShoalError if it is not installed."""
    try:
        import dp_accounting
        import dp_accounting.pld
    except ImportError:
        raise ShoalError("privacy.epsilon", "needs the package dp-accounting; pip install 'shoal[privacy]'") from None
    return dp_accounting


def epsilon_after(noise: float, delta: float, drawn: int, clients: int, rounds: int, poisson: bool = False) -> float:
    """Computes epsilon of a client after so many rounds with `drawn` of `clients`; infinite without noise.

    Neighbours are as above: a client replaced, with `poisson` one more or less.

    Raises ShoalError: cohorts are drawn, and dp-accounting is not installed.
    """
    if not rounds:
        return 0.0
    if not noise:
        return math.inf
    moved, share = (1 if poisson else 2) / noise, drawn / clients
    surely = _gaussian_epsilon(moved * math.sqrt(rounds), delta)
    return surely if share == 1 else min(surely, _drawn_epsilon(moved, share, delta, rounds, poisson))


@lru_cache
def noise_of(options: PrivacyOptions, drawn: int, clients: int, rounds: int, poisson: bool = False) -> float:
    """Computes z, as it is given, or the least with which all rounds together stay within epsilon, to `STEP`.

    Raises as `epsilon_after`.
    """
    if options.noise is not None:
        return options.noise
    target = options.epsilon or 0.0

    def within(noise: float) -> bool:
        return epsilon_after(noise, options.delta, drawn, clients, rounds, poisson) <= target

    if within(LEAST_NOISE):
        return LEAST_NOISE
    low, high = LEAST_NOISE, 1.0
    while not within(high):
        low, high = high, 2 * high
    while high - low > STEP:
        middle = (low + high) / 2
        low, high = (low, middle) if within(middle) else (middle, high)
    return high


def _gaussian_epsilon(moved: float, delta: float) -> float:
    """Computes epsilon of N(0, 1) and N(moved, 1)."""
    from scipy.optimize import brentq
    from scipy.special import log_ndtr, ndtr

    def gap(epsilon: float) -> float:
        above = ndtr(moved / 2 - epsilon / moved) - math.exp(epsilon + log_ndtr(-moved / 2 - epsilon / moved))
        return float(above) - delta

    # A tail of exp(-t^2 / 2) is above that of t.
    most = moved**2 / 2 + moved * math.sqrt(-2 * math.log(delta))
    return 0.0 if gap(0.0) <= 0 else float(brentq(gap, 0.0, most, xtol=1e-12 * most))


def _drawn_epsilon(moved: float, share: float, delta: float, rounds: int, poisson: bool) -> float:
    """Computes epsilon of drawn cohorts, by the law of the loss; infinite where the grid does not reach so far."""
    dp = accounting()
    if delta < LEAST_DELTA:
        return math.inf
    # Losses above it have the share `LEFT_OUT` of delta in all rounds.
    furthest = moved + math.sqrt(2 * math.log(rounds / (LEFT_OUT * delta)))
    largest = _loss(furthest, moved, share)
    if largest > LARGEST_LOSS:
        return math.inf
    # Epsilon is at most that of a Gaussian, and that of a small share.
    deviation = min(moved, share * math.sqrt(math.expm1(min(moved**2, LARGEST_LOSS))))
    step = max(deviation / STEPS, largest / MOST_STEPS)
    steps = math.ceil(largest / step)
    epsilon = np.arange(-steps, steps + 1) * step
    gain, loss = divergence(epsilon, moved, share), reverse_divergence(epsilon, moved, share)
    profiles = [gain, loss] if poisson else [np.where(epsilon < 0, loss, gain)]
    return max(_composed_epsilon(dp, step, profile, delta, rounds) for profile in profiles)


def _composed_epsilon(dp: ModuleType, step: float, profile: np.ndarray, delta: float, rounds: int) -> float:
    """Computes epsilon of releases, of which `profile` has delta at multiples of `step`, half of them below 0."""
    steps = len(profile) // 2
    make = dp.pld.pld_pmf.create_pmf_pessimistic_connect_dots_fixed_gap
    loss = make(step, -steps, steps, np.clip(profile, 0.0, 1.0)).to_dense_pmf()
    # Some of the last masses of a wide grid are no normal floats.
    with np.errstate(over="ignore"):
        return float(loss.self_compose(rounds, LEFT_OUT * delta).get_epsilon_for_delta(delta))


def divergence(epsilon: np.ndarray, moved: float, share: float) -> np.ndarray:
    """Computes H_a((1 - q) P + q Q || P) at each epsilon, float64, as above; with q = `share` and Delta = `moved`."""
    from scipy.special import log_ndtr, ndtr

    # This is Q(x) / P(x) where the loss is epsilon; below log(1 - q) it is larger everywhere.
    ratio = (np.expm1(epsilon) + share) / share
    x = _place(ratio, moved)
    return np.where(ratio > 0, share * (ndtr(moved - x) - _product(ratio, log_ndtr(-x))), -np.expm1(epsilon))


def reverse_divergence(epsilon: np.ndarray, moved: float, share: float) -> np.ndarray:
    """Computes H_a(P || (1 - q) P + q Q), as `divergence`."""
    from scipy.special import log_ndtr, ndtr

    # No loss is above -log(1 - q).
    ratio = (np.expm1(-epsilon) + share) / share
    x = _place(ratio, moved)
    return np.where(ratio > 0, np.exp(epsilon) * share * (_product(ratio, log_ndtr(x)) - ndtr(x - moved)), 0.0)


def _place(ratio: np.ndarray, moved: float) -> np.ndarray:
    """Finds x with Q(x) / P(x) of a ratio; minus infinity for one that there is not."""
    with np.errstate(divide="ignore"):
        return np.log(np.maximum(ratio, 0.0)) / moved + moved / 2


def _product(ratio: np.ndarray, log_share: np.ndarray) -> np.ndarray:
    """Multiplies a ratio by a probability that may be no float."""
    with np.errstate(divide="ignore"):
        return np.exp(np.log(np.maximum(ratio, 0.0)) + log_share)


def _loss(x: float, moved: float, share: float) -> float:
    """Computes log((1 - q) + q Q(x) / P(x))."""
    return float(np.logaddexp(np.log1p(-share), math.log(share) + moved * x - moved**2 / 2))


def releases(config: Config, rounds: int) -> int:
    """Counts the rounds, of so many, in which a client sends something."""
    method = load(describe(config.algorithm.name, config.algorithm.options))
    return min(rounds, 1) if method.sends_once else rounds


def noise_at_clients(config: Config) -> float:
    """Computes z of the noise on each upload; raises as `noise_of`.

    The server knows who sent it, so that no draw of cohorts hides a client: all rounds count as if it took part.
    """
    return noise_of(PRIVACY.of(config), 1, 1, releases(config, config.rounds))


def require_noise(options: PrivacyOptions) -> None:
    """Raises a ShoalError, which names the key: noise is not given once, or has no clip."""
    if (options.noise is None) == (options.epsilon is None):
        raise ShoalError("privacy.noise", "give either privacy.noise, or privacy.epsilon, which finds the noise")
    if options.clip is None and options.quantile is not None:
        raise ShoalError("privacy.clip", "privacy.quantile needs a clip to begin with, found null; set a number")
    if options.clip is None and options.noise != 0:
        raise ShoalError("privacy.clip", "noise is a multiple of the clip, found null; set a number")
