"""Whole runs on machines with several made-up GPUs: a host on each, the numbers of one; and a GPU that is lost."""

import socket
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import yaml
from integration.runs import last_state
from support.other_device.machine import HOOK, taken, variables
from support.small_runs import small_run

from shoal.engine.cluster.states import LOST_STATES
from shoal.engine.config.config import parse_config
from shoal.engine.records.metrics import read_metrics
from shoal.engine.runs.run import run

ROUNDS, PATIENCE = 4, 500
# Sixteen clients are eight cells of two on any number of GPUs.
KEYS: dict[str, Any] = {
    "rounds": ROUNDS,
    "data": {"options": {"nodes": 480, "features": 8, "classes": 3}},
    "partition": {"clients": 16},
    "algorithm": {"name": "scaffold"},
    "run": {"checkpoint_every": 1},
}
# One of two GPUs makes about 2,850 in a round, so that it is lost in round 3 or 4.
OPERATORS_OF_TWO_ROUNDS = 7800
OF_MACHINE = ("seconds", "retries", "hosts", "memory", "events", "seal")


class Done(NamedTuple):
    """A run that is over: lines of metrics without what is of machines, its last state, whole lines, screen and log."""

    numbers: list[dict[str, Any]]
    state: dict[str, bytes]
    lines: list[dict[str, Any]]
    said: str = ""
    log: str = ""


def done(root: Path, said: str = "") -> Done:
    (folder,) = root.glob("small-*")
    lines = read_metrics(folder)
    numbers = [{name: value for name, value in line.items() if name not in OF_MACHINE} for line in lines]
    log = "".join(path.read_text() for path in folder.glob("run.log"))
    return Done(numbers, last_state(folder, ROUNDS), lines, said, log)


@pytest.fixture
def alone(tmp_path: Path, there: None) -> Done:
    """The run on one made-up GPU, in this process."""
    run(parse_config(small_run(tmp_path / "alone", **KEYS, engine={"device": "cuda"}), "alone"))
    return done(tmp_path / "alone" / "runs")


@pytest.fixture
def on(tmp_path: Path) -> Callable[..., Done]:
    """Runs the command on a machine with so many GPUs; notes of its hosts are in the folder `notes`."""

    def on(gpus: int, keys: tuple[str, ...] = (), lost_after: Mapping[str, int] | None = None, status: int = 0) -> Done:
        engine = {"backend": "ray", "device": "cuda"}
        # Eight hosts load torch on the few cores of a machine that tests.
        ray = {"runtime_env": {"worker_process_setup_hook": HOOK}, "start_timeout": PATIENCE}
        plain = small_run(tmp_path / "several", **KEYS, engine=engine, ray=ray)
        path = tmp_path / "several.yaml"
        path.write_text(yaml.safe_dump({**plain, "resources": {"cpus_per_host": 0.1}}))
        command = [sys.executable, "-m", "shoal", "run", str(path), *keys]
        env = {**variables(tmp_path / "notes", gpus, lost_after), "RAY_AUTH_TOKEN_PATH": str(tmp_path / "token")}
        process = subprocess.run(command, env=env, capture_output=True, text=True, timeout=PATIENCE)
        said = process.stdout + process.stderr
        assert process.returncode == status, said
        return done(tmp_path / "several" / "runs", said) if status == 0 else Done([], {}, [], said)

    return on


@pytest.mark.slow
@pytest.mark.parametrize("gpus", [2, 8])
def test_a_host_on_each_gpu(tmp_path: Path, alone: Done, on: Callable[..., Done], gpus: int) -> None:
    together = on(gpus)
    assert "Ray hosts on this machine, 1 on each GPU, cuda" in together.said
    assert f"{gpus} on Ray, {gpus} of {gpus} GPUs at work" in together.said
    hosts = taken(tmp_path / "notes")
    assert [(host["gpu"], host["share"]) for host in hosts] == [(str(number), 1.0) for number in range(gpus)]
    assert together.numbers == alone.numbers
    assert together.state == alone.state
    assert [line["hosts"]["of"] for line in together.lines] == [gpus] * ROUNDS
    # Whoever is done early takes a cell of another's: of eight two, at least, have some.
    busy = {host for line in together.lines for host, seconds in line["hosts"]["busy"].items() if seconds}
    assert gpus == 2 or len(busy) > 1


@pytest.mark.slow
def test_hosts_share_gpus(tmp_path: Path, alone: Done, on: Callable[..., Done]) -> None:
    together = on(2, ("engine.hosts=3",))
    assert "3 on Ray, 2 of 2 GPUs at work, each shared by 2 hosts at most" in together.said
    assert Counter((host["gpu"], host["share"]) for host in taken(tmp_path / "notes")) == {("0", 0.5): 2, ("1", 0.5): 1}
    assert (together.numbers, together.state) == (alone.numbers, alone.state)


@pytest.mark.slow
@pytest.mark.parametrize("operators", [700, 900])
def test_cells_of_a_lost_gpu_go_to_others(tmp_path: Path, alone: Done, on: Callable[..., Done], operators: int) -> None:
    together = on(2, lost_after={"1": operators})
    assert (together.numbers, together.state) == (alone.numbers, alone.state)
    assert sum(line["retries"] for line in together.lines) > 0
    assert "lost with host" in together.log
    assert len(taken(tmp_path / "notes")) == 2


@pytest.mark.slow
def test_states_of_a_lost_gpu_are_those_of_the_newest_checkpoint(
    tmp_path: Path, on: Callable[..., Done], there: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Guards look at visits, and states of 120 kB stay on GPUs.
    monkeypatch.setenv("SHOAL_CHECK_ALWAYS", "0")
    large = {**KEYS, "model": {"name": "mlp", "hidden": 2500}, "train": {"optimizer": "sgd", "lr": 0.1}}
    large["run"] = {"checkpoint_every": 2}
    run(parse_config(small_run(tmp_path / "alone", **large, engine={"device": "cuda"}), "alone"))
    alone = done(tmp_path / "alone" / "runs")
    keys = ("model.name=mlp", "model.hidden=2500", "train.optimizer=sgd", "train.lr=0.1", "run.checkpoint_every=2")
    together = on(2, keys, {"1": OPERATORS_OF_TWO_ROUNDS})
    assert (together.numbers, together.state) == (alone.numbers, alone.state)
    assert f"the server was lost ({LOST_STATES}); going on after round 2" in together.said
    assert len(taken(tmp_path / "notes")) == 2


@pytest.mark.slow
def test_a_gpu_lost_before_the_run_is_left_out(alone: Done, on: Callable[..., Done]) -> None:
    together = on(2, lost_after={"1": -1})
    assert (together.numbers, together.state) == (alone.numbers, alone.state)
    assert f"host 1 stays idle: engine.device: cuda: GPU 1 of {socket.gethostname()} does not answer" in together.log


@pytest.mark.slow
def test_no_gpu_left_ends_the_run(on: Callable[..., Done]) -> None:
    ended = on(1, lost_after={"0": 700}, status=2)
    (line,) = [text for text in ended.said.splitlines() if text.startswith("shoal: ")]
    assert "engine.hosts: all hosts are lost and none can work: engine.device: cuda: GPU 0 of " in line
    assert "use --resume" in line
