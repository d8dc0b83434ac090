"""Rounds in which clients are hidden against rounds written out, and epsilon against formulas of its papers."""

import math
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from support.errors import refused
from support.needs import needs
from support.plain_fedavg import sgd_step

from shoal.algorithms.base import Client, Received
from shoal.algorithms.methods.fedproto import FedProto
from shoal.algorithms.protocol import Ask, Reduce, Replies, Upload
from shoal.algorithms.rng import key
from shoal.engine.config.config import Config
from shoal.engine.config.round_sections import ParticipationOptions
from shoal.engine.rounds.server import Server
from shoal.engine.runs.dry_run import expected
from shoal.engine.runs.plan import RunPlan
from shoal.engine.stages.privacy.accounting import epsilon_after, noise_of
from shoal.engine.stages.privacy.hidden_clients import Release
from shoal.engine.stages.privacy.privacy import bound_of, epsilon_of
from shoal.engine.stages.privacy.section import PrivacyOptions
from shoal.storage.shards.view import Cache

Start = Callable[..., Server]
LR = 0.5
PLAIN = {"model.name": "sgc", "propagation.hops": 0, "train.optimizer": "sgd", "train.lr": LR, "train.epochs": 1}
PLAIN |= {"train.dropout": 0.0, "train.weight_decay": 0.0}
HIDDEN = {"privacy.unit": "client", "privacy.noise": 0.5, "privacy.clip": 0.05}


def release_of(drawn: int, clients: int, seed: int = 0, draw: Any = "fixed", **options: Any) -> Release:
    """That of a run of five rounds of a method `Mine`."""
    participation = ParticipationOptions(count=drawn, draw=draw)
    return Release(PrivacyOptions(unit="client", **options), participation, clients, 5, seed, "Mine")


@pytest.mark.parametrize("noise", [0.0, 0.5])
@pytest.mark.parametrize("weight", ["nodes", "train"])
def test_rounds_of_fedavg_with_clipped_changes_and_noise(start: Start, noise: float, weight: str) -> None:
    server = start({**PLAIN, **HIDDEN, "privacy.noise": noise, "participation.count": 5, "algorithm.weight": weight})
    w, clipped, untrained = server.state.server["w"].numpy().astype(np.float64), 0, 0
    for number in (1, 2, 3):
        total = np.zeros(len(w))
        for client in server.cohort(number):
            after, size = sgd_step(server, client, w.astype(np.float32), LR)
            change = (after - w.astype(np.float32)).astype(np.float64) if size else np.zeros(len(w))
            untrained += not size
            length = np.sqrt((change**2).sum())
            clipped += length > 0.05
            total += change * min(1, 0.05 / max(length, 1e-12))
        rng = torch.Generator().manual_seed(key(server.job.seed, number, "privacy", "w"))
        w = w + (total + noise * 0.05 * torch.randn(len(w), generator=rng).numpy()) / 5
        server.round()
        np.testing.assert_allclose(server.state.server["w"], w, rtol=0, atol=2e-6)
    assert clipped
    assert untrained


def class_rows(server: Server, client: int) -> dict[int, np.ndarray]:
    """Means of the features of a client's training rows by class."""
    view = server.job.view(server.job.open_store(), client, Cache(0))
    x, y = view.x[view.train].double().numpy(), view.label[view.train].numpy()
    return {c: x[y == c].mean(0) for c in set(y.tolist())}


def test_rounds_of_class_rows_in_which_each_client_counts_once_a_row(start: Start) -> None:
    """Without layers embeddings are features; a class that a client lacks is no change, one that all lack is noise."""
    keys = {**PLAIN, **HIDDEN, "privacy.clip": 1.5, "algorithm.name": "fedproto", "participation.count": 5}
    server, lacking, clipped = start(keys), 0, 0
    proto = np.zeros((4, 5))
    for number in (1, 2, 3):
        total = np.zeros((4, 5))
        for client in server.cohort(number):
            rows = class_rows(server, client)
            change = np.array([rows[c] - proto[c] if c in rows else np.zeros(5) for c in range(4)])
            length = np.sqrt((change**2).sum())
            lacking, clipped = lacking + (len(rows) < 3), clipped + (length > 1.5)
            total += change * min(1, 1.5 / max(length, 1e-12))
        rng = torch.Generator().manual_seed(key(server.job.seed, number, "privacy", "proto"))
        proto = proto + (total + 0.5 * 1.5 * torch.randn(4, 5, generator=rng).numpy()) / 5
        line = server.round()
        np.testing.assert_allclose(server.state.server["proto"], proto, rtol=0, atol=2e-6)
        assert server.state.server["known"].all()
        # All rows, whatever classes a client has, of four bytes a number.
        assert line["bytes_up"] == 5 * 4 * 5 * 4
    assert lacking
    assert 0 < clipped < 15


def test_class_means_are_sent_once_with_the_noise_of_one_release(start: Start) -> None:
    keys = {**PLAIN, "privacy.unit": "client", "privacy.epsilon": 3.0, "privacy.clip": 0.5, "algorithm.hops": 0}
    server = start({**keys, "algorithm.name": "class_means"})
    total = np.zeros((4, 5))
    for client in range(6):
        rows = class_rows(server, client)
        counts = np.bincount(labels_of(server, client), minlength=4)
        sent = np.array([rows[c] if counts[c] >= 2 else np.zeros(5) for c in range(4)])
        total += sent * min(1, 0.5 / max(float(np.sqrt((sent**2).sum())), 1e-12))
    noise = noise_of(PrivacyOptions(unit="client", epsilon=3.0), 6, 6, 1)
    rng = torch.Generator().manual_seed(key(server.job.seed, 1, "privacy", "mean"))
    total += noise * 0.5 * torch.randn(4, 5, generator=rng).numpy()
    for _ in range(3):
        line = server.round()
        np.testing.assert_allclose(server.state.server["sum"] / server.state.server["count"], total / 6, atol=2e-6)
    assert line["bytes_up"] == 0
    assert server.state.server["count"].eq(6).all()
    release = Release(
        PrivacyOptions(unit="client", noise=1.0), ParticipationOptions(), 2, 5, 0, "Mine", server.algorithm
    )
    release.require_counted(Ask("means", {"mean": Reduce.MEAN}, to=[0, 1]), True, 1, [0, 1])
    with refused("privacy.unit", says="Mine sends after round 1 what it declares to send once"):
        release.require_counted(Ask("means", {"mean": Reduce.MEAN}), True, 2, [0, 1])


def labels_of(server: Server, client: int) -> np.ndarray:
    view = server.job.view(server.job.open_store(), client, Cache(0))
    return view.label[view.train].numpy()


@dataclass(frozen=True)
class Even(FedProto):
    """FedProto to which each client that has a class is one."""

    def upload(self, client: Client, received: Received, phase: str) -> Upload:
        found = super().upload(client, received, phase)
        return Upload(found.entries, {name: (weight > 0).float() for name, weight in found.weight.items()})


def test_rows_without_clip_and_noise_are_the_plain_run_of_equal_weights(start: Start) -> None:
    """Where all clients have the same classes."""
    keys = {"algorithm.name": f"{__file__}:Even", "participation.count": 2}
    # Seeds below draw a client that lacks a class.
    for seed in range(23, 300):
        plain = start({**keys, "seed": seed})
        cohorts = [plain.cohort(number) for number in (1, 2, 3)]
        if all(set(labels_of(plain, client).tolist()) == {0, 1, 2} for cohort in cohorts for client in cohort):
            break
    hidden = start({**keys, "seed": seed, "privacy.unit": "client", "privacy.noise": 0.0, "privacy.clip": None})
    for _ in range(3):
        plain.round()
        hidden.round()
    assert torch.equal(plain.state.server["proto"], hidden.state.server["proto"])
    assert plain.state.server["known"].tolist() == [True, True, True, False]
    for client in cohorts[-1]:
        assert all(
            torch.equal(t, hidden.state.clients[client][name]) for name, t in plain.state.clients[client].items()
        )


def test_rounds_of_poisson_cohorts_have_noise_also_without_a_client(start: Start) -> None:
    keys = {**PLAIN, **HIDDEN, "participation.count": 2, "participation.draw": "poisson"}
    server = next(
        server
        for server in (start({**keys, "seed": seed}) for seed in range(200))
        if sorted(len(server.cohort(number)) == 0 for number in (1, 2, 3)) == [False, False, True]
    )
    w, empty = server.state.server["w"].numpy().astype(np.float64), []
    for number in (1, 2, 3):
        total, cohort = np.zeros(len(w)), server.cohort(number)
        empty += [] if cohort else [number]
        for client in cohort:
            after, size = sgd_step(server, client, w.astype(np.float32), LR)
            change = (after - w.astype(np.float32)).astype(np.float64) if size else np.zeros(len(w))
            total += change * min(1, 0.05 / max(float(np.sqrt((change**2).sum())), 1e-12))
        rng = torch.Generator().manual_seed(key(server.job.seed, number, "privacy", "w"))
        w = w + (total + 0.5 * 0.05 * torch.randn(len(w), generator=rng).numpy()) / 2
        line = server.round()
        assert line["cohort"] == cohort
        np.testing.assert_allclose(server.state.server["w"], w, rtol=0, atol=2e-6)
    assert len(empty) == 1


def test_an_entry_without_a_shape_is_refused_where_no_client_was_drawn() -> None:
    release = release_of(4, 9, noise=1.0, draw="poisson")
    with refused("participation.draw", says="poisson drew no client in round 3, and Mine sends no 'c'"):
        release.of(Replies([], {}, {}), Ask("train", {"c": Reduce.MEAN}), 3, {})


def test_no_clip_and_no_noise_are_the_plain_run_of_equal_weights(start: Start) -> None:
    """Where every client has training items: without, it has no weight in the plain run, and counts here."""
    keys = {"algorithm.weight": "uniform", "participation.count": 3}
    for seed in range(100):
        plain = start({**keys, "seed": seed})
        if all(plain.infos[client].train for number in (1, 2, 3) for client in plain.cohort(number)):
            break
    hidden = start({**keys, "seed": seed, "privacy.unit": "client", "privacy.noise": 0.0, "privacy.clip": None})
    for _ in range(3):
        plain.round()
        hidden.round()
    assert torch.equal(plain.state.server["w"], hidden.state.server["w"])


def test_noise_has_the_deviation_of_the_paper_and_is_keyed() -> None:
    """Noise z C on a sum is z C / m on the mean; five standard errors of 200,000 draws."""
    release = release_of(10, 40, seed=7, clip=1000.0, noise=2.0)
    ask, size = Ask("train", {"w": Reduce.MEAN, "v": Reduce.MEAN}), 200_000
    replies = Replies(list(range(10)), {name: torch.zeros(size) for name in "wv"}, {"w": torch.tensor(3.0)})
    one, two = (release.of(replies, ask, number, {}) for number in (1, 2))
    drawn = {(number, name): found[name] for number, found in ((1, one), (2, two)) for name in "wv"}
    for noise in drawn.values():
        assert abs(float(noise.std()) / 200 - 1) < 5 / math.sqrt(2 * size)
        assert abs(float(noise.mean())) < 5 * 200 / math.sqrt(size)
    for other in ((1, "v"), (2, "w")):
        assert abs(float((drawn[1, "w"] * drawn[other]).mean())) < 5 * 200**2 / math.sqrt(size)
    assert torch.equal(release.of(replies, ask, 1, {})["w"], one["w"])
    assert one.weights["w"] == 10


def test_a_client_that_did_not_answer_is_no_change() -> None:
    release = release_of(4, 4, noise=0.0)
    ask = Ask("train", {"w": Reduce.MEAN, "c": Reduce.MEAN}, shared={"w": torch.tensor([10.0])})
    found = release.of(Replies([0, 3], {"w": torch.tensor([14.0]), "c": torch.tensor([4.0])}, {}), ask, 1, {})
    assert found["w"].item() == 12.0
    assert found["c"].item() == 2.0


def test_what_is_no_mean_of_equal_clients_is_refused(start: Start) -> None:
    for method, says in (
        ("fedgta", "privacy.unit: client bounds means, and 'w' of FedGTA is mixed; take privacy.where=client"),
        ("fedtgp", "client bounds means, and 'proto' of FedTGP is kept for every client; take privacy.unit=none"),
    ):
        with refused(says=says):
            start({**HIDDEN, "algorithm.name": method}).round()
    release = release_of(4, 4, noise=1.0)
    w = {"w": torch.zeros(1)}
    for ask, first, says in (
        (Ask("train", {"w": Reduce.MEAN}), False, "Mine exchanges more than once a round"),
        (Ask("train", {"w": Reduce.MEAN}, to=[0]), True, "Mine chooses clients of its own"),
        (Ask("train", {"w": Reduce.MEAN}, private={1: w}), True, "Mine sends each client another w"),
    ):
        with refused("privacy.unit", says=says):
            release.require_counted(ask, first, 1, [0, 1])
    release.require_counted(Ask("train", {"w": Reduce.MEAN}, shared=w, to=[0, 1]), True, 1, [0, 1])


@needs("robust")
def test_what_has_no_epsilon_is_refused_before_data_is_read(
    make_config: Callable[..., Config], monkeypatch: pytest.MonkeyPatch
) -> None:
    def plan(**keys: Any) -> RunPlan:
        return RunPlan.of(make_config(**{"privacy__unit": "client", **keys}))

    with refused("privacy.noise", says="give either"):
        plan()
    with refused("privacy.noise", says="give either"):
        plan(privacy__noise=1.0, privacy__epsilon=1.0)
    with refused("privacy.clip", says="found null"):
        plan(privacy__noise=1.0, privacy__clip=None)
    with refused("privacy.delta", says="take less than 0.2"):
        plan(privacy__noise=1.0, privacy__delta=0.2)
    with refused("aggregation.kind", says="take mean"):
        plan(privacy__noise=1.0, aggregation__kind="median")
    with refused("participation", says="draw others"):
        plan(privacy__noise=1.0, participation__dropout=0.2)
    with refused("participation.without", says="take an empty list"):
        plan(privacy__noise=1.0, participation__without=[1])
    with refused("data.newcomers", says="take 0"):
        plan(privacy__noise=1.0, data__newcomers=0.4)
    monkeypatch.setitem(sys.modules, "dp_accounting", None)
    # Cohorts that are not drawn need no package.
    with refused("privacy.epsilon", says="pip install 'shoal[privacy]'"):
        plan(privacy__epsilon=1.5, participation__count=2, train__opt_state="reset")
    plan(privacy__epsilon=1.5, participation__count=2)
    plan(privacy__epsilon=1.5)
    plan(privacy__noise=1.0, participation__count=2)


@pytest.mark.parametrize("draw", ["fixed", "poisson"])
def test_draws_count_where_clients_keep_nothing_alone(make_config: Callable[..., Config], draw: str) -> None:
    """What a client keeps can tell in which rounds it took part, so that its epsilon is that of all rounds."""
    keys = {"privacy__unit": "client", "privacy__noise": 4.0, "participation__count": 2, "participation__draw": draw}
    kept, forgotten = (make_config(**keys, train__opt_state=state) for state in ("keep", "reset"))
    for number in (1, 5):
        surely = epsilon_after(4.0, 1e-5, 5, 5, number, draw == "poisson")
        drawn = epsilon_after(4.0, 1e-5, 2, 5, number, draw == "poisson")
        assert epsilon_of(kept, number) == surely > drawn == epsilon_of(forgotten, number)
    assert bound_of(kept, 5).endswith(", draws not counted (train.opt_state: keep)")
    assert "draws" not in bound_of(forgotten, 5)
    # The server adds the noise that is counted.
    options = PrivacyOptions(unit="client", epsilon=2.0)
    participation = ParticipationOptions(count=2, draw=draw)  # type: ignore[arg-type]
    less, more = (Release(options, participation, 5, 5, 0, "Mine", forget=forget).noise for forget in (True, False))
    assert less == noise_of(options, 2, 5, 5, draw == "poisson") < more == noise_of(options, 5, 5, 5, draw == "poisson")


def test_a_client_that_keeps_something_is_refused_where_draws_count(start: Start) -> None:
    keys = {**PLAIN, **HIDDEN, "participation.count": 2, "train.opt_state": "reset"}
    start({**keys, "algorithm.name": "fedavg"}).round()
    server = start({**keys, "algorithm.name": "scaffold"})
    with refused(f"client {server.cohort(1)[0]}", says="keeps something of SCAFFOLD after its visit"):
        server.round()
    start({**keys, "algorithm.name": "scaffold", "train.opt_state": "keep"}).round()
    start({**keys, "algorithm.name": "scaffold", "participation.count": 6}).round()


def test_trace_is_refused(make_config: Callable[..., Config], tmp_path: Path) -> None:
    np.save(tmp_path / "trace.npy", np.ones((3, 5)))
    with refused("participation.trace", says="who is online is not drawn"):
        RunPlan.of(
            make_config(privacy__unit="client", privacy__noise=1.0, participation__trace=str(tmp_path / "trace.npy"))
        )


def test_dry_run_says_epsilon_with_its_unit(make_config: Callable[..., Config]) -> None:
    config = make_config(engine__backend="local", privacy__unit="client", privacy__noise=40.0)
    shown = expected(RunPlan.of(config)).rows["privacy"]
    epsilon = epsilon_after(40.0, 1e-5, 5, 5, config.rounds)
    assert shown == f"epsilon {epsilon:.3g} of a client (all its data replaced), delta 1e-05; noise 40, clip 1.0"
    config = make_config(
        engine__backend="local", privacy__unit="client", privacy__noise=40.0, participation__draw="poisson"
    )
    shown = expected(RunPlan.of(config)).rows["privacy"]
    epsilon = epsilon_after(40.0, 1e-5, 5, 5, config.rounds, poisson=True)
    assert shown == f"epsilon {epsilon:.3g} of a client (with or without it), delta 1e-05; noise 40, clip 1.0"
