"""Estimates of values in small games, against sums over all permutations and all coalitions, in fractions."""

import itertools
import math
from collections.abc import Callable, Iterable
from fractions import Fraction

import numpy as np
import pytest
from support.errors import refused

from shoal.values.estimates import BANZHAF, SHAPLEY, Limits, count_all, draw_coalitions, leave_out, weigh_sizes
from shoal.values.permutations import draw_permutations
from shoal.values.surrogate import fit


class MadeGame:
    """A game of right items at two clients, by a function of the set of players; a coalition costs its size."""

    def __init__(self, players: int, right: Callable[[frozenset[int]], tuple[int, int]]) -> None:
        self.players = tuple(range(players))
        self._right, self.asked = right, list[int]()

    def right(self, coalition: int) -> np.ndarray:
        self.asked.append(coalition)
        return np.array(self._right(members(coalition)))

    def cost(self, coalitions: Iterable[int]) -> float:
        return sum(coalition.bit_count() for coalition in coalitions) / len(self.players)


def members(coalition: int) -> frozenset[int]:
    return frozenset(p for p in range(coalition.bit_length()) if coalition >> p & 1)


def drawn_game(players: int, seed: int, noise: int = 400) -> MadeGame:
    """Coverage of made topics, as classes that clients have, and noise that no smooth function explains."""
    rng = np.random.default_rng(seed)
    topic_P = [frozenset(rng.choice(8, 2, replace=False).tolist()) for _ in range(players)]
    extra = rng.integers(0, noise + 1, size=(1 << players, 2))

    def right(who: frozenset[int]) -> tuple[int, int]:
        covered = len(frozenset().union(*(topic_P[p] for p in who)))
        place = sum(1 << p for p in who)
        first, second = (100 * covered + extra[place]).tolist() if who else (50, 60)
        return first, second

    return MadeGame(players, right)


def brute_shapley(game: MadeGame) -> list[list[Fraction]]:
    """Means over all orders of what each player adds, at both clients and together."""
    players = len(game.players)
    added = [[Fraction(0)] * 3 for _ in range(players)]
    for order in itertools.permutations(range(players)):
        coalition = 0
        for p in order:
            before, coalition = game.right(coalition), coalition | 1 << p
            gain = (game.right(coalition) - before).tolist()
            added[p] = [old + new for old, new in zip(added[p], (*gain, sum(gain)))]
    return [[each / math.factorial(players) for each in row] for row in added]


def brute_banzhaf(game: MadeGame) -> list[Fraction]:
    players, values = len(game.players), []
    for p in range(players):
        others = [i for i in range(players) if i != p]
        sets = [who for size in range(players) for who in itertools.combinations(others, size)]
        gains = [int((game.right(1 << p | _bits(who)) - game.right(_bits(who))).sum()) for who in sets]
        values.append(Fraction(sum(gains), len(sets)))
    return values


def _bits(who: Iterable[int]) -> int:
    return sum(1 << p for p in who)


@pytest.mark.parametrize("players", [1, 2, 5])
def test_all_coalitions_give_the_mean_over_all_orders_to_the_last_digit(players: int) -> None:
    game = drawn_game(players, 1)
    found, expected = count_all(game, SHAPLEY), brute_shapley(drawn_game(players, 1))
    assert found.value_PN.tolist() == [[float(row[0]), float(row[1])] for row in expected]
    assert found.total_P.tolist() == [float(row[2]) for row in expected]
    assert not found.half_P.any()
    assert sorted(game.asked) == list(range(1 << players))


def test_banzhaf_of_all_coalitions_is_the_mean_over_sets_of_others() -> None:
    found = count_all(drawn_game(4, 2), BANZHAF)
    assert found.total_P.tolist() == [float(each) for each in brute_banzhaf(drawn_game(4, 2))]


def test_eight_players_of_an_airport_game_have_its_known_values_to_the_last_digit() -> None:
    """The cost of a coalition is that of its largest member; its values are by Littlechild and Owen (1973)."""
    costs = [3, 5, 8, 13, 21, 34, 55, 89]
    game = MadeGame(8, lambda who: (max((costs[p] for p in who), default=0), 0))
    steps = [Fraction(cost - before, 8 - p) for p, (before, cost) in enumerate(zip([0, *costs], costs))]
    expected = list(itertools.accumulate(steps))
    assert count_all(game, SHAPLEY).total_P.tolist() == [float(each) for each in expected]
    assert len(set(game.asked)) == 256


def test_leaving_out_is_what_each_adds_to_all_others() -> None:
    game = MadeGame(3, lambda who: (sum(p + 1 for p in who), len(who) ** 2))
    found = leave_out(game)
    assert found.value_PN.tolist() == [[1, 5], [2, 5], [3, 5]]
    assert found.total_P.tolist() == [6, 7, 8]


@pytest.mark.parametrize(
    ("kind", "seeds"), [(SHAPLEY, 12), pytest.param(BANZHAF, 12), pytest.param(SHAPLEY, 60, marks=pytest.mark.slow)]
)
def test_intervals_of_drawn_coalitions_hold_the_values_of_all(kind: str, seeds: int) -> None:
    exact = count_all(drawn_game(9, 3), kind).total_P
    game, inside, error = drawn_game(9, 3), [], []
    for seed in range(seeds):
        found = draw_coalitions(game, kind, Limits(0.0, 60.0), np.random.default_rng(seed))
        inside.append(np.abs(found.total_P - exact) <= found.half_P)
        error.append(found.total_P - exact)
        assert found.value_PN.sum(1) == pytest.approx(found.total_P)
        if kind == SHAPLEY:
            # Nothing is lost: values add up to what all players change.
            assert found.total_P.sum() == pytest.approx((game.right(511) - game.right(0)).sum())
    assert 0.88 <= np.mean(inside) <= 1.0
    # The mean of errors is as small as their spread allows, in all players together.
    spread = np.std(error) / math.sqrt(seeds)
    assert np.sqrt(np.mean(np.mean(error, 0) ** 2)) < 1.6 * spread


@pytest.mark.parametrize(("players", "trainings"), [(5, 15.0), (6, 28.0)])
def test_intervals_hold_where_most_coalitions_are_drawn_twice(players: int, trainings: float) -> None:
    inside = []
    for made, seed in itertools.product(range(3), range(8)):
        exact = count_all(drawn_game(players, made), SHAPLEY).total_P
        limits = Limits(0.0, trainings)
        drawn = draw_coalitions(drawn_game(players, made), SHAPLEY, limits, np.random.default_rng(seed))
        inside.append(np.abs(drawn.total_P - exact) <= drawn.half_P)
    assert np.mean(inside) >= 0.93


def test_drawing_ends_by_precision_or_by_work_and_takes_all_coalitions_that_fit() -> None:
    wide = draw_coalitions(drawn_game(9, 3), SHAPLEY, Limits(0.0, 30.0), np.random.default_rng(0))
    game = drawn_game(9, 3)
    narrow = draw_coalitions(game, SHAPLEY, Limits(float(wide.half_P.max()) * 0.8, 200.0), np.random.default_rng(0))
    assert narrow.half_P.max() <= 0.8 * wide.half_P.max()
    assert 30 < game.cost(set(game.asked)) < 200
    game = drawn_game(9, 3)
    draw_coalitions(game, SHAPLEY, Limits(0.0, 30.0), np.random.default_rng(0))
    assert game.cost(set(game.asked)) <= 30
    assert not draw_coalitions(drawn_game(4, 1), SHAPLEY, Limits(0.0, 8.0), np.random.default_rng(0)).half_P.any()
    with refused("--trainings"):
        draw_coalitions(drawn_game(9, 3), SHAPLEY, Limits(0.0, 3.0), np.random.default_rng(0))


def test_permutations_hold_the_values_and_share_coalitions_that_are_equal() -> None:
    exact = count_all(drawn_game(8, 4), SHAPLEY).total_P
    inside = []
    for seed in range(40):
        game = drawn_game(8, 4)
        found = draw_permutations(game, Limits(0.0, 60.0), 0.0, np.random.default_rng(seed))
        inside.append(np.abs(found.total_P - exact) <= found.half_P)
        assert found.total_P.sum() == pytest.approx((game.right(255) - game.right(0)).sum())
        # Plain permutations would have trained eight coalitions each.
        assert game.cost(set(game.asked)) < int(found.note.split()[0]) * 36 / 8
    assert 0.85 <= np.mean(inside) <= 1.0
    assert not draw_permutations(drawn_game(4, 1), Limits(0.0, 8.0), 0.0, np.random.default_rng(0)).half_P.any()
    with refused("--trainings"):
        draw_permutations(drawn_game(5, 4), Limits(0.0, 1.0), 0.0, np.random.default_rng(0))


def test_a_permutation_ends_within_the_tolerance_and_errs_by_no_more_where_scores_rise() -> None:
    weights = [50, 20, 10, 5, 3, 2, 1, 1]

    def game() -> MadeGame:
        return MadeGame(8, lambda who: (sum(weights[p] for p in who), 0))

    # Every order gives the values of a game of sums, so that what differs is what was cut off.
    whole, cut = game(), game()
    plain = draw_permutations(whole, Limits(500.0, 100.0), 0.0, np.random.default_rng(0))
    assert plain.total_P.tolist() == weights
    assert not plain.half_P.any()
    found = draw_permutations(cut, Limits(500.0, 100.0), 12.0, np.random.default_rng(0))
    missed = np.array(weights) - found.total_P
    assert missed.max() > 0
    assert (missed >= 0).all()
    assert (missed <= found.half_P).all()
    assert len(set(cut.asked)) < len(set(whole.asked))


def test_the_surrogate_knows_its_own_values_by_the_sums_over_its_predictions() -> None:
    rng = np.random.default_rng(0)
    member_mP = rng.random((12, 6)) < 0.5
    member_mP[0] = True
    member_mP[1:][member_mP[1:].sum(1) == 0, 0] = True
    surrogate = fit(member_mP, rng.normal(size=(12, 2)), 0.3, 0.01)
    everyone = np.array([[c >> p & 1 for p in range(6)] for c in range(64)], dtype=bool)
    score = surrogate.predict(everyone)
    for kind in (SHAPLEY, BANZHAF):
        expected = np.zeros((6, 2))
        for p in range(6):
            for c in range(64):
                if not c >> p & 1:
                    s = c.bit_count()
                    weight = 1 / (6 * math.comb(5, s)) if kind == SHAPLEY else 1 / 32
                    expected[p] += weight * (score[c | 1 << p] - score[c])
        assert surrogate.values(weigh_sizes(kind, 6), range(7)) == pytest.approx(expected)
