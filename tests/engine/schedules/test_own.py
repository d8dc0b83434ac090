"""Schedules of the user's: that of the guide by hand, the same bits after a resume, and what is refused."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from support.errors import refused
from support.fixtures import Start
from support.needs import needs
from support.plain_fedavg import sgd_step
from support.same_bits import assert_same_trees
from support.small_runs import small_run

import shoal
from shoal.algorithms.rng import key
from shoal.engine.config.config import parse_config
from shoal.engine.rounds.state import FederationState
from shoal.engine.runs.plan import RunPlan

LR = 0.5
# Softmax regression on the features, by one step of plain SGD a visit.
PLAIN = {"model.name": "sgc", "propagation.hops": 0, "train.optimizer": "sgd", "train.lr": LR, "train.epochs": 1}
PLAIN |= {"train.dropout": 0.0, "train.weight_decay": 0.0, "algorithm.weight": "train", "rounds": 8}
ALL = """
import shoal


class All(shoal.Schedule):
    def draw(self, number, known):
        return shoal.Drawn(range(self.clients))
"""
HALF = """
from dataclasses import replace

import shoal


class Half(shoal.Stage):
    def at_client(self, upload, at):
        entries = {name: (at.received[name] + t) / 2 for name, t in upload.entries.items()}
        return replace(upload, entries=entries)
"""
# Every draw leaves out who was drawn last.
TURNS = """
import numpy as np
import torch

import shoal
from shoal.algorithms.rng import key


class Turns(shoal.Schedule):
    def draw(self, number, known):
        free = np.delete(np.arange(self.clients), known["last"].numpy() if known else [])
        rng = np.random.default_rng(key(self.seed, number, "turns"))
        drawn = rng.choice(free, self.count, replace=False)
        return shoal.Drawn(drawn.tolist(), {"free": len(free)}, {"last": torch.from_numpy(drawn)})

    def columns(self, number, cohort):
        return {"odd": number % 2}
"""


@pytest.fixture
def paces(tmp_path: Path) -> str:
    """The schedule of the guide."""
    text = (Path(__file__).parents[3] / "docs" / "extending.md").read_text()
    source = text.split("## A schedule")[1].split("```python\n")[1].split("```")[0]
    assert len(source.splitlines()) <= 30
    (tmp_path / "paces.py").write_text(source)
    return f"{tmp_path / 'paces.py'}:Paces"


def test_schedule_of_the_guide_is_as_worked_by_hand(start: Start, paces: str) -> None:
    server = start({**PLAIN, "schedule": paces})
    models = [server.state.server["w"].numpy().copy()]
    for number in range(1, 9):
        line = server.round()
        late = {i: 1 + i % 3 for i in range(6) if number % (1 + i % 3) == 0}
        assert line["cohort"] == list(late)
        assert line["staleness"]["of_clients"] == [pace - 1 for pace in late.values()]
        rows, sizes = [], []
        for client, pace in late.items():
            base = models[number - pace]
            after, size = sgd_step(server, client, base, LR)
            rows.append(models[-1] + (after - base) / pace)
            sizes.append(size)
        models.append(np.average(rows, axis=0, weights=sizes).astype(np.float32))
        np.testing.assert_allclose(server.state.server["w"], models[-1], rtol=0, atol=5e-6)


def test_same_bits_after_a_resume_and_with_more_rounds(start: Start, paces: str) -> None:
    keys = {**PLAIN, "schedule": paces, "train.opt_state": "keep", "train.dropout": 0.5, "evaluation.every": 3}
    here, shorter = start(keys), start({**keys, "rounds": 4})
    for _ in range(4):
        here.round(), shorter.round()
    again = start(keys, state=FederationState.from_tensors(*here.state.to_tensors()))
    longer = start(keys, state=FederationState.from_tensors(*shorter.state.to_tensors()))
    for _ in range(4):
        line = here.round()
        for server in (again, longer):
            found = server.round()
            assert [found[name] for name in ("cohort", "loss")] == [line[name] for name in ("cohort", "loss")]
    for server in (again, longer):
        assert torch.equal(here.state.server["w"], server.state.server["w"])
    assert_same_trees({0: here.state.to_tensors()[0]}, {0: again.state.to_tensors()[0]})


def test_draws_that_keep_something_are_for_any_method(start: Start, tmp_path: Path) -> None:
    (tmp_path / "own.py").write_text(TURNS)
    keys = {"schedule": f"{tmp_path / 'own.py'}:Turns", "participation.ratio": 0.5, "algorithm.name": "scaffold"}
    server, last = start({**keys, "rounds": 6}), list[int]()
    for number in range(1, 7):
        if number == 4:
            tensors, plain = server.state.to_tensors()
            assert "known/last" in tensors
            server = start({**keys, "rounds": 6}, state=FederationState.from_tensors(tensors, plain))
        line = server.round()
        rng = np.random.default_rng(key(server.job.seed, number, "turns"))
        drawn = rng.choice(np.delete(np.arange(6), last), 3, replace=False)
        last = drawn.tolist()
        assert line["cohort"] == sorted(last)
        assert (line["participation"], line["schedule"]) == ({"free": 6 if number == 1 else 3}, {"odd": number % 2})


def test_run_is_known_by_the_text_of_its_schedule_and_goes_on_from_its_folder(tmp_path: Path) -> None:
    def folder(text: str) -> Path:
        (tmp_path / "mine.py").write_text(text)
        return RunPlan.of(parse_config(small_run(tmp_path, schedule=f"{tmp_path / 'mine.py'}:Turns"), "x")).folder

    first = folder(TURNS)
    assert folder(TURNS + "\nMORE = 1\n") != first == folder(TURNS)
    own = {"schedule": f"{tmp_path / 'mine.py'}:Turns", "participation": {"ratio": 0.5}}
    run = shoal.run(small_run(tmp_path, **own))
    (tmp_path / "mine.py").unlink()
    assert shoal.run(shoal.load_config(run.path, rounds=5), resume=True).finished


@needs("clock")
def test_late_schedule_has_no_clock(tmp_path: Path, paces: str) -> None:
    """It says in which rounds clients begin, and nothing of seconds; one of whole rounds is clocked as any other."""
    from shoal.clock.report import Asked, ClockedRun

    (tmp_path / "mine.py").write_text(TURNS)
    asked = Asked.of("phones", "consumer", None, None, 0)
    late, turns = (
        shoal.run(small_run(tmp_path, name=name, schedule=schedule, participation={"ratio": 0.5})).path
        for name, schedule in (("late", paces), ("turns", f"{tmp_path / 'mine.py'}:Turns"))
    )
    with refused(late, "schedule.name", says="has no clock"):
        ClockedRun.of(late, asked)
    assert len(ClockedRun.of(turns, asked).clock.seconds) == 3


OWN = """
import shoal, torch
from dataclasses import replace


class Base(shoal.Schedule):
    def draw(self, number, known):
        return shoal.Drawn([0, 1])

class Late(Base):
    def starts(self, number):
        return {0: number - 1, 1: number - 1}

class NoSchedule:
    pass

class GivesList(Base):
    def draw(self, number, known):
        return [0, 1]

class Twice(Base):
    def draw(self, number, known):
        return shoal.Drawn([1, 1])

class Unknown(Base):
    def draw(self, number, known):
        return shoal.Drawn([6])

class Floats(Base):
    def draw(self, number, known):
        return shoal.Drawn([0.0])

class Another(Base):
    calls = 0
    def draw(self, number, known):
        self.calls += 1
        return shoal.Drawn([self.calls])

class Numbers(Base):
    def draw(self, number, known):
        return shoal.Drawn([0], {"x": float("nan")})

class State(Base):
    def draw(self, number, known):
        return shoal.Drawn([0], state={"x": [1]})

class Fails(Base):
    def draw(self, number, known):
        return 1 / 0

class Columns(Base):
    def columns(self, number, cohort):
        return {"x": torch.ones(1)}

class Others(Late):
    def starts(self, number):
        return {0: 0}

class Later(Late):
    def starts(self, number):
        return {0: number, 1: number - 1}

class Overlaps(Late):
    def starts(self, number):
        return {0: 0, 1: number - 1}

class NoUpload(Late):
    def counted(self, upload, base, newest, staleness):
        return upload.entries

class Shape(Late):
    def counted(self, upload, base, newest, staleness):
        return replace(upload, entries={"w": upload.entries["w"][:1]})

class Writes(Late):
    def counted(self, upload, base, newest, staleness):
        newest["w"] += 1
        return upload

class After(Late):
    def after(self, number, replies, newest, kept):
        return None
"""


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("NoSchedule", "does not derive from shoal.Schedule"),
        ("Missing", "has no class Missing"),
        ("GivesList", "draw gives a list, expected shoal.Drawn"),
        ("Twice", "draw(1) gives as cohort [1, 1], expected different clients from 0 to 5"),
        ("Unknown", "draw(1) gives as cohort [6]"),
        ("Floats", "draw(1) gives as cohort [0.0]"),
        ("Another", "gives other clients when it is called again"),
        ("Numbers", "the numbers of draw"),
        ("State", "the state that draw keeps 'x' is a list"),
        ("Fails", "ZeroDivisionError"),
        ("Columns", "the columns are no finite numbers"),
        ("Others", "starts(1) gives {0: 0}, expected a round for each client of [0, 1]"),
        ("Later", "gives round 1 to client 0, expected a round before 1"),
        ("Overlaps", "starts(2) gives round 0 to client 0, expected a round before 2, and none before 1"),
        ("NoUpload", "counted gives a dict, expected a shoal.Upload"),
        ("Shape", "expected tensors as of the upload"),
        ("Writes", "counted writes into a model of the server"),
        ("After", "after gives None, expected shoal.Replies"),
    ],
)
def test_wrong_schedule_is_refused(start: Start, tmp_path: Path, name: str, says: str) -> None:
    (tmp_path / "own.py").write_text(OWN)
    with refused(says=says):
        start({**PLAIN, "schedule": f"{tmp_path / 'own.py'}:{name}"}).round()


def test_what_would_not_be_read_is_refused(start: Start, paces: str) -> None:
    with refused("participation.dropout", says="is for schedule.name synchronous"):
        start({**PLAIN, "schedule": paces, "participation.dropout": 0.1})


# Smaller tensors are not compressed.
LARGE = {**PLAIN, "model.name": "mlp", "model.hidden": 64}
STAGES = [
    pytest.param({"communication.upload": "int8"}, marks=needs("compression")),
    {"stages": [{"name": "half.py:Half"}]},
]


@pytest.mark.parametrize("keys", STAGES)
def test_stages_act_on_the_cohorts_of_a_schedule_of_ones_own(
    start: Start, paces: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, keys: dict[str, Any]
) -> None:
    """The bits are those of the same cohorts drawn by Shoal; where uploads are of older models, stages are refused."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "half.py").write_text(HALF)
    (tmp_path / "all.py").write_text(ALL)
    plain, ours, own = (
        start({**LARGE, **more}) for more in ({}, keys, {**keys, "schedule": f"{tmp_path / 'all.py'}:All"})
    )
    for server in (plain, ours, own):
        for _ in range(3):
            server.round()
    assert_same_trees({0: ours.state.server}, {0: own.state.server})
    assert_same_trees(ours.state.clients, own.state.clients)
    assert not torch.equal(plain.state.server["w"], own.state.server["w"])
    (place,) = keys
    with refused(place.partition(".")[0], says="is for rounds whose uploads are of one model, not for starts of paces"):
        start({**PLAIN, "schedule": paces, **keys})


def test_late_uploads_are_of_methods_that_average_one_model(start: Start, paces: str) -> None:
    with refused("schedule.name", says="paces.py:Paces is for methods that average one model, once a round"):
        start({"schedule": paces, "algorithm.name": "fedproto"}).round()
