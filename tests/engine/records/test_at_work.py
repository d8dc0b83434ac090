"""A process that ends without an exception: a line where it can be, and round and client for what comes after it."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from support.small_runs import small_run

from shoal.engine.config.config import parse_config
from shoal.engine.records.at_work import NAME
from shoal.engine.records.run_folder import run_path, state_of
from shoal.engine.runs.run import run
from shoal.study.study import Study
from shoal.sweeps.sweep import Sweep

METHOD = """
import ctypes
import os
import signal
from dataclasses import dataclass
from shoal.algorithms.methods.fedavg import FedAvg

@dataclass(frozen=True)
class Ends(FedAvg):
    how: str = "exits"

    def round(self, server, ctx, cohort):
        yield from super().round(server, ctx, cohort)
        if ctx.round == 2 and self.how == "exits on the server":
            os._exit(0)

    def upload(self, client, received, phase):
        if client.info.client == 2 and "seen" in client.state:
            if self.how == "exits":
                os._exit(0)
            if self.how == "exits with 7":
                os._exit(7)
            if self.how == "leaves":
                ctypes.CDLL(None)._exit(0)
            if self.how == "crashes":
                ctypes.string_at(0)
            if self.how == "is killed":
                os.kill(os.getpid(), signal.SIGKILL)
            if self.how == "forks":
                child = os.fork()
                if not child:
                    os._exit(0)
                assert os.waitpid(child, 0)[1] == 0
        client.state["seen"] = received["w"].new_ones(())
        return super().upload(client, received, phase)
"""
CLIENT = "round 2, client 2"


def config(folder: Path, how: str) -> Path:
    (folder / "own.py").write_text(METHOD)
    plain = small_run(folder, algorithm={"name": f"{folder / 'own.py'}:Ends", "how": how})
    path = folder / "config.yaml"
    path.write_text(yaml.safe_dump(plain))
    return path


def shoal(*words: object) -> "subprocess.CompletedProcess[str]":
    return subprocess.run([sys.executable, "-m", "shoal", *map(str, words)], capture_output=True, text=True)


@pytest.mark.parametrize(
    ("how", "status", "place"),
    [("exits", 2, CLIENT), ("exits with 7", 7, CLIENT), ("exits on the server", 2, "round 2, server")],
)
def test_os_exit_of_a_method_is_one_line(tmp_path: Path, how: str, status: int, place: str) -> None:
    path = config(tmp_path, how)
    done = shoal("run", path)
    lines = [line for line in done.stderr.splitlines() if line.startswith("shoal: ")]
    assert (done.returncode, len(lines)) == (status, 1)
    assert lines[0].startswith(f"shoal: {place}: {tmp_path / 'own.py'}, line ")
    (folder,) = (tmp_path / "runs").iterdir()
    assert state_of(folder).startswith(f"failed in round 2: {place.removeprefix('round 2, ')}: {tmp_path}")
    assert not (folder / NAME).exists()


@pytest.mark.parametrize(
    ("how", "status"),
    [
        ("leaves", 0),
        pytest.param("crashes", -signal.SIGSEGV, marks=pytest.mark.slow),
        pytest.param("is killed", -signal.SIGKILL, marks=pytest.mark.slow),
    ],
)
def test_next_start_names_round_and_client_of_a_lost_process(tmp_path: Path, how: str, status: int) -> None:
    path = config(tmp_path, how)
    done = shoal("run", path)
    assert done.returncode == status
    # A crash has the line of Python that it came from.
    line = METHOD[: METHOD.index("ctypes.string_at")].count("\n") + 1
    assert (f'"{tmp_path / "own.py"}", line {line} in upload' in done.stderr) == (how == "crashes")
    (folder,) = (tmp_path / "runs").iterdir()
    assert state_of(folder) == f"unfinished; at work, or lost, {CLIENT}"
    refused = shoal("run", path)
    assert refused.returncode == 2
    assert f"{folder}: the process before ended without a line, {CLIENT}: it was killed, or " in refused.stderr
    assert "Traceback" not in refused.stderr


@pytest.mark.slow
def test_processes_that_a_method_forks_end_as_they_want(tmp_path: Path) -> None:
    done = shoal("run", config(tmp_path, "forks"))
    assert done.returncode == 0, done.stderr
    (folder,) = (tmp_path / "runs").iterdir()
    assert not (folder / NAME).exists()


def test_place_is_kept_while_a_run_is_at_work_alone(tmp_path: Path) -> None:
    (tmp_path / "watches.py").write_text(
        "from dataclasses import dataclass\nfrom pathlib import Path\nfrom shoal import Callback\n"
        "@dataclass\nclass Watches(Callback):\n    def after_round(self, run, line):\n"
        f"        Path('{tmp_path}/seen').write_bytes((run.path / '{NAME}').read_bytes())\n"
    )
    plain = small_run(tmp_path, callbacks=[{"name": f"{tmp_path / 'watches.py'}:Watches"}])
    whole = parse_config(plain, "test")
    leave = os._exit
    assert not (run(whole) / NAME).exists()
    assert os._exit is leave
    assert (tmp_path / "seen").read_text().strip() == "after round 3"
    stopped = parse_config({**plain, "name": "stopped", "run": {**plain["run"], "max_seconds": 1e-9}}, "test")
    with pytest.raises(KeyboardInterrupt):
        run(stopped)
    assert not (run_path(stopped) / NAME).exists()


@pytest.mark.slow
def test_run_of_a_sweep_that_was_lost_is_a_row_with_its_place(tmp_path: Path) -> None:
    sweep = Sweep(Study(str(config(tmp_path, "forks")), ("algorithm.how=forks,crashes,leaves",)), at_once=3)
    assert not sweep.go()
    whole, crashed, left = sweep.rows
    assert (whole.state, crashed.state, left.state) == ("finished", "failed", "failed")
    assert crashed.error == f"its process was killed by signal 11, {CLIENT}"
    assert f"status 0, {CLIENT}" in str(left.error)
