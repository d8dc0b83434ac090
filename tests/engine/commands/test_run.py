"""A run as a user starts, stops and resumes it."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import yaml
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from engine.commands.run import run
from engine.records.run_folder import read_metrics, read_summary
from engine.settings.config import load_config
from storage.errors import ShoalError


@pytest.fixture
def config(tmp_path: Path) -> Path:
    path = tmp_path / "config.yaml"
    plain = {
        "name": "driven",
        "rounds": 6,
        "data": {"dataset": "sbm", "root": str(tmp_path), "options": {"nodes": 300, "features": 8, "classes": 3}},
        "partition": {"clients": 5},
        "propagation": {"hops": 1},
        "model": {"name": "sgc"},
        "algorithm": {"name": "fedavg"},
        "evaluation": {"every": 4},
        "engine": {"backend": "local"},
        "run": {"root": str(tmp_path / "runs"), "checkpoint_every": 2, "keep": 2},
    }
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


def test_keys_that_change_no_numbers_share_a_folder(config: Path) -> None:
    folder = run(load_config(config))
    assert run(load_config(config, ["engine.hosts=7", "run.keep=5", "engine.retries=1"])) == folder
    assert run(load_config(config, ["train.lr=0.02"])) != folder


def test_an_edited_method_is_another_run(config: Path, tmp_path: Path) -> None:
    own = tmp_path / "own.py"
    text = "from dataclasses import dataclass\nfrom algorithms.methods.local import Local\n"
    own.write_text(text + "@dataclass(frozen=True)\nclass Own(Local):\n    pass\n")
    choice = ["rounds=1", f"algorithm={own}:Own"]
    folder = run(load_config(config, choice))
    assert run(load_config(config, choice)) == folder
    own.write_text(own.read_text() + "# edited\n")
    assert run(load_config(config, choice)) != folder


def test_fresh_starts_over(config: Path) -> None:
    folder = run(load_config(config))
    numbers = [line["loss"] for line in read_metrics(folder)]
    assert run(load_config(config), fresh=True) == folder
    assert [line["loss"] for line in read_metrics(folder)] == numbers


def test_global_is_refused_above_the_memory_limit(config: Path) -> None:
    with pytest.raises(ShoalError, match=r"engine\.memory_limit"):
        run(load_config(config, ["algorithm.name=global", "engine.memory_limit=10KiB"]))


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_run_ends_its_round_and_resumes(config: Path, number: signal.Signals) -> None:
    many = ["rounds=200", "run.tensorboard=false"]
    command = [sys.executable, "-m", "engine", "run", str(config), *many]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=os.environ)
    deadline = time.monotonic() + 60
    while not list(config.parent.glob("runs/*/metrics.jsonl")):
        assert time.monotonic() < deadline
        assert process.poll() is None
        time.sleep(0.01)
    process.send_signal(number)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "--resume" in errors
    (folder,) = config.parent.glob("runs/*")
    stopped = len(read_metrics(folder))
    assert 0 < stopped < 200
    assert (folder / "checkpoints" / f"round-{stopped:06d}").is_dir()
    run(load_config(folder, many), resume=True)
    assert [line["round"] for line in read_metrics(folder)] == list(range(1, 201))
    record = json.loads((folder / "summary.json").read_text())
    assert record["rounds"] == 200


def test_a_run_killed_before_its_first_round_is_resumed_from_the_start(config: Path) -> None:
    folder = run(load_config(config))
    expected = [line["loss"] for line in read_metrics(folder)]
    for name in ("metrics.jsonl", "summary.json"):
        (folder / name).unlink()
    shutil.rmtree(folder / "checkpoints")
    assert run(load_config(config), resume=True) == folder
    assert [line["loss"] for line in read_metrics(folder)] == expected


def test_a_run_of_another_config_is_not_resumed(config: Path) -> None:
    folder = run(load_config(config))
    (folder / "summary.json").unlink()
    with pytest.raises(
        ShoalError, match=rf"{folder.name}: the unfinished run differs from this config in seed \(0 -> 1\)"
    ):
        run(load_config(config, ["seed=1"]), resume=True)
