"""Estimates of the values of players in a game: from all coalitions, from drawn ones, and from single removals.

The value of a player is a weighted mean, over coalitions, of what it adds: of Shapley with equal weights of all sizes,
of Banzhaf with equal weights of all coalitions. Each drawn coalition tells of every player (Wang and Jia, 2023). A
surrogate takes away what it can predict: its own values are known, and drawn coalitions estimate those of what it
leaves (Witter et al., 2025). It is fitted to other coalitions than it predicts, so that the estimate has no bias.

Axes: P players, m coalitions, N clients whose items are scored.
"""

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from fractions import Fraction
from typing import Protocol

import numpy as np
from scipy.stats import t as student
from threadpoolctl import threadpool_limits

from shoal.storage.errors import ShoalError
from shoal.values.surrogate import Surrogate, Weights, fit, fit_scale

SHAPLEY, BANZHAF = "shapley", "banzhaf"
CONFIDENCE = 0.95
# All coalitions of more players are not counted.
MOST_PLAYERS = 16
# Folds of drawn coalitions, fewest of these, and by how many they grow before intervals are computed again.
FOLDS, FEWEST, GROWTH = 5, 20, 1.15
# Draws that the expected spread of a size counts as.
PRIOR = 2
GOLDEN = (math.sqrt(5) - 1) / 2


class Scorer(Protocol):
    """A game; see `shoal.values.game.Game`."""

    @property
    def players(self) -> tuple[int, ...]:
        """The players."""
        ...

    def right(self, coalition: int) -> np.ndarray:
        """Counts right items of each client, int64 `[N]`."""
        ...

    def cost(self, coalitions: Iterable[int]) -> float:
        """Returns the work of coalitions, as a multiple of that of all players."""
        ...


@dataclass(frozen=True)
class Estimate:
    """Values in items.

    Attributes:
        value_PN: What each player adds at each client, float64.
        total_P: The same at all clients together.
        half_P: Half the width of the interval of these with 95 % confidence; 0: they are exact.
        note: How it was made; empty: all is said.
    """

    value_PN: np.ndarray
    total_P: np.ndarray
    half_P: np.ndarray
    note: str = ""


@dataclass(frozen=True)
class Limits:
    """The end of drawing: all intervals within `precision` items, or the work of so many `trainings` of all players."""

    precision: float
    trainings: float


def weigh_sizes(kind: str, players: int) -> Weights:
    """Returns the weights of sizes by which means with a player, and without it, make its value."""
    sizes = range(players + 1)
    if kind == SHAPLEY:
        equal = np.full(players + 1, 1 / players)
        return Weights(equal, equal)
    with_it = [math.comb(players - 1, s - 1) / 2 ** (players - 1) if s else 0.0 for s in sizes]
    without = [math.comb(players - 1, s) / 2 ** (players - 1) for s in sizes]
    return Weights(np.array(with_it), np.array(without))


def count_all(game: Scorer, kind: str) -> Estimate:
    """Returns exact values from the scores of all coalitions, rounded once, to floats.

    Raises ShoalError: they are too many.
    """
    players = len(game.players)
    if players > MOST_PLAYERS:
        few = (
            f"all coalitions of {players} clients are {2**players:,}; take shapley, or a run of {MOST_PLAYERS} or fewer"
        )
        raise ShoalError("--method", few)
    right_SN = np.array([game.right(coalition) for coalition in range(1 << players)])
    every_S, size_S = np.arange(1 << players), np.array([coalition.bit_count() for coalition in range(1 << players)])
    # Counts are whole numbers: what a player adds is added up by the size of the coalition before it, without error.
    value_PN, total_P = np.zeros((players, right_SN.shape[1])), np.zeros(players)
    for p in range(players):
        without_S = every_S[every_S >> p & 1 == 0]
        added_SN = right_SN[without_S | 1 << p] - right_SN[without_S]
        by_size = [added_SN[size_S[without_S] == s].sum(0) for s in range(players)]
        value_PN[p] = [float(_weigh(kind, column)) for column in np.array(by_size).T.tolist()]
        total_P[p] = float(_weigh(kind, [int(row.sum()) for row in by_size]))
    return Estimate(value_PN, total_P, np.zeros(players), f"all {1 << players} coalitions")


def _weigh(kind: str, added: list[int]) -> Fraction:
    """Returns the value of a player from what it adds to all coalitions of each size together."""
    players = len(added)
    if kind == BANZHAF:
        return Fraction(sum(added), 2 ** (players - 1))
    of_size = (Fraction(count, math.comb(players - 1, s)) for s, count in enumerate(added))
    return sum(of_size, Fraction(0)) / players


def leave_out(game: Scorer) -> Estimate:
    """Returns what each player adds to all others."""
    players = len(game.players)
    whole = (1 << players) - 1
    value_PN = np.array([game.right(whole) - game.right(whole ^ 1 << p) for p in range(players)], dtype=np.float64)
    return Estimate(value_PN, value_PN.sum(1), np.zeros(players), "exact: what each adds to all others")


def draw_coalitions(game: Scorer, kind: str, limits: Limits, rng: np.random.Generator) -> Estimate:
    """Estimates values from drawn coalitions until a limit is reached; where all fit into the limit, from all.

    Raises ShoalError: `limits.trainings` is too low for an interval.
    """
    players = len(game.players)
    if fits_whole(game, limits):
        return count_all(game, kind)
    design = Design(kind, players)
    always = [coalition for size in design.counted for coalition in _of_size(size, players)]
    right_cN = np.array([game.right(coalition) for coalition in always])
    drawn, scores, seen, start = list[int](), list[np.ndarray](), {*always}, float(rng.random())
    next_look = FEWEST
    while True:
        coalition = design.draw(len(drawn), start, rng)
        # A member's share of the work is expected; clients differ little in the number of their visits.
        if game.cost(seen) + (coalition not in seen) * coalition.bit_count() / players > limits.trainings:
            break
        drawn.append(coalition)
        scores.append(game.right(coalition))
        seen.add(coalition)
        if len(drawn) == next_look and limits.precision > 0:
            estimate = design.estimate(always, right_cN, drawn, np.array(scores))
            if estimate.half_P.max() <= limits.precision:
                return estimate
            next_look = math.ceil(GROWTH * next_look)
    if len(drawn) < FEWEST:
        few = f"{limits.trainings:g} are {len(drawn)} drawn coalitions, and an interval needs {FEWEST}; set it higher"
        raise ShoalError("--trainings", few)
    return design.estimate(always, right_cN, drawn, np.array(scores))


def fits_whole(game: Scorer, limits: Limits) -> bool:
    """Returns whether the work of all coalitions, half of the players in the mean, is within the limit."""
    players = len(game.players)
    return players <= MOST_PLAYERS and 2 ** (players - 1) <= limits.trainings


class Design:
    """The draw of coalitions for a value of so many players, and its estimate.

    Of Shapley, sizes 0, 1 and all are counted whole, and others drawn as 1 / s. That is near the least variance for a
    given work: 1 / (s sqrt(P - s)) where scores of all sizes spread alike, s^-1.5 where they do as means of s players.
    It has more of the large coalitions, each of which tells of the few players that it lacks.
    """

    def __init__(self, kind: str, players: int) -> None:
        self._players, self._weights = players, weigh_sizes(kind, players)
        sizes = np.arange(players + 1)
        if kind == SHAPLEY:
            self.counted: tuple[int, ...] = (0, 1, players)
            chance = np.where((sizes > 1) & (sizes < players), 1 / np.maximum(sizes, 1.0), 0.0)
        else:
            self.counted = (0, players)
            chance = np.array([math.comb(players, int(s)) / 2**players for s in sizes])
            chance[[0, players]] = 0.0
        self._chance = chance / chance.sum()
        self._drawn_sizes = np.flatnonzero(chance).tolist()

    def draw(self, number: int, start: float, rng: np.random.Generator) -> int:
        """Draws a coalition; sizes follow the golden ratio, so that any number of draws has each at its share."""
        size = int(np.searchsorted(np.cumsum(self._chance), (start + number * GOLDEN) % 1.0, side="right"))
        size = min(size, self._drawn_sizes[-1])
        return sum(1 << int(p) for p in rng.choice(self._players, size, replace=False))

    # Threads wait for one another at each of many small solves, and their sums have other last bits.
    @threadpool_limits.wrap(limits=1)
    def estimate(self, always: list[int], right_cN: np.ndarray, drawn: list[int], right_mN: np.ndarray) -> Estimate:
        """Returns values from the coalitions that are counted whole and those that were drawn, with their scores."""
        players = self._players
        member_cP, member_mP = (_members(coalitions, players) for coalitions in (always, drawn))
        value_PN = np.zeros((players, right_mN.shape[1]))
        for size in self.counted:
            of_size = member_cP.sum(1) == size
            value_PN += self._factors(member_cP[of_size]).T @ right_cN[of_size] / of_size.sum()
        some = member_cP.sum(1) > 0
        fitted_cP, fitted_cN = member_cP[some], right_cN[some]
        scale, share = fit_scale(np.concatenate([fitted_cP, member_mP]), np.concatenate([fitted_cN, right_mN]).sum(1))

        def predict_folds(fold_m: np.ndarray) -> Iterator[tuple[np.ndarray, np.ndarray, Surrogate]]:
            """Fits a surrogate to all folds but one; yields who is in that one, with what it leaves of these."""
            for fold in range(FOLDS):
                here = fold_m == fold
                members = np.concatenate([fitted_cP, member_mP[~here]])
                surrogate = fit(members, np.concatenate([fitted_cN, right_mN[~here]]).astype(float), scale, share)
                yield here, right_mN[here] - surrogate.predict(member_mP[here]), surrogate

        size_m = member_mP.sum(1)
        factor_mP = self._factors(member_mP) / self._chance[size_m][:, None]
        fold_m, rest_m = np.arange(len(drawn)) % FOLDS, np.zeros(len(drawn))
        for here, rest_hN, surrogate in predict_folds(fold_m):
            value_PN += here.mean() * surrogate.values(self._weights, self._drawn_sizes)
            value_PN += factor_mP[here].T @ rest_hN / len(drawn)
            rest_m[here] = rest_hN.sum(1)
        # Drawn twice, a coalition lies in two folds, and less is left of it than of one that the surrogate never saw.
        number_of: dict[int, int] = {}
        once_m = np.array([number_of.setdefault(coalition, len(number_of)) for coalition in drawn]) % FOLDS
        if len(number_of) < len(drawn):
            for here, rest_hN, _ in predict_folds(once_m):
                rest_m[here] = rest_hN.sum(1)
        half = student.ppf((1 + CONFIDENCE) / 2, len(drawn) - FOLDS) * self._error(size_m, rest_m)
        return Estimate(value_PN, value_PN.sum(1), np.full(players, half), f"{len(drawn)} drawn coalitions")

    def _error(self, size_m: np.ndarray, rest_m: np.ndarray) -> float:
        """Returns the standard error of values, from what the surrogate leaves of coalitions of each size.

        A player is missed in few large coalitions, too few for an error of its own: all players have the mean one.
        """
        players, sizes = self._players, np.array(self._drawn_sizes)
        # Sizes with few draws, or none, are expected between an equal spread and that of means of s of P players.
        expected_s = np.sqrt((players - sizes) / sizes)
        spread = float((rest_m**2 / np.sqrt((players - size_m) / size_m)).mean())
        squares_s = np.array([(rest_m[size_m == s] ** 2).sum() for s in sizes])
        count_s = np.array([(size_m == s).sum() for s in sizes])
        variance_s = (PRIOR * spread * expected_s + squares_s) / (PRIOR + count_s)
        with_it_s, without_s = self._weights.with_it[sizes], self._weights.without[sizes]
        factor_s = with_it_s**2 * players / sizes + without_s**2 * players / (players - sizes)
        return math.sqrt(float((variance_s * factor_s / self._chance[sizes]).sum()) / len(size_m))

    def _factors(self, member_mP: np.ndarray) -> np.ndarray:
        """Returns the factor of the mean score of coalitions of one size in the value of each player, `[m, P]`."""
        size_m1, players = member_mP.sum(1, keepdims=True), self._players
        with_it = self._weights.with_it[size_m1] * players / np.maximum(size_m1, 1)
        without = self._weights.without[size_m1] * players / np.maximum(players - size_m1, 1)
        return np.where(member_mP, with_it, -without)


def _of_size(size: int, players: int) -> list[int]:
    """Lists all coalitions of 0, 1 or all players."""
    return [1 << p for p in range(players)] if size == 1 else [(1 << size) - 1]


def _members(coalitions: list[int], players: int) -> np.ndarray:
    """Returns who is in which, bool `[m, P]`."""
    return np.array([[coalition >> p & 1 for p in range(players)] for coalition in coalitions], dtype=bool)
