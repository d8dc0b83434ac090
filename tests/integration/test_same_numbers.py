"""Same config, same numbers, to the last bit: on any number of hosts, after kills, after resumes. Real processes."""

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import psutil
import pytest
import yaml
from safetensors.numpy import load_file

ROUNDS = 9
CONFIG: dict[str, Any] = {
    "name": "same",
    "rounds": ROUNDS,
    "data": {"dataset": "sbm", "options": {"nodes": 1500, "features": 24, "classes": 6, "degree": 8.0}},
    "partition": {"method": "metis", "clients": 12},
    "propagation": {"hops": 2},
    "model": {"name": "gamlp", "hidden": 32},
    "train": {"epochs": 20},
    "algorithm": {"name": "fedgta", "eps": 0.8},
    "participation": {"ratio": 0.6},
    "evaluation": {"every": 2},
    "engine": {"backend": "local"},
    "resources": {"cpus_per_host": 0.3},
    "run": {"checkpoint_every": 2, "tensorboard": False},
}
PATIENCE = 120


class Runs:
    """Starts the command in a folder of its own."""

    def __init__(self, folder: Path, data: Path, algorithm: Mapping[str, Any] = CONFIG["algorithm"]) -> None:
        self.folder = folder
        config = {
            **CONFIG,
            "algorithm": dict(algorithm),
            "data": {**CONFIG["data"], "root": str(data)},
            "run": {**CONFIG["run"], "root": str(folder)},
        }
        self.config = folder / "config.yaml"
        self.config.write_text(yaml.safe_dump(config))
        self.env = {**os.environ, "RAY_AUTH_TOKEN_PATH": str(folder / "token")}

    def start(self, *arguments: str) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", "engine", "run", str(self.config), *arguments]
        return subprocess.Popen(command, env=self.env, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)

    def finish(self, *arguments: str) -> Path:
        process = self.start(*arguments)
        _, errors = process.communicate(timeout=PATIENCE)
        assert process.returncode == 0, errors.decode()
        return self.run

    @property
    def run(self) -> Path:
        (run,) = self.folder.glob("same-*")
        return run

    def rounds(self) -> int:
        logs = list(self.folder.glob("same-*/metrics.jsonl"))
        return len(logs[0].read_text().splitlines()) if logs else 0


@pytest.fixture
def runs(tmp_path: Path, tmp_path_factory: pytest.TempPathFactory) -> Runs:
    return Runs(tmp_path, tmp_path_factory.getbasetemp() / "data")


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return Runs(tmp_path_factory.mktemp("undisturbed"), tmp_path_factory.getbasetemp() / "data").finish()


def assert_same_numbers(run: Path, other: Path) -> None:
    states = [
        load_file(next((path / "checkpoints").glob(f"round-{ROUNDS:06d}")) / "state.safetensors")
        for path in (run, other)
    ]
    assert states[0].keys() == states[1].keys()
    for name, tensor in states[0].items():
        assert tensor.tobytes() == states[1][name].tobytes(), name
    logs = [[json.loads(line) for line in (path / "metrics.jsonl").read_text().splitlines()] for path in (run, other)]
    for line in (line for log in logs for line in log):
        del line["seconds"], line["retries"]
    assert logs[0] == logs[1]
    assert len(logs[0]) == ROUNDS


def until(condition: Callable[[], Any], process: subprocess.Popen[bytes]) -> Any:
    """What the condition gives once it is true, while the process is at work."""
    deadline = time.monotonic() + PATIENCE
    while time.monotonic() < deadline:
        assert process.poll() is None, "the run ended before it was disturbed"
        if found := condition():
            return found
        time.sleep(0.002)
    raise AssertionError("waited in vain")


def working(process: subprocess.Popen[bytes], title: str) -> Iterator[psutil.Process]:
    """Ray workers below a driver that are inside a call of the given title."""
    for child in psutil.Process(process.pid).children(recursive=True):
        try:
            if child.cmdline()[:1] == [title]:
                yield child
        except psutil.Error:
            continue


@pytest.mark.parametrize("hosts", [1, 2, 3])
def test_any_number_of_hosts(runs: Runs, undisturbed: Path, hosts: int) -> None:
    assert_same_numbers(runs.finish("engine.backend=ray", f"engine.hosts={hosts}"), undisturbed)


@pytest.mark.parametrize("backend", ["local", "ray"])
def test_driver_killed_at_random_rounds_and_resumed(runs: Runs, undisturbed: Path, backend: str) -> None:
    arguments = [f"engine.backend={backend}"]
    for attempt, stop in enumerate(sorted(random.Random(backend).sample(range(1, ROUNDS - 1), 2))):
        process = runs.start(*arguments, *(["--resume"] if attempt else []))
        until(lambda stop=stop: runs.rounds() >= stop, process)
        process.send_signal(signal.SIGKILL)
        process.wait()
    assert_same_numbers(runs.finish("--resume"), undisturbed)


def test_host_killed_in_mid_round(runs: Runs, undisturbed: Path) -> None:
    process = runs.start("engine.backend=ray", "engine.hosts=2")
    for stop in (2, 5):
        until(lambda stop=stop: runs.rounds() >= stop, process)
        until(lambda: next(working(process, "ray::HostActor.run"), None), process).kill()
    assert process.wait(timeout=PATIENCE) == 0
    lines = [json.loads(line) for line in (runs.run / "metrics.jsonl").read_text().splitlines()]
    assert sum(line["retries"] for line in lines) >= 2
    assert_same_numbers(runs.run, undisturbed)


def test_server_killed_in_mid_round(runs: Runs, undisturbed: Path) -> None:
    process = runs.start("engine.backend=ray", "engine.hosts=2")
    until(lambda: runs.rounds() >= 3, process)
    until(lambda: next(working(process, "ray::ServerActor.round"), None), process).kill()
    assert process.wait(timeout=PATIENCE) == 0
    assert_same_numbers(runs.run, undisturbed)
    assert "server lost" in (runs.run / "run.log").read_text()


def test_a_server_that_learns(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Killed in its driver, resumed on two hosts: FedPG's generator and its optimizer are part of the state."""
    data, algorithm = tmp_path_factory.getbasetemp() / "data", {"name": "fedpg", "noise": 0.1}
    expected = Runs(tmp_path_factory.mktemp("fedpg"), data, algorithm).finish()
    runs = Runs(tmp_path_factory.mktemp("fedpg"), data, algorithm)
    process = runs.start()
    until(lambda: runs.rounds() >= 3, process)
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert_same_numbers(runs.finish("--resume", "engine.backend=ray", "engine.hosts=2"), expected)
