"""The time of a run that a dry run expects: start and preparing beside the rounds, as a user reads it."""

import re
from collections.abc import Callable
from pathlib import Path

import pytest
from support.small_runs import small_run

from shoal.engine.config.config import Config, config_from, load_config
from shoal.engine.runs import expected_time
from shoal.engine.runs.dry_run import expected, show_plan
from shoal.engine.runs.expected_time import ExpectedTime, loading_time, message_time, preparing_time, start_time
from shoal.engine.runs.plan import RunPlan
from shoal.engine.screen.tables import console


def config_of(tmp_path: Path, **engine: object) -> Config:
    return config_from({**small_run(tmp_path, rounds=40), "engine": engine})


def test_words_name_every_part_that_takes_time() -> None:
    assert ExpectedTime(21.4, 3.25, 0.7, 0.2, 0.84).in_words() == (
        "about 26 s: start 21 s, preparing 3.2 s, rounds 1.7 s (training 0.7 s, evaluation 0.2 s, messages 0.84 s) "
        "without the method's own work"
    )
    ready = ExpectedTime(5, 0, 100, 0, 0.5).in_words()
    assert ready.startswith("about 106 s: start 5 s, rounds 100 s (training 100 s, messages 0.5 s) without")


def test_start_counts_ray_and_what_its_processes_load(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(expected_time, "machine_cores", lambda: 2)
    assert start_time(0, 4.0) == 4.0
    # Three processes on two cores, after the command and Ray; more cores than processes help no more.
    assert start_time(2, 4.0) == 4 + 5 + 6
    monkeypatch.setattr(expected_time, "machine_cores", lambda: 8)
    assert start_time(2, 4.0) == 4 + 5 + 4
    assert 0 < loading_time() <= 60


def test_messages_and_preparing_grow_with_visits_and_edges(tmp_path: Path) -> None:
    local, on_ray = (config_of(tmp_path, backend=backend) for backend in ("local", "ray"))
    assert message_time(local, 50) == pytest.approx(40 * 50 * 0.0003)
    assert message_time(on_ray, 50) == pytest.approx(40 * (0.025 + 50 * 0.0003))
    assert preparing_time(3_000_000, 2.0) == pytest.approx(6.0)


def said_of(config: Path) -> str:
    """What a dry run says, on one line."""
    with console.capture() as captured:
        show_plan(load_config(config))
    return " ".join(captured.get().replace("│", " ").split())


def test_a_dry_run_counts_start_and_preparing(tiny: Path, shoal: Callable[..., None]) -> None:
    said = said_of(tiny)
    whole, start, preparing, rounds = map(
        float, re.search(r"about (\S+) s: start (\S+) s, preparing (\S+) s, rounds (\S+) s \(training ", said).groups()
    )
    assert whole == pytest.approx(start + preparing + rounds, rel=0.1)
    assert preparing >= 1
    shoal("prepare", tiny)
    said = said_of(tiny)
    assert "preparing" not in said
    assert re.search(r"about \S+ s: start \S+ s, rounds \S+ s \(training \S+ s, evaluation \S+ s, messages ", said)


def test_a_sweep_counts_rounds_alone(tiny: Path) -> None:
    plan = RunPlan.of(config_from({**small_run(tiny.parent, rounds=40), "engine": {"backend": "local"}}))
    times = expected(plan, load=1000.0).time
    assert times.start == 1000
    assert times.rounds == times.training + times.evaluation + times.messages < 100
