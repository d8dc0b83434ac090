"""SIGINT, SIGTERM and SIGHUP at random moments: the right status, no process left, and the same numbers afterwards."""

import os
import random
import signal
import subprocess
import sys
import time
import uuid
from pathlib import Path
from typing import Any

import psutil
import pytest
from support.small_runs import small_config

from shoal.engine.config.config import load_config
from shoal.engine.records.metrics import read_metrics
from shoal.engine.runs.run import run

MARK = "SHOAL_TEST_MARK"


def config(folder: Path, backend: str) -> Path:
    options = {"nodes": 400, "features": 16, "classes": 3}
    engine = {"engine": {"backend": backend, "hosts": 1}, "run": {"checkpoint_every": 5}}
    data = {"store": str(folder / "store"), "options": options}
    changes = {"data": data, "partition": {"clients": 8}, "train": {"epochs": 5}}
    return Path(small_config(folder, rounds=30, **changes, **engine))


def numbers(folder: Path) -> list[Any]:
    return [(line["round"], line["loss"], line["scopes"]) for line in read_metrics(folder)]


def listens(process: subprocess.Popen[bytes]) -> bool:
    """Whether the process handles signals by now; before, it is Python that starts, and not yet Shoal."""
    status = Path(f"/proc/{process.pid}/status").read_text()
    caught = int(next(line for line in status.splitlines() if line.startswith("SigCgt")).split()[1], 16)
    return bool(caught >> (signal.SIGTERM - 1) & 1)


def left_over(mark: str) -> list[str]:
    found = []
    for process in psutil.process_iter():
        try:
            if process.environ().get(MARK) == mark and process.status() != psutil.STATUS_ZOMBIE:
                found.append(f"{process.pid} {process.name()}")
        except psutil.Error:
            continue
    return found


def interrupted(command: list[str], seconds: float, number: signal.Signals, twice: float | None) -> tuple[int, str]:
    """Runs a command, sends it a signal after some seconds, and gives its status and what it said."""
    mark = uuid.uuid4().hex
    process = subprocess.Popen(
        [sys.executable, "-m", "shoal", *command],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        env={**os.environ, MARK: mark},
        start_new_session=True,
    )
    while process.poll() is None and not listens(process):
        time.sleep(0.002)
    time.sleep(seconds)
    # Ctrl-C and the end of a terminal go to all of its processes, SIGTERM to the one.
    send = os.kill if number == signal.SIGTERM else os.killpg
    for pause in (0.0, *([] if twice is None else [twice])):
        time.sleep(pause)
        if process.poll() is None:
            send(process.pid, number)
    _, errors = process.communicate(timeout=120)
    deadline = time.monotonic() + 5
    while left_over(mark) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert left_over(mark) == []
    return process.returncode, errors.decode()


# Seconds of a whole run on an idle machine, start-up included; a run that is slower is interrupted earlier.
SPANS = {"local": 2.0, "ray": 6.0}
NUMBERS = [signal.SIGINT, signal.SIGTERM, signal.SIGHUP]
# Seconds until the signal comes once more.
TWICE = [None, 0.0, 0.3]
# At a random moment of each of some parts of the run; in this process every signal in every way.
PARTS = {"local": 6, "ray": 4}


@pytest.fixture(scope="module")
def expected(tmp_path_factory: pytest.TempPathFactory) -> list[Any]:
    return numbers(run(load_config(config(tmp_path_factory.mktemp("whole"), "local"))))


@pytest.mark.exhaustive(5)
@pytest.mark.parametrize(("backend", "part"), [(backend, part) for backend in PARTS for part in range(PARTS[backend])])
def test_signal_at_any_moment_leaves_a_run_to_resume(tmp_path: Path, expected: Any, backend: str, part: int) -> None:
    path = config(tmp_path, backend)
    number, twice = NUMBERS[part % 3], TWICE[part // 2]
    seconds = (part + random.Random(f"{backend} {part}").random()) * SPANS[backend] / PARTS[backend]
    status, errors = interrupted(["run", str(path)], seconds, number, twice)
    assert status in (0, 128 + number), errors
    assert "Traceback" not in errors
    assert "Fatal" not in errors
    (tmp_path / "runs").mkdir(exist_ok=True)
    started = [folder for folder in (tmp_path / "runs").iterdir() if (folder / "metrics.jsonl").exists()]
    folder = run(load_config(path, ["engine.backend=local"]), resume=bool(started))
    assert numbers(folder) == expected
