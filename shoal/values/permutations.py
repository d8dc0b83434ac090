"""Shapley values from permutations: what each client adds to those before it (Castro et al., 2009).

A permutation and its reverse are one draw (antithetic; Mitchell et al., 2022). Permutations that begin with the same
clients share these coalitions, which are trained once. A permutation ends early where its clients so far score like
all of them, within a tolerance (Ghorbani and Zou, 2019): the clients behind add nothing there. As long as scores rise
on the way, that errs by the tolerance at most in each such permutation, and intervals are wider by that.

Axes: P players, N clients whose items are scored.
"""

import math

import numpy as np
from scipy.stats import t as student

from shoal.storage.errors import ShoalError
from shoal.values.estimates import CONFIDENCE, SHAPLEY, Estimate, Limits, Scorer, count_all, fits_whole

# Fewer pairs say nothing of how they differ.
FEWEST_PAIRS = 2


def draw_permutations(game: Scorer, limits: Limits, tolerance: float, rng: np.random.Generator) -> Estimate:
    """Estimates Shapley values from pairs of permutations, until a limit is reached; `tolerance` is in items.

    Where all coalitions fit into the limit, values are exact.

    Raises ShoalError: the work of `limits.trainings` is less than that of two pairs.
    """
    if fits_whole(game, limits):
        return count_all(game, SHAPLEY)
    players, used, pairs, ended = len(game.players), set[int](), list[np.ndarray](), list[np.ndarray]()
    largest_cost, estimate = 0.0, None
    while True:
        before = game.cost(used)
        if before + largest_cost > limits.trainings:
            break
        order = rng.permutation(players)
        walked = [_walk(game, way.tolist(), tolerance, used) for way in (order, order[::-1])]
        largest_cost = max(largest_cost, game.cost(used) - before)
        pairs.append((walked[0][0] + walked[1][0]) / 2)
        ended.append((walked[0][1] + walked[1][1]) / 2)
        if len(pairs) < FEWEST_PAIRS:
            continue
        estimate = _of_pairs(np.array(pairs), tolerance * np.mean(ended, axis=0))
        if estimate.half_P.max() <= limits.precision:
            break
    if estimate is None:
        least = math.ceil(2 * largest_cost)
        raise ShoalError("--trainings", f"{limits.trainings:g}, and two pairs of permutations need about {least}")
    return estimate


def _walk(game: Scorer, order: list[int], tolerance: float, used: set[int]) -> tuple[np.ndarray, np.ndarray]:
    """Returns what each player adds in an order, `[P, N]`, and which of them came behind its end, bool `[P]`."""
    whole, coalition = game.right((1 << len(order)) - 1), 0
    last, added_PN = game.right(0), np.zeros((len(order), len(whole)))
    behind_P = np.zeros(len(order), dtype=bool)
    used.update((0, (1 << len(order)) - 1))
    for place, p in enumerate(order):
        if tolerance > 0 and place and abs(int(whole.sum()) - int(last.sum())) <= tolerance:
            behind_P[order[place:]] = True
            break
        coalition |= 1 << p
        now = game.right(coalition)
        used.add(coalition)
        added_PN[p] = now - last
        last = now
    return added_PN, behind_P


def _of_pairs(added_kPN: np.ndarray, bound_P: np.ndarray) -> Estimate:
    """Returns the mean over pairs, with Student's intervals, and the bound of what was left out."""
    count, total_kP = len(added_kPN), added_kPN.sum(2)
    half_P = student.ppf((1 + CONFIDENCE) / 2, count - 1) * total_kP.std(0, ddof=1) / math.sqrt(count)
    return Estimate(added_kPN.mean(0), total_kP.mean(0), half_P + bound_P, f"{2 * count} permutations")
