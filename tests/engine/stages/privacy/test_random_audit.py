"""One round of neighbours with many seeds: how well a threshold tells them apart, beside the claimed epsilon.

A set that has a release of D with a chance of p or more, and of D' with b or less, shows an epsilon of at least
log((p - delta) / b). All bounds hold with 95 % together (Clopper & Pearson).
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from scipy.stats import beta
from support.fixtures import Start
from support.small_cells import cell_of
from support.user_graph import write_arrays

from shoal.algorithms.base import Algorithm
from shoal.algorithms.client import FlatModel
from shoal.algorithms.models.decoupled.fixed_hops import SGC
from shoal.algorithms.protocol import Ask, Reduce, Replies, Tree, Upload
from shoal.algorithms.rng import key
from shoal.algorithms.training.clipped_rows import ClippedRows
from shoal.engine.config.config import Config
from shoal.engine.config.round_sections import ParticipationOptions
from shoal.engine.hosts.backend import LocalBackend
from shoal.engine.rounds.sampling import draw_cohort
from shoal.engine.rounds.server import Server
from shoal.engine.stages.privacy.accounting import epsilon_after
from shoal.engine.stages.privacy.hidden_clients import Release
from shoal.engine.stages.privacy.hidden_uploads import NoisyUploads
from shoal.engine.stages.privacy.node_privacy import epsilon_of_node
from shoal.engine.stages.privacy.section import PrivacyOptions

SEEDS, DELTA, CLIP, Z = 4000, 0.02, 0.25, 2.0
# Of whole rounds.
WHOLE = 1000
THRESHOLDS = np.linspace(-3, 3, 13)


def shown(one: np.ndarray, other: np.ndarray) -> float:
    """The largest epsilon that thresholds show of numbers of both neighbours, the first of which are larger."""
    found, level, count = 0.0, 0.05 / (4 * len(THRESHOLDS)), len(one)
    assert len(other) == count
    for threshold in THRESHOLDS:
        above, below = int((one > threshold).sum()), int((other > threshold).sum())
        for p, b in ((above, below), (count - below, count - above)):
            least = beta.ppf(level, p, count - p + 1) if p else 0.0
            most = beta.ppf(1 - level, b + 1, count - b) if b < count else 1.0
            if least > DELTA:
                found = max(found, math.log((least - DELTA) / most))
    return found


def require_between(one: np.ndarray, other: np.ndarray, claimed: float) -> None:
    """Below the claim, and not far below: the neighbours are the worst ones."""
    epsilon = shown(one, other)
    assert 0.5 * claimed < epsilon <= claimed


@pytest.mark.parametrize(
    ("noise", "participation"),
    [
        (2.0, ParticipationOptions()),
        (2.0, ParticipationOptions(count=2, draw="cyclic")),
        (1.2, ParticipationOptions(count=2)),
        (1.2, ParticipationOptions(count=1)),
        (0.8, ParticipationOptions(count=2, draw="poisson")),
    ],
    ids=["all", "by turns", "two drawn", "one drawn", "poisson"],
)
def test_a_sum_with_noise_at_the_server(noise: float, participation: ParticipationOptions) -> None:
    """A client sends C or -C where others send -C; drawn each on its own, it sends C or no change, as others do."""
    poisson, turns, size = participation.draw == "poisson", participation.draw == "cyclic", participation.size(4)
    others = 0.0 if poisson else -1.0
    # A client that is in no cohort of its round takes part in another round.
    cohorts = [
        cohort for seed in range(2 * SEEDS) if 0 in (cohort := draw_cohort(4, participation, seed, 1)) or not turns
    ]
    cohorts = cohorts[: 2 * (len(cohorts) // 2)]
    with_client = np.array([0 in cohort for cohort in cohorts])
    rest = np.array([len(cohort) for cohort in cohorts]) - with_client
    sides = np.where(np.arange(len(cohorts)) % 2, others, 1.0)
    sums = CLIP * (with_client * sides + rest * others)
    release = Release(PrivacyOptions(unit="client", clip=CLIP, noise=noise), participation, 4, 1, 7, "Mine")
    means = {"w": torch.from_numpy(sums / size)}
    ask = Ask("train", {"w": Reduce.MEAN}, shared={"w": torch.zeros(len(sums), dtype=torch.float64)})
    found = release.of(Replies(list(range(size)), means, {}), ask, 1, {})["w"].numpy() * size / (noise * CLIP)
    centred = found - ((size - 1 if others else 0) * others + (1 + others) / 2) / noise
    drawn = (1, 1) if turns else (size, 4)
    require_between(centred[::2], centred[1::2], epsilon_after(noise, DELTA, *drawn, 1, poisson))


class Normed(Algorithm):
    """A method of a model and of an entry of norm 3."""

    def norms(self) -> dict[str, float | None]:
        return {"w": None, "m": 3.0}


def test_an_upload_with_noise_of_its_own() -> None:
    """Model and entry point to one side, or to the other, further than their norms."""
    cell = cell_of([0], {"w": Reduce.MEAN, "m": Reduce.STACK})
    place = torch.eye(1, SEEDS + 1)[0]
    received: Tree = {"w": torch.full((SEEDS + 1,), 2.0)}

    def sent(side: float, noise: float, seed: int = 0) -> torch.Tensor:
        """The sum of the places of both entries, of which the first one alone changes, in deviations of the noise."""
        upload = Upload({"w": received["w"] + side * place * 5, "m": side * place * 9})
        uploads = NoisyUploads(PrivacyOptions(unit="client", where="client", clip=CLIP, noise=noise), Normed())
        found = uploads.protect(upload, received, cell, lambda purpose: key(seed, purpose)).entries
        # Two parts, each of noise z sqrt(2) norms.
        return ((found["w"] - received["w"]) / CLIP + found["m"] / 3) / (2 * Z)

    one, other = (sent(side, 0.0)[0] + sent(side, Z, number)[1:] for number, side in enumerate((1.0, -1.0)))
    require_between(one.numpy(), other.numpy(), epsilon_after(Z, DELTA, 1, 1, 1))


def test_a_step_on_clipped_rows(make_config: Callable[..., Config]) -> None:
    """One node has the other label, which turns its gradient; nodes have the first feature alone."""
    model, x = FlatModel(SGC(SEEDS + 1, 2, 0, 0.0)), 5 * torch.eye(1, SEEDS + 1).repeat(3, 1)
    model.load(torch.zeros_like(model.w))

    def along(label: int, noise: float) -> torch.Tensor:
        """Of each feature, and last of the bias, how far a sum is to the side of one class, in deviations."""
        torch.manual_seed(label)
        ClippedRows(model, CLIP, noise).gradient([x], torch.tensor([label, 0, 1]))
        assert model.w.grad is not None
        of_one, of_other = (3 * model.w.grad / (Z * CLIP)).clone().split([2 * (SEEDS + 1), 2])[0].view(2, -1)
        return (of_one - of_other) / math.sqrt(2)

    # Of the bias it is a fifth of that.
    apart = (along(1, 0.0) - along(0, 0.0))[0] * math.sqrt(1 + 1 / 25)
    assert float(apart) == pytest.approx(2 / Z, rel=1e-5)
    one, other = (side * apart / 2 + along(label, Z)[1:] for side, label in ((1, 1), (-1, 0)))
    keys = {"privacy__unit": "node", "privacy__noise": Z, "privacy__delta": DELTA, "train__epochs": 1}
    config = make_config(**keys, model__name="mlp")
    require_between(one.numpy(), other.numpy(), epsilon_of_node(config, 1))


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_whole_rounds_of_two_thousand_seeds(start: Start, graphs: Mapping[str, Path], tmp_path: Path) -> None:
    """Client 0 with other labels, features and edges, along the line between both models of the seed without noise."""
    data = [{}, {"data.path": str(with_other_client(graphs["plain"], tmp_path)), "data.store": str(tmp_path / "store")}]
    keys = {"privacy.unit": "client", "privacy.clip": 0.05, "rounds": 1, "model.name": "sgc", "train.lr": 0.5}
    noise, numbers = 1.2, np.zeros((2, WHOLE))

    servers = {
        (number, z): start({**keys, **of_data, "privacy.noise": z})
        for number, of_data in enumerate(data)
        for z in (0.0, noise)
    }

    def model(number: int, z: float, seed: int) -> np.ndarray:
        """After a round, in deviations of the noise on a sum."""
        server = servers[number, z]
        job = replace(server.job, seed=seed)
        again = Server(job, server.plan, LocalBackend().enter(job))
        again.round()
        return again.state.server["w"].numpy().astype(np.float64) * 6 / (noise * 0.05)

    for seed in range(2 * WHOLE):
        ends = [model(number, 0.0, seed) for number in (0, 1)]
        line, middle = ends[0] - ends[1], (ends[0] + ends[1]) / 2
        # One of both has the noise of a seed.
        released = model(seed % 2, noise, seed) - middle
        numbers[seed % 2, seed // 2] = released @ line / np.linalg.norm(line)
    epsilon = shown(*numbers)
    assert 0.3 < epsilon <= epsilon_after(noise, DELTA, 6, 6, 1)


def with_other_client(graph: Path, folder: Path) -> Path:
    """The graph with all data of client 0 replaced, as many nodes."""
    arrays, rng = {path.stem: np.load(path) for path in graph.glob("*.npy")}, np.random.default_rng(9)
    replaced = arrays["assignment"] == 0
    arrays["x"][replaced] = -3 * arrays["x"][replaced]
    arrays["y"][replaced] = rng.integers(3, size=int(replaced.sum()))
    inside = replaced[arrays["edge_index"]].any(0)
    arrays["edge_index"] = arrays["edge_index"][:, ~inside]
    return write_arrays(folder / "graph", **arrays)
