"""Rounds that some clients do not finish: schedules worked by hand, and what a longer run does."""

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from support.errors import refused
from support.fixtures import Start
from support.needs import needs
from support.small_runs import small_run

import shoal
from shoal.algorithms.rng import key
from shoal.clock.report import Asked, clocked
from shoal.engine.config.config import Config, config_from
from shoal.engine.config.round_sections import ParticipationOptions
from shoal.engine.records.metrics import read_metrics
from shoal.engine.records.run_folder import read_summary
from shoal.engine.rounds.sampling import Schedule, draw_cohort
from shoal.engine.rounds.server import Server
from shoal.engine.runs.plan import RunPlan
from shoal.engine.runs.run import run
from shoal.engine.schedules.availability.attendance import PartialAttendance
from shoal.engine.schedules.participation import Participation
from shoal.engine.sections.sections import SECTIONS
from shoal.engine.simulation.schedule import Fleet
from shoal.pages.report import report

DEVICES = {"kind": "phones", "network": "consumer"}
CLOCK = {f"devices.{name}": value for name, value in DEVICES.items()}
SELECTS = any(section.selects for section in SECTIONS)


def fleet(seconds: list[float], size: int) -> Fleet:
    """Devices that compute in no time, and links on which a model of `size` bytes takes a client so long each way."""
    ones, rate = np.ones(len(seconds)), 2 * size / np.array(seconds)
    return Fleet(
        np.zeros(len(seconds), int), 1e30 * ones, 1e30 * ones, ones, ones, ones, rate, rate, 0 * ones, ones, 1e30, 1e30
    )


def participation(server: Server, seconds: list[float], absent: tuple[int, ...] = (), **keys: Any) -> Participation:
    """Of the six clients of a server, whose rounds take so many seconds of messages."""
    store, job = server.job.open_store(), server.job
    made = fleet(seconds, 4 * len(server.state.server["w"]))
    options = ParticipationOptions(**keys)
    models = job.build_models(store, server.algorithm)["model"]
    plan = replace(server.plan, participation=options, absent=absent)
    return Participation(None, partial(PartialAttendance, options, made), plan, job, store, server.algorithm, models)


SGC = {"model.name": "sgc", "propagation.hops": 0}
# Of the six clients, each way half.
TAKES = [3.0, 1.0, 6.0, 2.0, 5.0, 4.0]


def test_clients_after_the_deadline_are_late(start: Start) -> None:
    made = participation(start(SGC), TAKES, deadline=3.5)
    drawn = made.draw(1, {})
    assert drawn.cohort == [0, 1, 3]
    assert drawn.numbers == {"online": 6, "drawn": 6, "dropped": 0, "late": 3, "surplus": 0, "seconds": 3.5}
    drawn = participation(start(SGC), TAKES, deadline=6.5).draw(1, {})
    assert drawn.cohort == [0, 1, 2, 3, 4, 5]
    assert drawn.numbers["seconds"] == pytest.approx(6)


def test_first_of_the_drawn_count(start: Start) -> None:
    server = start(SGC)
    made = participation(server, TAKES, count=2, over_selection=1.7)
    for number in range(1, 6):
        rng = np.random.default_rng(key(server.job.seed, number, "cohort"))
        drawn = sorted(rng.choice(6, 4, replace=False).tolist(), key=TAKES.__getitem__)
        found = made.draw(number, {})
        assert found.cohort == sorted(drawn[:2])
        assert found.numbers["seconds"] == pytest.approx(TAKES[drawn[1]])
        assert (found.numbers["drawn"], found.numbers["surplus"]) == (4, 2)


def test_those_that_drop_out_are_waited_for_until_the_deadline(start: Start) -> None:
    server = start(SGC)
    for number in range(1, 9):
        out = np.random.default_rng(key(server.job.seed, number, "dropout")).random(6) < 0.4
        stay = np.flatnonzero(~out).tolist()
        found = participation(server, TAKES, dropout=0.4).draw(number, {})
        assert (found.cohort, found.numbers["dropped"]) == (stay, out.sum())
        assert found.numbers["seconds"] == pytest.approx(max(TAKES[i] for i in stay))
        found = participation(server, TAKES, dropout=0.4, deadline=9.0).draw(number, {})
        assert found.numbers["seconds"] == pytest.approx(9.0 if out.any() else 6.0)


def test_newcomers_are_never_drawn_and_those_left_out_are_drawn_in_vain(start: Start) -> None:
    server = start(SGC)
    keys = {"absent": (1, 4), "count": 3, "over_selection": 1.5, "deadline": 5.5}
    members, left_out = (participation(server, TAKES, **keys, without=without) for without in ((), (3,)))
    seen = set()
    for number in range(1, 30):
        drawn = members.draw(number, {})
        assert set(drawn.cohort) <= {0, 3, 5}
        # Client 2 takes six seconds.
        assert [drawn.numbers[name] for name in ("online", "drawn", "late")] == [4, 4, 1]
        alone = left_out.draw(number, {})
        assert (alone.cohort, alone.numbers) == ([i for i in drawn.cohort if i != 3], drawn.numbers)
        seen.update(drawn.cohort)
    assert seen == {0, 3, 5}


def test_rates_of_dropouts_are_those_asked_for(start: Start) -> None:
    made = participation(start(SGC), TAKES, dropout=0.3)
    dropped = sum(made.draw(number, {}).numbers["dropped"] for number in range(1, 401))
    assert dropped / 2400 == pytest.approx(0.3, abs=5 * (0.21 / 2400) ** 0.5)


def test_round_that_no_client_finishes_changes_nothing(start: Start) -> None:
    keys = {**SGC, "participation.count": 1, "participation.dropout": 0.8, "evaluation.every": 3}
    server, skipped = start(keys), 0
    for _ in range(9):
        before = server.state
        line = server.round()
        if not line["cohort"]:
            skipped += 1
            assert torch.equal(server.state.server["w"], before.server["w"])
            assert (line["participation"]["drawn"], line["participation"]["dropped"]) == (1, 1)
    assert 0 < skipped < 9


def test_what_cannot_be_is_refused(start: Start) -> None:
    with refused("participation.deadline", says="no client can meet 0.001 s: the fastest takes 0.0"):
        start({**SGC, **CLOCK, "participation.deadline": 0.001})
    with refused("devices.kind", says="the work of gcn here is not known"):
        start({**CLOCK, "model": {"name": "gcn", "head": "linear", "fanouts": [2, 2]}})
    with refused(Path("mine.csv").absolute(), says="no such file"):
        start({**SGC, **CLOCK, "devices.kind": "mine.csv"})


def test_default_draw_is_that_without_participation(start: Start) -> None:
    """Devices alone say how long rounds take, and change no number of them."""
    plain, timed = (start({**SGC, "participation.count": 4, **more}) for more in ({}, CLOCK))
    for number in (1, 2, 3):
        lines = [server.round() for server in (plain, timed)]
        assert lines[0]["cohort"] == lines[1]["cohort"] == draw_cohort(6, plain.plan.participation, 0, number)
        assert "participation" not in lines[0]
        assert lines[1]["participation"]["seconds"] > 0
    assert torch.equal(plain.state.server["w"], timed.state.server["w"])


def small(folder: Path, **changes: Any) -> Config:
    part = {"count": 3, "over_selection": 1.3, "dropout": 0.1, "availability": "periodic"}
    changes |= {"devices": DEVICES}
    return config_from(small_run(folder, participation={**part, **changes.pop("participation", {})}, **changes))


@pytest.mark.parametrize("part", [{}, *[{"selection": "power_of_choice", "count": 2}] * SELECTS])
def test_longer_run_goes_on_with_the_same_rounds(tmp_path: Path, part: dict[str, Any]) -> None:
    run(small(tmp_path / "a", rounds=3, participation=part))
    longer = run(small(tmp_path / "a", rounds=6, participation=part), resume=True)
    whole = run(small(tmp_path / "b", rounds=6, participation=part))
    for one, other in zip(read_metrics(longer), read_metrics(whole), strict=True):
        assert [one[name] for name in ("cohort", "participation", "loss")] == [
            other[name] for name in ("cohort", "participation", "loss")
        ]


@needs("clock")
def test_seconds_are_those_of_the_clock(tmp_path: Path) -> None:
    """Without who is late, drops out or is surplus, both have the same messages but for a weight of four bytes."""
    keys = {"participation": {"count": 3}, "devices": DEVICES, "evaluation": {"every": 2}}
    folder = shoal.run(small_run(tmp_path, rounds=4, **keys)).path
    lines = read_metrics(folder)
    (((timed,),),) = [clocked([folder], Asked.of("phones", "consumer", None, None, 0)).runs]
    for line, seconds in zip(lines, timed.clock.seconds, strict=True):
        assert line["participation"]["seconds"] + line["seconds"]["aggregate"] == pytest.approx(seconds, rel=1e-4)


def test_who_was_missing_stands_in_summary_and_page(tmp_path: Path) -> None:
    folder = run(small(tmp_path, rounds=5, participation={"dropout": 0.4}))
    lines = read_metrics(folder)
    total = {name: sum(line["participation"][name] for line in lines) for name in lines[0]["participation"]}
    assert read_summary(folder)["participation"] == total
    assert total["dropped"] + total["surplus"] > 0
    page = report([folder], None, kinds=("svg",)).read_text()
    assert f"{total['drawn']} times a client, of {total['online']} online; {total['dropped']} dropped out" in page


def test_plan_of_a_centralized_method_is_plain(tmp_path: Path) -> None:
    plain = small_run(tmp_path, algorithm={"name": "global"}, propagation={"hops": 0})
    assert RunPlan.of(config_from(plain)).rounds.schedule == Schedule.of
