"""Uploads with noise of their own against rounds written out, federations that differ in a client, and formulas."""

import math
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from scipy.stats import norm
from support.errors import refused
from support.needs import needs
from support.plain_fedavg import sgd_step

from shoal.algorithms.base import Algorithm
from shoal.algorithms.protocol import Ask, Reduce, Tree, Upload
from shoal.algorithms.rng import key
from shoal.engine.config.config import Config
from shoal.engine.config.round_sections import ParticipationOptions
from shoal.engine.hosts.backend import LocalBackend
from shoal.engine.messages.cell import Cell, Outcome
from shoal.engine.rounds.sampling import evaluation_cell
from shoal.engine.rounds.server import Server
from shoal.engine.runs.dry_run import expected
from shoal.engine.runs.plan import RunPlan
from shoal.engine.stages.privacy.accounting import epsilon_after, noise_at_clients
from shoal.engine.stages.privacy.hidden_clients import Release
from shoal.engine.stages.privacy.hidden_uploads import NoisyUploads, norms_of
from shoal.engine.stages.privacy.privacy import epsilon_of
from shoal.engine.stages.privacy.section import PrivacyOptions

Start = Callable[..., Server]
LR, CLIP = 0.5, 0.05
PLAIN = {"model.name": "sgc", "propagation.hops": 0, "train.optimizer": "sgd", "train.lr": LR, "train.epochs": 1}
PLAIN |= {"train.dropout": 0.0, "train.weight_decay": 0.0}
AT_CLIENTS = {"privacy.unit": "client", "privacy.where": "client", "privacy.noise": 0.5, "privacy.clip": CLIP}
UNIFORM = {"name": "fedgta", "confidence": "uniform"}
FEDGTA = {f"algorithm.{key}": value for key, value in UNIFORM.items()}
# One model for all: everybody is admitted.
ONE_MODEL = {**FEDGTA, "algorithm.eps": -1.0, "algorithm.cold_start": "init"}


class Seen(LocalBackend):
    """The one host, which keeps what clients sent, by entry and client."""

    sent: dict[str, dict[int, torch.Tensor]]

    def run_cells(self, cells: Sequence[Cell], shared: Tree) -> Iterator[tuple[int, Outcome]]:
        for position, outcome in super().run_cells(cells, shared):
            for entry, rows in outcome.tensors.items():
                self.sent.setdefault(entry, {}).update(zip(outcome.ids, rows.clone()))
            yield position, outcome


@pytest.mark.parametrize(("method", "parts"), [({}, 1), (ONE_MODEL, 2)])
def test_rounds_of_clipped_changes_with_noise_at_each_client(start: Start, method: dict[str, Any], parts: int) -> None:
    """Of FedGTA the moments are a second part, so that the models have noise of sqrt(2) times the deviation."""
    server = start({**PLAIN, **AT_CLIENTS, **method})
    w, untrained, clipped = server._initial.numpy().astype(np.float64), 0, 0
    for number in (1, 2, 3):
        total, cohort = np.zeros(len(w)), server.cohort(number)
        for client in cohort:
            after, size = sgd_step(server, client, w.astype(np.float32), LR)
            change = (after - w.astype(np.float32)).astype(np.float64) if size else np.zeros(len(w))
            length = np.sqrt((change**2).sum())
            untrained, clipped = untrained + (not size), clipped + (length > CLIP)
            rng = torch.Generator().manual_seed(key(server.job.seed, number, client, "privacy/train/w"))
            noise = 0.5 * math.sqrt(parts) * CLIP * torch.randn(len(w), generator=rng).numpy()
            total += w + change * min(1, CLIP / max(length, 1e-12)) + noise
        w = total / len(cohort)
        server.round()
        found = server.state.inboxes[0]["w"] if parts == 2 else server.state.server["w"]
        np.testing.assert_allclose(found, w, rtol=0, atol=3e-6)
    assert untrained == 3
    assert clipped


def test_parts_have_noise_by_their_norms_and_a_weight_is_left_out() -> None:
    """Five standard errors of 200,000 draws; z sqrt(2) C on changes, z sqrt(2) B on an entry of norm B."""

    class Mine(Algorithm):
        def norms(self) -> Mapping[str, float | None]:
            return {"w": None, "m": 3.0, "h": 0.0}

    size, options = 200_000, PrivacyOptions(unit="client", where="client", clip=2.0, noise=1.5)
    up = {"w": Reduce.MIX, "m": Reduce.STACK, "h": Reduce.STACK}
    cell = replace(evaluation_cell(1, [0], {}, {}), phase="train", up=up)
    base, m = torch.full((size,), 4.0), torch.zeros(size)
    m[0] = 300.0
    upload = Upload({"w": base + 1, "m": m, "h": torch.tensor(70.0)})

    def sent(noise: float, seed: int) -> Upload:
        hides = NoisyUploads(replace(options, noise=noise), Mine())
        return hides.protect(upload, {"w": base, "m": m}, cell, lambda purpose: key(seed, purpose))

    plain, noisy, other = sent(0.0, 1), sent(1.5, 1), sent(1.5, 2)
    torch.testing.assert_close(plain.entries["w"], base + 2 / math.sqrt(size))
    assert plain.entries["m"].nonzero().tolist() == [[0]]
    # What a method says of its whole is no change from anything.
    assert plain.entries["m"][0] == pytest.approx(3.0)
    drawn = {name: noisy.entries[name] - plain.entries[name] for name in ("w", "m")}
    for name, most in (("w", 2.0), ("m", 3.0)):
        deviation = 1.5 * math.sqrt(2) * most
        assert abs(float(drawn[name].std()) / deviation - 1) < 5 / math.sqrt(2 * size)
        assert abs(float(drawn[name].mean())) < 5 * deviation / math.sqrt(size)
        assert not torch.equal(noisy.entries[name], other.entries[name])
        assert torch.equal(noisy.entries[name], sent(1.5, 1).entries[name])
    assert abs(float((drawn["w"] * drawn["m"]).mean())) < 5 * (1.5**2 * 2 * 6) / math.sqrt(size)
    assert [found.entries["h"].item() for found in (plain, noisy)] == [1.0, 1.0]
    assert noisy.upload_bytes == {"w": 4 * size, "m": 4 * size, "h": 4}
    whole = Upload({**upload.entries, "h": torch.tensor(7)})
    with refused("privacy.where", says="upload() gives 'h' as int64; noise needs floats"):
        NoisyUploads(options, Mine()).protect(whole, {}, cell, lambda purpose: 0)


@pytest.fixture(scope="session")
def neighbour(tmp_path_factory: pytest.TempPathFactory, graphs: Mapping[str, Path]) -> dict[str, Any]:
    """Keys of the small federation in which client 2 has other features and labels."""
    folder = tmp_path_factory.mktemp("neighbour")
    shutil.copytree(graphs["plain"], folder / "graph")
    x, y = np.load(folder / "graph" / "x.npy"), np.load(folder / "graph" / "y.npy")
    x[60:90], y[60:90] = 40 * x[60:90], (y[60:90] + 1) % 3
    np.save(folder / "graph" / "x.npy", x)
    np.save(folder / "graph" / "y.npy", y)
    return {"data.path": str(folder / "graph"), "data.store": str(folder / "store")}


@pytest.mark.parametrize("name", ["fedavg", "fedproto", "class_means"])
def test_sums_of_federations_that_differ_in_a_client_are_within_two_clips(
    start: Start, neighbour: dict[str, Any], name: str
) -> None:
    keys = {**PLAIN, "privacy.unit": "client", "privacy.noise": 0.0, "algorithm.name": name}
    keys |= {"algorithm.hops": 0} if name == "class_means" else {}
    entry = {"fedavg": "w", "fedproto": "proto", "class_means": "sum"}[name]
    moved = {}
    for clip in (0.1, None):
        servers = [start({**keys, **of, "privacy.clip": clip}) for of in ({}, neighbour)]
        for server in servers:
            server.round()
        # The server of class means keeps the sum, the others its sixth part.
        one, other = (server.state.server[entry].double() * (1 if entry == "sum" else 6) for server in servers)
        moved[clip] = float((one - other).norm())
    assert 0.1 < moved[0.1] <= 0.2 + 1e-5 < moved[None]


def test_uploads_of_federations_that_differ_in_a_client_are_within_twice_their_norms(
    start: Start, neighbour: dict[str, Any]
) -> None:
    sent = []
    for of in ({}, neighbour):
        backend = Seen()
        backend.sent = {}
        job = start(keys := {**PLAIN, **AT_CLIENTS, **FEDGTA, **of, "privacy.noise": 0.0}).job
        start(keys, pool=lambda pool, backend=backend, job=job: backend.enter(job)).round()
        sent.append(backend.sent)
    for entry, least, most in (("w", 1, 2 * CLIP), ("m", 1e-3, 2 * math.sqrt(5 * 12)), ("h", None, 0)):
        moved = [float((sent[0][entry][i] - sent[1][entry][i]).norm()) for i in range(6)]
        assert moved[2] <= most + 1e-6
        assert not any(of for i, of in enumerate(moved) if i != 2)
        assert least is None or moved[2] > least * CLIP
    assert all(of.item() == 1 for of in sent[0]["h"].values())


def test_no_clip_and_no_noise_are_the_plain_run_of_uniform_confidence(start: Start) -> None:
    """Where every client has training items: without, its h is next to nothing in the plain run."""
    for seed in range(100):
        plain = start({**FEDGTA, "participation.count": 3, "seed": seed})
        if all(plain.infos[client].train for number in (1, 2, 3) for client in plain.cohort(number)):
            break
    more = {**AT_CLIENTS, "privacy.noise": 0.0, "privacy.clip": None}
    hidden = start({**FEDGTA, **more, "participation.count": 3, "seed": seed})
    for _ in range(3):
        plain.round()
        hidden.round()
    assert plain.state.inboxes.keys() == hidden.state.inboxes.keys()
    assert all(torch.equal(tree["w"], hidden.state.inboxes[i]["w"]) for i, tree in plain.state.inboxes.items())


@pytest.mark.parametrize("participation", [{}, {"count": 2}, {"count": 2, "draw": "poisson"}])
def test_epsilon_is_that_of_a_client_in_every_round(
    make_config: Callable[..., Config], participation: dict[str, Any]
) -> None:
    """Moved by 2 / z deviations a round, whoever is drawn (Balle and Wang, ICML 2018, theorem 8)."""
    keys = {"privacy__unit": "client", "privacy__where": "client", "privacy__noise": 12.0}
    config = make_config(**keys, **{f"participation__{name}": value for name, value in participation.items()})
    found, apart = epsilon_of(config, config.rounds), 2 / 12.0 * math.sqrt(config.rounds)
    above = norm.cdf(apart / 2 - found / apart) - math.exp(found) * norm.cdf(-apart / 2 - found / apart)
    assert float(above) == pytest.approx(1e-5, rel=1e-6)
    shown = expected(RunPlan.of(config)).rows["privacy"]
    assert shown == (
        f"epsilon {found:.3g} of a client (all its data replaced), delta 1e-05; noise 12, clip 1.0, on each upload"
    )


def test_noise_for_an_epsilon_counts_all_rounds_or_one_of_what_is_sent_once(make_config: Callable[..., Config]) -> None:
    keys = {"privacy__unit": "client", "privacy__where": "client", "privacy__epsilon": 3.0}
    often, once = make_config(**keys), make_config(**keys, algorithm__name="class_means")
    for config, releases in ((often, often.rounds), (once, 1)):
        noise = noise_at_clients(config)
        assert epsilon_after(noise, 1e-5, 1, 1, releases) <= 3.0 < epsilon_after(noise - 2e-3, 1e-5, 1, 1, releases)
        assert epsilon_of(config, config.rounds) == epsilon_after(noise, 1e-5, 1, 1, releases)
    assert "sent once" in expected(RunPlan.of(once)).rows["privacy"]


def test_what_has_no_norm_is_refused_by_entry(start: Start) -> None:
    with refused(says="entries of one shape with a norm in norms(), and 'proto' of FedTGP is neither"):
        start({**AT_CLIENTS, "algorithm.name": "fedtgp"}).round()

    class Odd(Algorithm):
        def norms(self) -> Mapping[str, float | None]:
            return {"z": 1.0}

    release = Release(
        PrivacyOptions(unit="client", where="client", noise=1.0), ParticipationOptions(), 2, 5, 0, "Odd", Odd()
    )
    release.require_counted(
        Ask("train", {"z": Reduce.STACK}, private={1: {"z": torch.zeros(1)}}, to=[1]), True, 3, [0, 1]
    )
    release.require_counted(Ask("end", {}), False, 3, [0, 1])
    with refused("privacy.where", says="'z' of Odd is neither"):
        release.require_counted(Ask("train", {"z": Reduce.GATHER}), True, 3, [0, 1])
    with refused("privacy.unit", says="Odd exchanges more than once a round"):
        release.require_counted(Ask("train", {"z": Reduce.STACK}), False, 3, [0, 1])


@dataclass(frozen=True)
class Wrong(Algorithm):
    """A method that declares what is no norm."""

    def norms(self) -> Mapping[str, float | None]:
        return {"w": -1.0}


@needs("compression")
def test_what_has_no_epsilon_is_refused_before_data_is_read(make_config: Callable[..., Config]) -> None:
    def plan(**keys: Any) -> RunPlan:
        return RunPlan.of(make_config(**{"privacy__unit": "client", "privacy__noise": 1.0, **keys}))

    at_clients = {"privacy__where": "client"}
    with refused(
        "algorithm.confidence", says="paper has no largest norm, which privacy.where=client needs; take uniform"
    ):
        plan(**at_clients, algorithm__name="fedgta")
    raw = {f"algorithm__{key}": value for key, value in {**UNIFORM, "rows": "raw"}.items()}
    with refused("algorithm.rows", says="raw has no largest norm"):
        plan(**at_clients, **raw)
    plan(**at_clients, **{**raw, "algorithm__rows": "softmax"})
    with refused("engine.on_client_error", says="take fail"):
        plan(**at_clients, engine__on_client_error="skip")
    with refused("communication.upload", says="take none"):
        plan(**at_clients, communication__upload="int8")
    with refused("participation", says="class_means counts one upload, in round 1; take participation.ratio=1"):
        plan(algorithm__name="class_means", participation__count=2)
    with refused("engine.on_client_error", says="take fail"):
        plan(algorithm__name="class_means", engine__on_client_error="skip")
    with refused(says="in norms(): gives -1.0 for 'w', expected None or a number of at least 0"):
        norms_of(Wrong())
