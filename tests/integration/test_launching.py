"""Runs that others start and stop: jobs of a Ray cluster, and of SLURM."""

import importlib.util
import os
import re
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
import yaml
from support.small_runs import small_run

from shoal.engine.records.metrics import read_metrics

PATIENCE = 240
# In the third round nothing ends before a file is there.
METHOD = """
import os, time
from dataclasses import dataclass
import torch
from shoal.algorithms.methods.fedavg import FedAvg

@dataclass(frozen=True)
class Waiting(FedAvg):
    go: str = ""

    def upload(self, client, received, phase):
        client.state["visits"] = client.state.get("visits", torch.zeros(())) + 1
        while client.state["visits"] == 3 and not os.path.exists(self.go):
            time.sleep(0.05)
        return super().upload(client, received, phase)
"""
RAY = [sys.executable, "-m", "ray.scripts.scripts"]


def until(condition: Callable[[], Any], what: str) -> Any:
    """What the condition gives once it is true."""
    deadline = time.monotonic() + PATIENCE
    while not (found := condition()):
        assert time.monotonic() < deadline, f"waited in vain for {what}"
        time.sleep(0.1)
    return found


class Waiting:
    """A run whose third round waits for a file; `env` has a token and the tests' Python as `python`."""

    def __init__(self, folder: Path) -> None:
        (folder / "waiting.py").write_text(METHOD)
        (folder / "token").touch(mode=0o600)
        (folder / "token").write_text("0" * 64)
        self.go, self.folder, self.config = folder / "go", folder, folder / "config.yaml"
        method = {"name": f"{folder / 'waiting.py'}:Waiting", "go": str(self.go)}
        engine = {"backend": "ray", "hosts": 1}
        self.config.write_text(yaml.safe_dump(small_run(folder, rounds=5, algorithm=method, engine=engine)))
        path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
        token = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN_PATH": str(folder / "token")}
        self.env = {**os.environ, **token, "PATH": path, "OMP_NUM_THREADS": "1"}

    def checkpoints(self) -> list[str]:
        return sorted(path.name for path in self.folder.glob("runs/small-*/checkpoints/round-??????"))

    def rounds(self) -> int:
        return sum(len(read_metrics(run)) for run in self.folder.glob("runs/small-*"))

    def finished(self) -> bool:
        return any(self.folder.glob("runs/small-*/summary.json"))

    def call(self, *command: str) -> str:
        """What a command prints."""
        done = subprocess.run(command, env=self.env, capture_output=True, text=True, timeout=PATIENCE, cwd=self.folder)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout


@pytest.fixture
def waiting(tmp_path: Path) -> Waiting:
    return Waiting(tmp_path)


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return server.getsockname()[1]


@pytest.fixture
def dashboard(waiting: Waiting) -> Iterator[str]:
    """The address at which a Ray head with a token takes jobs; its processes go at the end."""
    if importlib.util.find_spec("aiohttp_cors") is None:
        pytest.skip("jobs need ray[default]")
    places = [f"--{name}={free_port()}" for name in ("port", "dashboard-port", "dashboard-agent-listen-port")]
    with tempfile.TemporaryDirectory(prefix="shoal-", dir="/tmp", ignore_cleanup_errors=True) as short:
        try:
            waiting.call(*RAY, "start", "--head", *places, "--num-cpus=2", f"--temp-dir={short}")
            yield f"http://127.0.0.1:{places[1].partition('=')[2]}"
        finally:
            for process in psutil.process_iter():
                try:
                    if process.environ().get("RAY_AUTH_TOKEN_PATH") == waiting.env["RAY_AUTH_TOKEN_PATH"]:
                        process.kill()
                except psutil.Error:
                    continue


@pytest.mark.slow
def test_a_job_stopped_in_a_long_round_keeps_the_round_before_and_resumes(waiting: Waiting, dashboard: str) -> None:
    def submit() -> str:
        printed = waiting.call("python", "-m", "shoal", "submit", str(waiting.config), "--address", dashboard)
        return re.findall(r"submitted (\S+);", printed)[0]

    job = submit()
    until(lambda: waiting.rounds() == 2, "two rounds")
    assert waiting.checkpoints() == []
    waiting.call(*RAY, "job", "stop", "--no-wait", "--address", dashboard, job)
    until(waiting.checkpoints, "a checkpoint")
    assert waiting.checkpoints() == ["round-000002"]
    waiting.go.touch()
    submit()
    until(waiting.finished, "the end of the run")
    assert waiting.rounds() == 5
