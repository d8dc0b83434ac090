"""A surrogate of a game: a smooth function of coalitions, fitted to those that were trained, with known values.

It is the mean of a Gaussian process whose kernel compares the mean of the members of two coalitions,
`k(S, T) = exp(-|x_S / |S| - x_T / |T||^2 / l)` with the indicator vectors x: models are means over clients as well. The
kernel depends on |S|, |T| and |S and T| alone, so that the values of `k(., T)` are sums over hypergeometric numbers.

Axes: P players, m coalitions, N clients whose items are scored.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from scipy.stats import hypergeom

# Length scales l, and the variance of what the surrogate cannot explain as a share of what it can.
SCALES = (0.05, 0.1, 0.2, 0.4, 0.8, 1.6)
SHARES = (0.001, 0.01, 0.1, 1.0)
# More coalitions than these decide no better which scale and share fit.
MOST_FITTED = 300


@dataclass(frozen=True)
class Weights:
    """The weights of a value: by size, that of the mean score of coalitions with a player minus those without it.

    Attributes:
        with_it: By size 0 to P, float64 `[P + 1]`.
        without: The same.
    """

    with_it: np.ndarray
    without: np.ndarray


@dataclass(frozen=True)
class Surrogate:
    """A fitted surrogate.

    Attributes:
        member_mP: The coalitions that it was fitted to, bool.
        mean_N: Its value far from all of these.
        factor_mN: Factors of the kernel of each.
        scale: The length scale.
    """

    member_mP: np.ndarray
    mean_N: np.ndarray
    factor_mN: np.ndarray
    scale: float

    def predict(self, member_kP: np.ndarray) -> np.ndarray:
        """Returns the score of coalitions, float64 `[k, N]`."""
        return self.mean_N + _kernel(_distances(member_kP, self.member_mP), self.scale) @ self.factor_mN

    def values(self, weights: Weights, sizes: Sequence[int]) -> np.ndarray:
        """Returns the value of each player, float64 `[P, N]`, as far as coalitions of some sizes make it."""
        players, size_m = self.member_mP.shape[1], self.member_mP.sum(1)
        different, place_m = np.unique(size_m, return_inverse=True)
        of_size = np.array([_values_of_kernel(int(t), players, self.scale, weights, sizes) for t in different])
        inside_m, outside_m = of_size[place_m].T
        by_player_Pm = np.where(self.member_mP, inside_m[:, None], outside_m[:, None]).T
        # The constant has the same weight with a player as without it, or counts as a coalition does.
        constant = sum(weights.with_it[s] * (s > 0) - weights.without[s] * (s < players) for s in sizes)
        values_PN: np.ndarray = by_player_Pm @ self.factor_mN + constant * self.mean_N
        return values_PN


def fit_scale(member_mP: np.ndarray, score_m: np.ndarray) -> tuple[float, float]:
    """Chooses scale and share with the largest marginal likelihood of scores (Rasmussen and Williams, eq. 2.30)."""
    member_mP, score_m = member_mP[:MOST_FITTED], score_m[:MOST_FITTED]
    distance_mm, best = _distances(member_mP, member_mP), (np.inf, SCALES[0], SHARES[0])
    for scale in SCALES:
        kernel_mm = _kernel(distance_mm, scale)
        for share in SHARES:
            covariance_mm = kernel_mm + share * np.eye(len(score_m))
            solved_m2 = np.linalg.solve(covariance_mm, np.stack([score_m, np.ones(len(score_m))], 1))
            rest_m = score_m - solved_m2[:, 0].sum() / solved_m2[:, 1].sum()
            # The amplitude that fits best is put in.
            fit = max(float(rest_m @ np.linalg.solve(covariance_mm, rest_m)) / len(score_m), 1e-12)
            loss = len(score_m) * np.log(fit) + np.linalg.slogdet(covariance_mm)[1]
            best = min(best, (loss, scale, share))
    return best[1:]


def fit(member_mP: np.ndarray, score_mN: np.ndarray, scale: float, share: float) -> Surrogate:
    """Fits a surrogate to the scores of some coalitions, none of them empty."""
    covariance_mm = _kernel(_distances(member_mP, member_mP), scale) + share * np.eye(len(member_mP))
    ones_m = np.linalg.solve(covariance_mm, np.ones(len(member_mP)))
    mean_N = ones_m @ score_mN / ones_m.sum()
    return Surrogate(member_mP, mean_N, np.linalg.solve(covariance_mm, score_mN - mean_N), scale)


def _values_of_kernel(
    size: int, players: int, scale: float, weights: Weights, sizes: Sequence[int]
) -> tuple[float, float]:
    """Returns the values of a player inside of a coalition of this size, and of one outside, in its kernel's game."""
    inside = outside = 0.0
    for s in sizes:
        if s > 0:
            # A coalition with the player has s - 1 others.
            inside += weights.with_it[s] * _mean_kernel(s, size, 1, players - 1, size - 1, s - 1, scale)
            outside += weights.with_it[s] * _mean_kernel(s, size, 0, players - 1, size, s - 1, scale)
        if s < players:
            inside -= weights.without[s] * _mean_kernel(s, size, 0, players - 1, size - 1, s, scale)
            outside -= weights.without[s] * _mean_kernel(s, size, 0, players - 1, size, s, scale)
    return inside, outside


# A look at the same sizes comes again with every further draw.
@lru_cache(maxsize=1 << 18)
def _mean_kernel(s: int, t: int, shared: int, others: int, good: int, drawn: int, scale: float) -> float:
    """Returns the mean kernel of coalitions of sizes s and t that share some players and a hypergeometric number."""
    if good > others:
        return 0.0  # Nobody is outside of the coalition of all.
    more = np.arange(max(0, drawn + good - others), min(good, drawn) + 1)
    chance = hypergeom.pmf(more, others, good, drawn)
    return float(chance @ _kernel(_distance(s, t, shared + more), scale))


def _distances(member_kP: np.ndarray, member_mP: np.ndarray) -> np.ndarray:
    shared_km = member_kP.astype(np.float64) @ member_mP.T
    distance_km: np.ndarray = _distance(member_kP.sum(1)[:, None], member_mP.sum(1)[None], shared_km)
    return distance_km


def _distance(s: np.ndarray | int, t: np.ndarray | int, shared: np.ndarray) -> np.ndarray:
    """Returns the squared distance of the means of two sets; that of the empty set is zero."""
    first, second = np.maximum(s, 1), np.maximum(t, 1)
    distance: np.ndarray = np.sign(s) / first + np.sign(t) / second - 2 * shared / (first * second)
    return distance


def _kernel(distance: np.ndarray, scale: float) -> np.ndarray:
    kernel: np.ndarray = np.exp(-distance / scale)
    return kernel
