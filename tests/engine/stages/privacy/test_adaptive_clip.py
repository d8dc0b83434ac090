"""Clips that follow a quantile against rounds written out, and their noise against that of one Gaussian mechanism."""

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from support.errors import refused
from support.needs import needs
from support.plain_fedavg import sgd_step
from support.small_runs import small_run

from shoal.algorithms.rng import key
from shoal.engine.config.config import Config, parse_config
from shoal.engine.records.metrics import read_metrics
from shoal.engine.rounds.server import Server
from shoal.engine.runs.dry_run import expected
from shoal.engine.runs.plan import RunPlan
from shoal.engine.runs.run import run
from shoal.engine.stages.privacy.adaptive_clip import next_clip, split
from shoal.past.ledger import HIDDEN as BOUNDED
from shoal.past.ledger import ledger

Start = Callable[..., Server]
LR = 0.5
PLAIN = {"model.name": "sgc", "propagation.hops": 0, "train.optimizer": "sgd", "train.lr": LR, "train.epochs": 1}
PLAIN |= {"train.dropout": 0.0, "train.weight_decay": 0.0}
HIDDEN = {"privacy.unit": "client", "privacy.quantile": 0.6, "privacy.clip": 0.2}


@pytest.mark.parametrize(("noise", "drawn"), [(0.3, 5), (4.9, 50), (1.0, 400)])
def test_both_releases_are_one_of_the_given_noise(noise: float, drawn: int) -> None:
    """By what one client moves: replaced 2 C and a bit from 1/2 to -1/2, added or removed C and half a bit."""
    changes, bits = split(noise, drawn)
    assert bits == drawn / 20
    for of_change, of_bit in ((2, 1), (1, 0.5)):
        # Of independent numbers of a Gaussian the squares of what moves them add up.
        assert math.hypot(of_change / changes, of_bit / bits) == pytest.approx(of_change / noise, rel=1e-9)
    with refused("privacy.quantile", says=f"needs less than {drawn / 10:g}"):
        split(drawn / 10, drawn)


@pytest.mark.parametrize("draw", ["fixed", "poisson"])
@pytest.mark.parametrize("noise", [0.0, 0.3])
def test_rounds_of_fedavg_whose_clip_adapts(start: Start, noise: float, draw: str) -> None:
    keys = {"privacy.noise": noise, "participation.count": 4, "participation.draw": draw, "rounds": 12}
    server = start({**PLAIN, **HIDDEN, **keys})
    of_changes, of_bits = ((noise**-2 - (2 * 4 / 20) ** -2) ** -0.5, 4 / 20) if noise else (0.0, 0.0)
    w, clip, sums = server.state.server["w"].numpy().astype(np.float64), 0.2, set()
    for number in range(1, 13):
        total, bits = np.zeros(len(w)), 0.0
        for client in server.cohort(number):
            after, size = sgd_step(server, client, w.astype(np.float32), LR)
            change = (after - w.astype(np.float32)).astype(np.float64) if size else np.zeros(len(w))
            length = float(np.linalg.norm(change))
            bits += 0.5 if length <= clip else -0.5
            total += change * min(1, clip / max(length, 1e-12))
        sums.add(bits)
        rng = [
            torch.Generator().manual_seed(key(server.job.seed, number, "privacy", of)) for of in ("w", "privacy/within")
        ]
        w = w + (total + of_changes * clip * torch.randn(len(w), generator=rng[0]).numpy()) / 4
        bits += of_bits * float(torch.randn((), generator=rng[1]))
        assert server.round()["clip"] == pytest.approx(clip, rel=1e-6)
        np.testing.assert_allclose(server.state.server["w"], w, rtol=0, atol=5e-6)
        clip *= math.exp(-0.2 * (0.5 + bits / 4 - 0.6))
        assert float(server.state.extras["privacy"]["clip"]) == pytest.approx(clip, rel=1e-6)
    assert len(sums) > 1


@pytest.mark.parametrize("first", [0.01, 100.0])
@pytest.mark.parametrize("quantile", [0.25, 0.9])
def test_the_clip_moves_to_the_quantile(first: float, quantile: float) -> None:
    """Of fixed norms, without noise, from both sides."""
    norms, clip = np.random.default_rng(0).lognormal(0, 1, 1000), first
    for _ in range(600):
        clip = next_clip(clip, float((norms <= clip).mean()), quantile)
    assert clip == pytest.approx(np.quantile(norms, quantile), rel=0.02)


@pytest.mark.parametrize(("first", "step"), [(1e-4, 0.2 * 0.6), (1e4, -0.2 * 0.4)])
def test_the_clip_of_a_run_comes_to_the_norms_of_its_clients(start: Start, first: float, step: float) -> None:
    """All clients that train are above the first clip, or within it."""
    keys = {"privacy.noise": 0.0, "privacy.clip": first, "rounds": 150, "evaluation.every": 150}
    server = start({**PLAIN, **HIDDEN, **keys})
    untrained = sum(not info.train for info in server.infos) / len(server.infos)
    clips = [server.round()["clip"] for _ in range(150)]
    steps = np.diff(np.log(clips))
    np.testing.assert_allclose(steps[:20], step - 0.2 * untrained * (first < 1), rtol=1e-6)
    # Then it goes up and down about the quantile.
    assert steps[-50:].min() < 0 < steps[-50:].max()


@needs("secure")
def test_clips_are_those_of_a_run_whose_clients_hide_what_they_send(start: Start) -> None:
    keys = {**PLAIN, **HIDDEN, "privacy.noise": 0.3, "rounds": 4}
    found = [start({**keys, **more}) for more in ({}, {"secure.kind": "masks"})]
    plain, masked = ([server.round()["clip"] for _ in range(4)] for server in found)
    assert len(set(plain)) == 4
    assert plain == pytest.approx(masked, rel=1e-5)


def test_a_run_records_its_clips_and_its_ledger_the_bits(tmp_path: Path) -> None:
    privacy = {"unit": "client", "noise": 0.1, "quantile": 0.5, "clip": 0.1}
    folder = run(parse_config(small_run(tmp_path, rounds=4, privacy=privacy), "a small run"))
    clips = [line["clip"] for line in read_metrics(folder)]
    assert clips[0] == 0.1
    assert len(set(clips)) == 4
    found = {sent.entry: (sent.shape, says) for sent, says in ledger(folder, 3).sent}
    assert found == {"w": ((27,), BOUNDED), "privacy/within": ((), BOUNDED)}


def test_what_cannot_adapt_is_refused(make_config: Callable[..., Config]) -> None:
    keys: dict[str, Any] = {"privacy__unit": "client", "privacy__quantile": 0.5}
    with refused("privacy.quantile", says="noise 1 on 5 clients a round leaves none for the clip"):
        RunPlan.of(make_config(**keys, privacy__noise=1.0))
    with refused("privacy.quantile", says="noise 0.4 on 3 clients a round leaves none for the clip"):
        RunPlan.of(make_config(**keys, privacy__noise=0.4, participation__count=3))
    with refused("privacy.clip", says="privacy.quantile needs a clip to begin with"):
        RunPlan.of(make_config(**keys, privacy__noise=0.0, privacy__clip=None))
    config = make_config(**keys, privacy__noise=0.4, engine__backend="local")
    assert expected(RunPlan.of(config)).rows["privacy"].endswith("clip 1.0 at first, then near quantile 0.5 of norms")
