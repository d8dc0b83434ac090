"""Steps of FedBuff and FedAsync against the papers' formulas and synchronous rounds; the same bits anywhere."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from support.errors import refused
from support.fixtures import Keys, Start
from support.plain_fedavg import sgd_step
from support.same_bits import assert_same_runs, assert_same_scores, assert_same_trees
from support.user_graph import write_arrays

from shoal.algorithms.base import Ask, Context, Requests, Tree
from shoal.algorithms.methods.fedavg import FedAvg
from shoal.algorithms.protocol import Mix, Reduce
from shoal.engine.config.round_sections import ParticipationOptions, ScheduleOptions
from shoal.engine.rounds.state import FederationState
from shoal.engine.schedules.asynchronous.asynchronous import require_enough

LR = 0.5
# Softmax regression on the features, by one step of plain SGD a visit.
PLAIN = {"model.name": "sgc", "propagation.hops": 0, "train.optimizer": "sgd", "train.lr": LR, "train.epochs": 1}
PLAIN |= {"train.dropout": 0.0, "train.weight_decay": 0.0, "algorithm.weight": "train", "rounds": 12}
FEDBUFF = {"schedule.name": "fedbuff", "schedule.buffer": 2, "schedule.concurrency": 4}
TIERS = {"schedule.name": "tiers", "schedule.tiers": 3, "participation.ratio": 0.5}
FEDASYNC = {"schedule.name": "fedasync", "schedule.concurrency": 4, "schedule.mixing": 0.7}
WEIGHTS: dict[str, Callable[[int], float]] = {
    "constant": lambda s: 1.0,
    "polynomial": lambda s: (s + 1) ** -0.8,
    "hinge": lambda s: 1.0 if s <= 1 else 1 / (0.8 * (s - 1) + 1),
}


@pytest.mark.parametrize("name", ["fedbuff", "fedasync"])
@pytest.mark.parametrize("staleness", list(WEIGHTS))
def test_steps_are_those_of_the_papers(start: Start, name: str, staleness: str) -> None:
    keys = {**PLAIN, **(FEDBUFF if name == "fedbuff" else FEDASYNC), "schedule.staleness": staleness}
    keys |= {"schedule.a": 0.8} if staleness != "constant" else {}
    keys |= {"schedule.b": 1} if staleness == "hinge" else {}
    server = start(keys)
    models, stale, before = [server.state.server["w"].numpy().copy()], 0, 0.0
    for number in range(1, 13):
        line = server.round()
        w, changes, sizes = models[-1], [], []
        for client, s in zip(line["cohort"], line["staleness"]["of_clients"]):
            begun = models[number - 1 - s]
            after, size = sgd_step(server, client, begun, LR)
            if size:
                scale = WEIGHTS[staleness](s)
                changes.append(scale * (after - begun) if name == "fedbuff" else scale * 0.7 * (after - w))
                sizes.append(size)
            stale += s > 1
        models.append((w + np.average(changes, axis=0, weights=sizes) if changes else w).astype(np.float32))
        np.testing.assert_allclose(server.state.server["w"], models[-1], rtol=0, atol=5e-6)
        assert line["staleness"]["max"] == max(line["staleness"]["of_clients"])
        assert line["staleness"]["mean"] == pytest.approx(np.mean(line["staleness"]["of_clients"]))
        assert line["simulated"] >= before
        before = line["simulated"]
    assert stale


@pytest.mark.parametrize("keys", [{}, {"schedule.tiers": 2}, {"schedule.tiers": 6}, {"participation.ratio": 1.0}])
def test_steps_of_tiers_are_those_of_fedat(start: Start, keys: dict[str, Any]) -> None:
    server = start({**PLAIN, **TIERS, **keys, "rounds": 20})
    models, tiers = [server.state.server["w"].numpy().copy()], dict[int, Any]()
    updates, stale, members = [0] * {**TIERS, **keys}["schedule.tiers"], 0, dict[int, set[int]]()
    for number in range(1, 21):
        line = server.round()
        (s,) = set(line["staleness"]["of_clients"])
        found = [sgd_step(server, client, models[number - 1 - s], LR) for client in line["cohort"]]
        tier, stale = line["tier"] - 1, stale + (s > 0)
        updates[tier] += 1
        members.setdefault(tier, set()).update(line["cohort"])
        if sum(size for _, size in found):
            tiers[tier] = np.average([after for after, size in found], axis=0, weights=[size for _, size in found])
            ranked = sorted(range(len(updates)), key=lambda m: (-updates[m], m))
            terms = [updates[ranked[-1 - rank]] * tiers.get(m, models[0]) for rank, m in enumerate(ranked)]
            models.append((sum(terms) / number).astype(np.float32))
        else:
            models.append(models[-1])
        np.testing.assert_allclose(server.state.server["w"], models[-1], rtol=0, atol=5e-6)
    assert stale
    assert sum(map(len, members.values())) == len(set().union(*members.values()))
    # The fastest tier has the most steps.
    assert updates[0] == max(updates) > 20 // len(updates)


@pytest.fixture(scope="module")
def equal(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Keys of six clients with as much work, on devices of one class."""
    folder, rng = tmp_path_factory.mktemp("equal"), np.random.default_rng(3)
    y = np.tile([0, 1, 2, 0, 1], 24)
    path = write_arrays(
        folder / "graph", edge_index=rng.integers(20, size=(2, 200)) + 20 * rng.integers(6, size=200),
        x=(np.eye(3, 5)[y] + rng.standard_normal((120, 5))).astype(np.float32), y=y,
        split=np.tile(np.repeat([1, 2, 3], [10, 5, 5]), 6).astype(np.int8), assignment=np.repeat(np.arange(6), 20),
    )  # fmt: skip
    (folder / "equal.csv").write_text("class,share,gflops,gb_per_s,watts\none,1,10,10,1\n")
    return {
        "data.path": str(path), "data.store": str(folder / "store"), "devices.kind": str(folder / "equal.csv"),
    }  # fmt: skip


@pytest.mark.exhaustive(3)
@pytest.mark.parametrize("name", ["fedbuff", "tiers"])
@pytest.mark.parametrize("count", [3, 6])
@pytest.mark.parametrize(
    "more",
    [
        {"evaluation.every": 2},
        {"algorithm.name": "fedopt", "train.opt_state": "keep", "evaluation.clients": 4},
        {
            "algorithm.name": "fedprox",
            "train.dropout": 0.5,
            "engine.trainer": "autograd",
            "evaluation.clients": "cohort",
        },
    ],
)
def test_one_cohort_at_a_time_is_synchronous_to_the_bit(
    start: Start, equal: Keys, name: str, count: int, more: Keys
) -> None:
    """FedBuff with clients of one speed; one tier with any."""
    keys = {**equal, **more}
    devices = keys.pop("devices.kind")
    buff = {"schedule.name": "fedbuff", "schedule.buffer": count, "schedule.concurrency": count}
    buff |= {"devices.kind": devices, "devices.network": "none"}
    one = {"schedule.name": "tiers", "schedule.tiers": 1, "participation.count": count}
    server, plain = (
        start({**keys, **(buff if name == "fedbuff" else one)}),
        start({**keys, "participation.count": count}),
    )
    for _ in range(6):
        line, its = server.round(), plain.round()
        assert line["staleness"]["max"] == 0
        for name in its.keys() - {"seconds"}:
            assert line[name] == its[name], name
        assert_same_runs(server, plain)
        assert_same_scores(server, plain)
        assert_same_trees(server.state.downloads, plain.state.downloads)
        assert (server.state.newest, server.state.touched) == (plain.state.newest, plain.state.touched)


HARD = {"train.opt_state": "keep", "train.dropout": 0.5, "evaluation.every": 3, "rounds": 10}


@pytest.mark.parametrize("keys", [FEDASYNC, {**FEDBUFF, "algorithm.name": "fedopt"}, TIERS])
def test_same_bits_with_more_rounds(start: Start, keys: dict[str, Any]) -> None:
    keys = {**HARD, **keys}
    here, shorter = start(keys), start({**keys, "rounds": 4, "evaluation.every": 2})
    lines = [(here.round(), shorter.round())[0] for _ in range(4)]
    assert max(line["staleness"]["max"] for line in lines) > 0
    tensors, plain = shorter.state.to_tensors()
    # Checkpoints of before the tiers were one of `extras` have these names.
    tiers = {f"tier/{tier}/w" for tier in range(3)} if keys["schedule.name"] == "tiers" else set()
    assert {name for name in tensors if name.split("/")[0] not in ("server", "client", "model", "scores")} == tiers
    longer = start(keys, state=FederationState.from_tensors(tensors, plain))
    for _ in range(6):
        line, found = here.round(), longer.round()
        for name in ("cohort", "loss", "client_bytes", "staleness", "simulated"):
            assert found[name] == line[name]
    assert torch.equal(here.state.server["w"], longer.state.server["w"])
    assert_same_scores(here, longer)


def test_clients_train_once_and_many_in_a_call(start: Start) -> None:
    """Each visit is made once, and the first step's call has all who began."""
    calls: list[list[tuple[int, int]]] = []

    class Noted:
        def __init__(self, pool: Any) -> None:
            self._pool = pool

        def __getattr__(self, name: str) -> Any:
            return getattr(self._pool, name)

        def run_cells(self, cells: Any, shared: Tree) -> Any:
            trained = [(i, cell.round) for cell in cells if cell.train for i in cell.ids]
            calls.extend([trained] if trained else [])
            return self._pool.run_cells(cells, shared)

    server = start({**FEDASYNC, "rounds": 20}, pool=Noted)
    visits = []
    for _ in range(20):
        line = server.round()
        visits += [(i, line["round"] - s) for i, s in zip(line["cohort"], line["staleness"]["of_clients"])]
    made = [visit for call in calls for visit in call]
    assert sorted(made) == sorted(visits)
    assert len(calls[0]) == 4
    assert len(calls) < 12


@dataclass(frozen=True)
class TwoPhases(FedAvg):
    """FedAvg that asks its clients twice."""

    def round(self, server: Tree, ctx: Context, cohort: Any) -> Requests:
        for _ in range(2):
            got = yield Ask("train", {"w": Reduce.MEAN}, shared=self.global_model(server))
        server["w"] = got["w"]


@dataclass(frozen=True)
class Mixed(FedAvg):
    """FedAvg by a matrix."""

    def round(self, server: Tree, ctx: Context, cohort: Any) -> Requests:
        got = yield Ask("train", {"w": Reduce.MIX}, shared=self.global_model(server))
        server["w"] = yield Mix("w", torch.ones(1, len(got.ids)))


@dataclass(frozen=True)
class NoModel(FedAvg):
    """FedAvg whose server gives no model."""

    def global_model(self, server: Tree) -> Tree:
        return {}

    def round(self, server: Tree, ctx: Context, cohort: Any) -> Requests:
        got = yield Ask("train", {"w": Reduce.MEAN}, shared={"w": server["w"]})
        server["w"] = got["w"]


@pytest.mark.parametrize("method", ["TwoPhases", "Mixed"])
def test_method_of_another_form_is_refused(start: Start, method: str) -> None:
    server = start({**FEDBUFF, "algorithm.name": f"{__file__}:{method}"})
    with refused("schedule.name", says=f"once a round, unlike {method}"):
        server.round()


def test_model_that_the_state_lacks_is_named(start: Start) -> None:
    server = start({**FEDASYNC, "algorithm.name": f"{__file__}:NoModel", "rounds": 12})
    with refused("schedule.name", says="NoModel gives no global_model"):
        for _ in range(12):
            server.round()


def test_model_of_unknown_work_is_refused(start: Start) -> None:
    with refused("schedule.name", says="the work of gcn here is not known"):
        start({**FEDBUFF, "model.name": "gcn", "model.fanouts": [3, 2]})


def test_steps_of_more_clients_than_there_are_are_refused() -> None:
    with refused("schedule.tiers", says="11 of 10 clients; choose from 1 to 10"):
        require_enough(ScheduleOptions(name="tiers", tiers=11), 10, ParticipationOptions())
    with refused(
        "participation.count", says="4 clients of each tier, but one has 3; take fewer, or fewer schedule.tiers"
    ):
        require_enough(ScheduleOptions(name="tiers", tiers=3), 10, ParticipationOptions(count=4))
    for keys in ({"concurrency": 11}, {"name": "fedbuff", "buffer": 11}):
        (name,) = keys.keys() - {"name"}
        with refused(f"schedule.{name}", says="11 of 10 clients; choose from 1 to 10"):
            require_enough(ScheduleOptions(**{"name": "fedasync", **keys}), 10, ParticipationOptions())  # type: ignore[arg-type]
