"""Epsilon against laws of the loss written out in NumPy, and against federations of which all cohorts are counted."""

import math
from collections.abc import Callable
from itertools import combinations
from typing import Any

import numpy as np
import pytest
from scipy.optimize import brentq
from scipy.stats import norm

from shoal.engine.config.config import Config
from shoal.engine.stages.privacy.accounting import STEP, divergence, epsilon_after, noise_of, reverse_divergence
from shoal.engine.stages.privacy.node_privacy import epsilon_of_node
from shoal.engine.stages.privacy.privacy import epsilon_of
from shoal.engine.stages.privacy.section import PrivacyOptions

WIDTH = 5e-4
X = np.arange(-14, 30, WIDTH)


def density(x: np.ndarray, mean: float) -> np.ndarray:
    return np.exp(-((x - mean) ** 2) / 2) / math.sqrt(2 * math.pi)


def laws(moved: float, share: float, poisson: bool) -> list[tuple[np.ndarray, np.ndarray]]:
    """Values and masses of the loss of one release, for each order of the neighbours."""
    plain, other = density(X, 0.0) * WIDTH, density(X, moved) * WIDTH
    mixed = (1 - share) * plain + share * other
    with np.errstate(divide="ignore"):
        loss = np.log((1 - share) + share * np.exp(moved * X - moved**2 / 2))
    if poisson:
        return [(loss, mixed), (-loss, plain)]
    # A client replaced: with gains of either order, and what is alike in both.
    high = moved / 2 < X
    gains, of_gain = loss[high], mixed[high]
    return [(np.r_[gains, -gains, 0.0], np.r_[of_gain, plain[high], 1 - of_gain.sum() - plain[high].sum()])]


def by_fft(moved: float, share: float, rounds: int, delta: float, poisson: bool = False, step: float = 1e-3) -> float:
    """Epsilon of releases whose losses add up, on a grid wide enough that nothing comes around."""
    worst = 0.0
    for loss, mass in laws(moved, share, poisson):
        keep = mass > 1e-18
        place = loss[keep] / step
        low = np.floor(place).astype(int)
        one = np.bincount(low - low.min(), mass[keep] * (1 - place + low))
        one = np.append(one, 0.0)
        one[1:] += np.bincount(low - low.min(), mass[keep] * (place - low), len(one) - 1)
        size = 1 << (min(rounds, 60) * len(one)).bit_length()
        # Around the mean of the sum.
        centre = round(rounds * float(one @ np.arange(len(one))))
        law = np.fft.irfft(np.fft.rfft(one, size) ** rounds, size)
        number = (np.arange(size) - centre + size // 2) % size - size // 2 + centre
        losses = (number + rounds * int(low.min())) * step

        def gap(epsilon: float, losses: np.ndarray = losses, law: np.ndarray = law) -> float:
            above = losses > epsilon
            return float(law[above] @ -np.expm1(epsilon - losses[above])) - delta

        if gap(0.0) > 0:
            worst = max(worst, float(brentq(gap, 0.0, float(losses.max()))))
    return worst


FIXED = [(3.0, 9, 10, 10, 1e-4), (2.9, 25, 50, 20, 1e-4), (1.7, 10, 50, 20, 1e-4), (1.5, 1, 100, 500, 1e-5)]
FIXED += [(6.0, 3, 4, 1, 1e-3), (0.8, 1, 200, 50, 1e-5), (20.0, 90, 100, 1000, 1e-6)]


@pytest.mark.parametrize(("noise", "drawn", "clients", "rounds", "delta"), FIXED)
def test_epsilon_of_drawn_cohorts_is_that_of_the_law_of_the_loss(
    noise: float, drawn: int, clients: int, rounds: int, delta: float
) -> None:
    share = drawn / clients
    for poisson in (False, True):
        found = epsilon_after(noise, delta, drawn, clients, rounds, poisson)
        expected = by_fft((1 if poisson else 2) / noise, share, rounds, delta, poisson)
        assert found == pytest.approx(expected, rel=0.01)
        # Less than where a client takes part in all rounds.
        assert found < epsilon_after(noise, delta, clients, clients, rounds, poisson)


def test_epsilon_of_the_example_in_which_amplification_was_worse_than_none() -> None:
    assert epsilon_after(3.0, 1e-4, 9, 10, 10) == pytest.approx(8.65, abs=0.01)
    assert epsilon_after(3.0, 1e-4, 10, 10, 10) == pytest.approx(9.49, abs=0.01)


@pytest.mark.parametrize(("noise", "rounds", "delta"), [(4.0, 1, 1e-3), (8.0, 20, 1e-4), (60.0, 100, 1e-6)])
def test_epsilon_of_full_participation_is_exact(noise: float, rounds: int, delta: float) -> None:
    """One client replaced moves the sum by 2 C at most, 2 / z deviations (Balle and Wang, ICML 2018, theorem 8)."""
    found, apart = epsilon_after(noise, delta, 9, 9, rounds), 2 / noise * math.sqrt(rounds)
    upper = norm.cdf(apart / 2 - found / apart) - math.exp(found) * norm.cdf(-apart / 2 - found / apart)
    assert float(upper) == pytest.approx(delta, rel=1e-6)
    assert found == pytest.approx(by_fft(2 / noise, 1.0, rounds, delta), rel=0.01)
    # With a client more or less half as far.
    assert epsilon_after(noise, delta, 9, 9, rounds, poisson=True) == pytest.approx(
        epsilon_after(2 * noise, delta, 9, 9, rounds), rel=1e-9
    )


def test_epsilon_of_groups_by_turns_and_banded_noise(make_config: Callable[..., Config]) -> None:
    """A client of three groups takes part in a third of the rounds, rounded up."""
    keys: dict[str, Any] = {"privacy__unit": "client", "privacy__noise": 6.0, "privacy__delta": 1e-4}
    keys |= {"participation__draw": "cyclic", "participation__count": 2}
    for more in ({}, {"privacy__mechanism": "banded"}, {"privacy__mechanism": "banded", "privacy__bands": 2}):
        config = make_config(**keys, **more)
        for rounds, times in ((9, 3), (7, 3), (6, 2), (1, 1)):
            assert epsilon_of(config, rounds) == pytest.approx(by_fft(2 / 6, 1.0, times, 1e-4), rel=0.01)


def test_epsilon_of_a_node(make_config: Callable[..., Config]) -> None:
    """Two hops and one more, for what a node sends is divided by its degree: 3, 6 and 12 nodes around it."""
    keys: dict[str, Any] = {"privacy__unit": "node", "privacy__noise": 300.0, "train__epochs": 2}
    config = make_config(**keys, model__name="sgc", propagation__max_degree=3)
    moved = (2 + 4 * (3 + 6 + 12)) / 300
    assert epsilon_of_node(config, 20) == pytest.approx(by_fft(moved, 1.0, 40, 1e-5), rel=0.01)
    mlp = make_config(**keys | {"privacy__noise": 8.0}, model__name="mlp")
    assert epsilon_of_node(mlp, 5) == pytest.approx(by_fft(2 / 8, 1.0, 10, 1e-5), rel=0.01)


def apart(one: np.ndarray, other: np.ndarray, epsilon: float) -> float:
    """The hockey-stick divergence of densities on `X`."""
    return float(np.maximum(one - math.exp(epsilon) * other, 0).sum() * WIDTH)


def test_no_federation_of_four_moves_a_release_by_more() -> None:
    """All cohorts of two or three of four clients, one of them replaced: at most the profile, and the worst attains it.

    By counting, without a theorem on samples.
    """
    noise, attained = 1.5, dict.fromkeys((2, 3), 0.0)
    for drawn in attained:
        cohorts = list(combinations(range(4), drawn))
        for seed in range(12):
            sent = np.random.default_rng(seed).uniform(-1, 1, 5) if seed else np.array([1.0, -1.0, -1.0, -1.0, -1.0])
            if seed % 2:
                sent = np.sign(sent)
            neighbours = (sent[[0, 1, 2, 3]], sent[[4, 1, 2, 3]])
            # In deviations of the noise.
            one, other = (
                np.mean([density(X, values[list(cohort)].sum() / noise) for cohort in cohorts], axis=0)
                for values in neighbours
            )
            for epsilon in (0.0, 0.2, 0.7, 1.3):
                most = float(divergence(np.array([epsilon]), 2 / noise, drawn / 4)[0])
                worst = max(apart(one, other, epsilon), apart(other, one, epsilon))
                assert worst <= most + 1e-6
                attained[drawn] = max(attained[drawn], worst / most)
                # A client more or less, each drawn on its own: moved by one clip.
    assert all(share == pytest.approx(1, rel=1e-4) for share in attained.values())


def test_divergences_are_those_of_densities() -> None:
    """On both sides of log(1 - q), below which the loss is always larger, and of -log(1 - q), which is above all."""
    for moved, share in ((1.0, 0.3), (0.4, 0.9), (2.0, 0.05), (1.5, 1.0)):
        plain = density(X, 0.0)
        mixed = (1 - share) * plain + share * density(X, moved)
        epsilons = np.array([-3.0, -0.2, 0.0, 0.4, 1.5])
        expected = [apart(mixed, plain, epsilon) for epsilon in epsilons]
        np.testing.assert_allclose(divergence(epsilons, moved, share), expected, rtol=1e-5, atol=1e-6)
        expected = [apart(plain, mixed, epsilon) for epsilon in epsilons]
        np.testing.assert_allclose(reverse_divergence(epsilons, moved, share), expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("poisson", [False, True])
def test_epsilon_grows_with_rounds_and_share_and_falls_with_noise(poisson: bool) -> None:
    def after(noise: float = 2.0, drawn: int = 20, rounds: int = 30, delta: float = 1e-5) -> float:
        return epsilon_after(noise, delta, drawn, 100, rounds, poisson)

    for rising in (
        [after(rounds=rounds) for rounds in (0, 1, 2, 10, 100, 3000)],
        [after(drawn=drawn) for drawn in (1, 5, 30, 99, 100)],
        [after(noise=noise) for noise in (50.0, 8.0, 1.0, 0.3, 0.05, 0.0)],
        [after(delta=delta) for delta in (1e-2, 1e-5, 1e-9, 1e-13, 1e-30)],
    ):
        assert rising == sorted(set(rising))


def test_noise_for_an_epsilon_is_the_least() -> None:
    for drawn, poisson in ((50, False), (10, False), (10, True), (1, False)):
        options = PrivacyOptions(unit="client", epsilon=3.0, delta=1e-4)
        noise = noise_of(options, drawn, 50, 20, poisson)
        after = [epsilon_after(z, 1e-4, drawn, 50, 20, poisson) for z in (noise, noise - STEP)]
        assert after[0] <= 3.0 < after[1]
    # Where the least that is looked for is enough, it is taken.
    assert noise_of(PrivacyOptions(unit="client", epsilon=1e6, delta=1e-4), 1, 1, 1) == 0.05
