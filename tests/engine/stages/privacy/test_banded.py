"""Banded noise against dense matrices, its bound by all patterns of participation, and rounds written out."""

import math
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from scipy.linalg import toeplitz
from scipy.special import binom
from support.errors import refused
from support.plain_fedavg import sgd_step

from shoal.algorithms.protocol import Ask, Reduce, Replies
from shoal.algorithms.rng import key
from shoal.engine.config.config import Config
from shoal.engine.config.round_sections import ParticipationOptions
from shoal.engine.rounds.server import Server
from shoal.engine.runs.dry_run import expected
from shoal.engine.runs.plan import RunPlan
from shoal.engine.stages.privacy.banded import column, next_row
from shoal.engine.stages.privacy.hidden_clients import Release
from shoal.engine.stages.privacy.privacy import epsilon_of
from shoal.engine.stages.privacy.section import PrivacyOptions

Start = Callable[..., Server]
LR, CLIP, NOISE = 0.5, 0.05, 0.5
PLAIN = {"model.name": "sgc", "propagation.hops": 0, "train.optimizer": "sgd", "train.lr": LR, "train.epochs": 1}
PLAIN |= {"train.dropout": 0.0, "train.weight_decay": 0.0, "rounds": 9}
HIDDEN = {"privacy.unit": "client", "privacy.noise": NOISE, "privacy.clip": CLIP, "privacy.mechanism": "banded"}
HIDDEN |= {"participation.draw": "cyclic", "participation.count": 2}
UPLOADS, ASK = list(range(10)), Ask("train", {"w": Reduce.MEAN})


def dense(rounds: int, bands: int) -> np.ndarray:
    """C `[T, T]`."""
    series = np.array([binom(2 * k, k) / 4**k for k in range(bands)])
    return np.tril(toeplitz(np.pad(series / np.linalg.norm(series), (0, max(rounds - bands, 0)))[:rounds]))


def release_of(bands: int | None, groups: int, rounds: int, clip: float) -> Release:
    """That of a run with groups of ten clients."""
    options = PrivacyOptions(unit="client", mechanism="banded", bands=bands, noise=NOISE, clip=clip)
    return Release(options, ParticipationOptions(count=10, draw="cyclic"), 10 * groups, rounds, 7, "Mine")


def released(release: Release, rounds: int, size: int) -> np.ndarray:
    """The noise on means of rounds `[T, size]`."""
    replies, kept = Replies(UPLOADS, {"w": torch.zeros(size)}, {}), dict[str, torch.Tensor]()
    return np.stack([release.of(replies, ASK, number, kept)["w"].numpy() for number in range(1, rounds + 1)])


@pytest.mark.parametrize("bands", [1, 2, 3, 7, 12])
def test_rows_are_those_of_the_inverse(bands: int) -> None:
    rows: list[torch.Tensor] = []
    for one_hot in torch.eye(12, dtype=torch.float64):
        rows.insert(0, next_row(column(bands), one_hot, rows[: bands - 1]))
    inverse, whole = torch.stack(rows[::-1]).numpy(), dense(12, bands)
    np.testing.assert_allclose(whole @ inverse, np.eye(12), atol=1e-12)
    assert np.linalg.norm(whole[:, 0]) == pytest.approx(1)
    # Of all bands C is the square root of prefix sums, scaled.
    if bands == 12:
        np.testing.assert_allclose(whole @ whole, np.tril(np.ones((12, 12))) * column(12)[0] ** 2, atol=1e-12)


def patterns(rounds: int, apart: int, first: int = 0) -> Iterator[list[int]]:
    """All sets of rounds, each at least so many after the one before."""
    yield []
    for number in range(first, rounds):
        yield from ([number, *rest] for rest in patterns(rounds, apart, number + apart))


@pytest.mark.parametrize(("rounds", "bands"), [(7, 1), (7, 2), (9, 3), (10, 4), (6, 8)])
def test_a_client_moves_rows_as_its_rounds_alone_do(rounds: int, bands: int) -> None:
    """All patterns of participation, with vectors and in the worst direction: at most the root of k by one a round."""
    whole, rng, most = dense(rounds, bands), np.random.default_rng(0), 0.0
    for taken in patterns(rounds, bands):
        for _ in range(3):
            moved = np.zeros((rounds, 4))
            moved[taken] = rng.standard_normal((len(taken), 4))
            moved[taken] /= np.linalg.norm(moved[taken], axis=1, keepdims=True)
            assert np.linalg.norm(whole @ moved) <= math.sqrt(len(taken)) + 1e-12
        # No entry of C is negative, so that equal directions are the worst.
        most = max(most, float(np.linalg.norm(whole[:, taken].sum(1))))
    k = -(-rounds // bands)
    assert math.sqrt(k - 1) < most <= math.sqrt(k) + 1e-12
    # One that came a round earlier would move them by more.
    if rounds > bands > 1:
        assert np.linalg.norm(whole[:, 0] + whole[:, bands - 1]) > 1.01 * math.sqrt(2)


@pytest.mark.parametrize("bands", [None, 2])
def test_noise_has_the_covariance_of_its_matrix_and_sums_have_less(bands: int | None) -> None:
    """Of 200,000 numbers, within six standard errors; keyed by the round."""
    rounds, size = 8, 200_000
    found = released(release_of(bands, 4, rounds, 3.0), rounds, size)
    inverse = np.linalg.inv(dense(rounds, bands or 4)) * NOISE * 3.0 / 10
    covariance = inverse @ inverse.T
    error = np.sqrt(np.outer(np.diag(covariance), np.diag(covariance)) * 2 / size)
    assert (abs(found @ found.T / size - covariance) < 6 * error).all()
    assert np.array_equal(found, released(release_of(bands, 4, rounds, 3.0), rounds, size))
    # Of the last model, beside noise of each round on its own with the same epsilon.
    alone = released(release_of(1, 4, rounds, 3.0), rounds, size)
    assert found.sum(0).var() < (0.8 if bands is None else 0.95) * alone.sum(0).var()


@pytest.mark.parametrize("bands", [1, 2, 3])
def test_rounds_of_fedavg_with_banded_noise(start: Start, bands: int) -> None:
    server = start({**PLAIN, **HIDDEN, "privacy.bands": bands})
    w, drawn = server.state.server["w"].numpy().astype(np.float64), []
    for number in range(1, 10):
        total = np.zeros(len(w))
        for client in server.cohort(number):
            after, size = sgd_step(server, client, w.astype(np.float32), LR)
            change = (after - w.astype(np.float32)).astype(np.float64) if size else np.zeros(len(w))
            total += change * min(1, CLIP / max(float(np.linalg.norm(change)), 1e-12))
        rng = torch.Generator().manual_seed(key(server.job.seed, number, "privacy", "w"))
        drawn.append(torch.randn(len(w), generator=rng).numpy())
        noise = np.linalg.solve(dense(number, bands), np.stack(drawn))[-1]
        w = w + (total + NOISE * CLIP * noise) / 2
        server.round()
        np.testing.assert_allclose(server.state.server["w"], w, rtol=0, atol=5e-6)
    kept = {name: list(t.shape) for name, t in server.state.extras["privacy"].items()}
    assert kept == ({"9/w": [bands - 1, len(w)]} if bands > 1 else {})


def test_noise_begins_anew_after_a_round_without_the_entry() -> None:
    release, reply, kept = release_of(3, 3, 5, 1.0), Replies(UPLOADS, {"w": torch.zeros(50)}, {}), {}
    for number in (1, 2):
        release.of(reply, ASK, number, kept)
    release.of(Replies(UPLOADS, {"v": torch.zeros(3)}, {}), Ask("train", {"v": Reduce.MEAN}), 3, kept)
    assert torch.equal(release.of(reply, ASK, 4, kept)["w"], release.of(reply, ASK, 4, {})["w"])


def test_dry_run_says_bands_with_epsilon(make_config: Callable[..., Config]) -> None:
    keys: dict[str, Any] = {"privacy__unit": "client", "privacy__noise": 30.0, "engine__backend": "local"}
    keys |= {"participation__draw": "cyclic", "participation__count": 2}
    shown = expected(RunPlan.of(make_config(**keys, privacy__mechanism="banded"))).rows["privacy"]
    epsilon = epsilon_of(make_config(**keys), make_config(**keys).rounds)
    assert shown == (
        f"epsilon {epsilon:.3g} of a client (all its data replaced), delta 1e-05; noise 30 in 3 bands, clip 1.0"
    )


def test_more_bands_than_groups_are_refused(make_config: Callable[..., Config]) -> None:
    keys: dict[str, Any] = {"privacy__unit": "client", "privacy__noise": 1.0, "privacy__mechanism": "banded"}
    keys |= {"participation__draw": "cyclic", "participation__count": 2}
    with refused("privacy.bands", says="4, and a client takes part once in any 3 rounds; take 3 or fewer"):
        RunPlan.of(make_config(**keys, privacy__bands=4))
    RunPlan.of(make_config(**keys, privacy__bands=3))
