"""A run as a user starts, stops and resumes it."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from support.errors import refused as is_refused
from support.failing_method import failing
from support.small_runs import small_run
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from shoal.engine.config import run_identity
from shoal.engine.config.config import load_config, parse_config
from shoal.engine.config.config_text import SEAL, with_seal
from shoal.engine.records.metrics import METRICS, read_metrics
from shoal.engine.records.run_folder import SUMMARY, read_summary
from shoal.engine.runs.plan import plan_of
from shoal.engine.runs.run import run

Refused = Callable[..., str]


@pytest.fixture
def config(tmp_path: Path) -> Path:
    path = tmp_path / "config.yaml"
    plain = small_run(
        tmp_path,
        name="driven",
        rounds=6,
        partition={"clients": 5},
        evaluation={"every": 4},
        run={"tensorboard": True, "checkpoint_every": 2, "keep": 2},
    )
    path.write_text(yaml.safe_dump(plain))
    return path


def test_run_folder_holds_everything(config: Path) -> None:
    folder = run(load_config(config))
    lines = read_metrics(folder)
    assert [line["round"] for line in lines] == [1, 2, 3, 4, 5, 6]
    # The last round is evaluated although it is no multiple of four.
    assert [line["round"] for line in lines if "scopes" in line] == [4, 6]
    assert sorted(p.name for p in (folder / "checkpoints").iterdir()) == ["round-000004", "round-000006"]
    assert load_config(folder) == load_config(config)
    assert read_summary(folder)["bytes"]["up"] == sum(line["bytes_up"] for line in lines)
    assert all(line["scalars_up"] == line["bytes_up"] / 4 > 0 for line in lines)
    assert read_summary(folder)["synthetic"] is True
    events = EventAccumulator(str(folder / "tensorboard"))
    events.Reload()
    losses = [event.value for event in events.Scalars("loss")]
    assert losses == pytest.approx([line["loss"] for line in lines], rel=1e-6)
    before = {path: path.stat().st_mtime_ns for path in folder.rglob("*") if path.is_file()}
    assert run(load_config(config)) == folder
    assert before == {path: path.stat().st_mtime_ns for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize(
    ("keys", "size"),
    [
        ([], "auto"),
        (["engine.device=cuda"], "auto, in batches"),
        (["engine.device=cuda", "engine.trainer=autograd"], "auto"),
        (["engine.device=cuda", "engine.cell_size=7"], 7),
    ],
)
def test_cells_are_larger_where_they_are_trained_in_batches(config: Path, keys: list[str], size: int | str) -> None:
    assert plan_of(load_config(config, keys)).cell_size == size


def test_an_edited_method_is_another_run(config: Path, tmp_path: Path) -> None:
    own = tmp_path / "own.py"
    text = "from dataclasses import dataclass\nfrom shoal.algorithms.methods.local import Local\n"
    own.write_text(text + "@dataclass(frozen=True)\nclass Own(Local):\n    pass\n")
    choice = ["rounds=1", f"algorithm={own}:Own"]
    folder = run(load_config(config, choice))
    assert run(load_config(config, choice)) == folder
    own.write_text(own.read_text() + "# edited\n")
    assert run(load_config(config, choice)) != folder


def test_an_interrupted_run_ends_its_round_and_resumes(config: Path) -> None:
    many = ["rounds=100", "run.tensorboard=false"]
    command = [sys.executable, "-m", "shoal", "run", str(config), *many]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=os.environ)
    deadline = time.monotonic() + 60
    while not list(config.parent.glob("runs/*/metrics.jsonl")):
        assert time.monotonic() < deadline
        assert process.poll() is None
        time.sleep(0.01)
    process.send_signal(signal.SIGTERM)
    _, errors = process.communicate(timeout=120)
    assert process.returncode == 128 + signal.SIGTERM
    assert "--resume" in errors
    (folder,) = config.parent.glob("runs/*")
    stopped = len(read_metrics(folder))
    assert 0 < stopped < 100
    assert (folder / "checkpoints" / f"round-{stopped:06d}").is_dir()
    run(load_config(folder, many), resume=True)
    assert [line["round"] for line in read_metrics(folder)] == list(range(1, 101))
    record = json.loads((folder / "summary.json").read_text())
    assert record["rounds"] == 100


def test_a_run_killed_before_its_first_round_is_resumed_from_the_start(config: Path) -> None:
    folder = run(load_config(config))
    expected = [line["loss"] for line in read_metrics(folder)]
    for name in ("metrics.jsonl", "summary.json"):
        (folder / name).unlink()
    shutil.rmtree(folder / "checkpoints")
    assert run(load_config(config), resume=True) == folder
    assert [line["loss"] for line in read_metrics(folder)] == expected


@pytest.mark.parametrize("finished", [True, False])
def test_run_of_a_folder_with_other_defaults_is_refused(config: Path, finished: bool) -> None:
    folder = run(load_config(config))
    if not finished:
        (folder / SUMMARY).unlink()
    kept = (folder / "config.yaml").read_text().rpartition(SEAL)[0]
    (folder / "config.yaml").write_text(with_seal(kept.replace("lr: 0.01", "lr: 0.5")))
    with is_refused(folder, says="was run with other values of train.lr (0.5 -> 0.01)"):
        run(load_config(config), resume=not finished)
    assert run(load_config(config), fresh=True) == folder


def test_resume_of_a_run_with_other_numbers_is_refused(config: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = run(load_config(config))
    (folder / SUMMARY).unlink()
    monkeypatch.setattr(run_identity, "NUMBERS", run_identity.NUMBERS + 1)
    with is_refused(folder, says="the unfinished run was made by a version of Shoal with other numbers"):
        run(load_config(config), resume=True)
    assert run(load_config(config)) != folder


def test_missing_and_truncated_shard(tiny: Path, refused: Refused, shoal: Callable[..., None]) -> None:
    shoal("prepare", tiny)
    shard = tiny.parent / "store" / "clients" / "00002.arrow"
    os.truncate(shard, 1000)
    line = refused("run", tiny)
    assert "client 2" in line
    assert f"{shard}: 1000 bytes, the manifest says" in line
    shard.unlink()
    line = refused("run", tiny)
    assert str(shard) in line
    assert "missing; run `shoal prepare`" in line


def unfinished(tiny: Path) -> Path:
    """Makes a finished run look cut off after its first round."""
    (run,) = (tiny.parent / "runs").iterdir()
    (run / SUMMARY).unlink()
    (run / METRICS).write_text((run / METRICS).read_text().splitlines()[0] + "\n")
    return run


def test_resume_with_a_changed_config(tiny: Path, refused: Refused, shoal: Callable[..., None]) -> None:
    shoal("run", tiny)
    run = unfinished(tiny)
    line = refused("run", tiny, "train.lr=0.5", "--resume")
    assert str(run) in line
    assert "train.lr (0.01 -> 0.5)" in line
    line = refused("run", tiny)
    assert "--resume" in line
    assert "--fresh" in line
    shoal("run", tiny, "engine.retries=9", "--resume")


def run_failing(folder: Path, options: dict[str, Any], **changes: Any) -> Path:
    plain = small_run(
        folder, name="failing", algorithm={"name": failing(folder), **options}, **{"rounds": 2, **changes}
    )
    return run(parse_config(plain, "test"))


@pytest.mark.parametrize(
    ("kind", "message"),
    [("raises", "RuntimeError: no luck"), ("nan", "NaN or infinity in 'w'"), ("other", "gives no 'w'")],
)
def test_client_error_skips_the_client_or_ends_the_run(tmp_path: Path, kind: str, message: str) -> None:
    with is_refused(says=message):
        run_failing(tmp_path, {"kind": kind})
    folder = run_failing(tmp_path, {"kind": kind}, engine={"backend": "local", "on_client_error": "skip"}, seed=1)
    lines = read_metrics(folder)
    assert [line["cohort"] for line in lines] == [[0, 1, 3], [0, 1, 3]]
    assert all(message.split(":")[0] in line["failures"]["2"] for line in lines)
    assert "Traceback" in (folder / "run.log").read_text()
    assert np.isfinite(lines[-1]["loss"])
    assert read_summary(folder)["scopes"]["global"]["last"]["test"]["rows"] > 0


def test_rounds_before_a_failure_are_kept(tmp_path: Path) -> None:
    with is_refused(says="round 3, client 0"):
        run_failing(tmp_path, {"client": 0, "visits": 3}, rounds=5)
    (folder,) = (tmp_path / "runs").iterdir()
    assert [path.name for path in (folder / "checkpoints").iterdir()] == ["round-000002"]
