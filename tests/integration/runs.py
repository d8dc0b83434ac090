"""Runs of the command in processes of their own: started, watched, compared."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import yaml
from integration.three_hosts import Cluster
from safetensors.numpy import load_file

from shoal.engine.config.config import load_config
from shoal.engine.records.metrics import read_metrics
from shoal.engine.runs.run import run

ROUNDS = 9
CONFIG: dict[str, Any] = {
    "name": "same",
    "rounds": ROUNDS,
    "data": {"dataset": "sbm", "options": {"nodes": 1500, "features": 24, "classes": 6, "degree": 8.0}},
    "partition": {"method": "metis", "clients": 12},
    "propagation": {"hops": 2},
    "model": {"name": "gamlp", "hidden": 32},
    # Long enough for a kill to come in the midst of a cell.
    "train": {"epochs": 24},
    "algorithm": {"name": "fedgta", "eps": 0.8},
    "participation": {"ratio": 0.6},
    "communication": {"upload": "topk", "ratio": 0.1},
    "evaluation": {"every": 2},
    "engine": {"backend": "local"},
    "resources": {"cpus_per_host": 0.3},
    "run": {"checkpoint_every": 2, "tensorboard": False},
}
PATIENCE = 240


class Runs:
    """Starts the command in a folder of its own, on this machine or on the head of a cluster."""

    def __init__(self, folder: Path, root: Path, cluster: Cluster | None = None, **changes: Any) -> None:
        self.folder = folder
        config = {
            **CONFIG,
            **changes,
            "data": {**changes.get("data", CONFIG["data"]), "root": str(root)},
            "run": {**CONFIG["run"], "root": str(folder)},
        }
        self.config = folder / "config.yaml"
        self.config.write_text(yaml.safe_dump(config))
        self.env = cluster.env if cluster else {**os.environ, "RAY_AUTH_TOKEN_PATH": str(folder / "token")}
        self.command = cluster.inside(0, sys.executable) if cluster else [sys.executable]

    def start(self, *arguments: str) -> subprocess.Popen[bytes]:
        command = [*self.command, "-m", "shoal", "run", str(self.config), *arguments]
        return subprocess.Popen(command, env=self.env, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)

    def finish(self, *arguments: str) -> Path:
        process = self.start(*arguments)
        _, errors = process.communicate(timeout=PATIENCE)
        assert process.returncode == 0, errors.decode()
        return self.run

    def here(self, resume: bool = False) -> Path:
        """The run from its beginning, or from where it was left, in this process."""
        return run(load_config(self.config), resume=resume)

    @property
    def run(self) -> Path:
        (run,) = self.folder.glob("same-*")
        return run

    def log(self) -> str:
        """What is logged so far; the file is made with its first line."""
        log = self.run / "run.log"
        return log.read_text() if log.exists() else ""

    def rounds(self) -> int:
        logs = list(self.folder.glob("same-*/metrics.jsonl"))
        return len(logs[0].read_text().splitlines()) if logs else 0


def last_state(run: Path, rounds: int) -> dict[str, bytes]:
    """The state after the last round."""
    files = (run / "checkpoints" / f"round-{rounds:06d}").glob("*.safetensors")
    return {name: tensor.tobytes() for file in files for name, tensor in load_file(file).items()}


def assert_same_numbers(run: Path, other: Path) -> None:
    states = [last_state(path, ROUNDS) for path in (run, other)]
    assert states[0].keys() == states[1].keys()
    for name, content in states[0].items():
        assert content == states[1][name], name
    logs = [[json.loads(line) for line in (path / "metrics.jsonl").read_text().splitlines()] for path in (run, other)]
    for line in (line for log in logs for line in log):
        for name in ("seconds", "retries", "hosts", "memory", "seal"):
            del line[name]
    assert logs[0] == logs[1]
    assert len(logs[0]) == ROUNDS


def assert_same_so_far(run: Path, other: Path) -> None:
    """Of a run that was killed: a resume may begin before its last lines and hide them."""
    losses = [[(line["round"], line["loss"]) for line in read_metrics(path)] for path in (run, other)]
    assert losses[0] == losses[1][: len(losses[0])]


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
    """Ray workers below a driver whose title, of actor and call, starts as given."""
    for child in psutil.Process(process.pid).children(recursive=True):
        try:
            if child.cmdline()[0].startswith(title):
                yield child
        except (psutil.Error, IndexError):
            continue
