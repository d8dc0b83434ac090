"""A process that ends without an exception: a line where it can be, and round and client for what comes after it."""

import os
import signal
from pathlib import Path

import pytest
import yaml
from support.forked import shoal
from support.small_runs import small_run
from support.toy_method import NAME

from shoal.engine.config.config import parse_config
from shoal.engine.records import at_work
from shoal.engine.records.run_folder import run_path, state_of
from shoal.engine.runs.run import run
from shoal.study.study import Study
from shoal.sweeps.sweep import Sweep

FILE, CLIENT = NAME.rpartition(":")[0], "round 2, client 2"


def config(folder: Path, how: str) -> Path:
    plain = small_run(folder, algorithm={"name": NAME, "kind": how, "visits": 2})
    path = folder / "config.yaml"
    path.write_text(yaml.safe_dump(plain))
    return path


@pytest.mark.parametrize(
    ("how", "status", "place"),
    [
        pytest.param("exits", 2, CLIENT, marks=pytest.mark.slow),
        ("exits with 7", 7, CLIENT),
        ("exits on the server", 2, "round 2, server"),
    ],
)
def test_os_exit_of_a_method_is_one_line(tmp_path: Path, how: str, status: int, place: str) -> None:
    path = config(tmp_path, how)
    ended, printed = shoal("run", path, printed=tmp_path / "printed")
    lines = [line for line in printed.splitlines() if line.startswith("shoal: ")]
    assert (ended, len(lines)) == (status, 1)
    assert lines[0].startswith(f"shoal: {place}: {FILE}, line ")
    (folder,) = (tmp_path / "runs").iterdir()
    assert state_of(folder).startswith(f"failed in round 2: {place.removeprefix('round 2, ')}: {FILE}")
    assert not (folder / at_work.NAME).exists()


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
    ended, printed = shoal("run", path, printed=tmp_path / "printed")
    assert ended == status
    # A crash has the line of Python that it came from.
    text = Path(FILE).read_text()
    line = text[: text.index("ctypes.string_at")].count("\n") + 1
    assert (f'"{FILE}", line {line} in upload' in printed) == (how == "crashes")
    (folder,) = (tmp_path / "runs").iterdir()
    assert state_of(folder) == f"unfinished; at work, or lost, {CLIENT}"
    ended, printed = shoal("run", path, printed=tmp_path / "printed")
    assert ended == 2
    assert f"{folder}: the process before ended without a line, {CLIENT}: it was killed, or " in printed
    assert "Traceback" not in printed


@pytest.mark.slow
def test_processes_that_a_method_forks_end_as_they_want(tmp_path: Path) -> None:
    ended, printed = shoal("run", config(tmp_path, "forks"), printed=tmp_path / "printed")
    assert ended == 0, printed
    (folder,) = (tmp_path / "runs").iterdir()
    assert not (folder / at_work.NAME).exists()


def test_place_is_kept_while_a_run_is_at_work_alone(tmp_path: Path) -> None:
    (tmp_path / "watches.py").write_text(
        "from dataclasses import dataclass\nfrom pathlib import Path\nfrom shoal import Callback\n"
        "@dataclass\nclass Watches(Callback):\n    def after_round(self, run, line):\n"
        f"        Path('{tmp_path}/seen').write_bytes((run.path / '{at_work.NAME}').read_bytes())\n"
    )
    plain = small_run(tmp_path, callbacks=[{"name": f"{tmp_path / 'watches.py'}:Watches"}])
    whole = parse_config(plain, "test")
    leave = os._exit
    assert not (run(whole) / at_work.NAME).exists()
    assert os._exit is leave
    assert (tmp_path / "seen").read_text().strip() == "after round 3"
    stopped = parse_config({**plain, "name": "stopped", "run": {**plain["run"], "max_seconds": 1e-9}}, "test")
    with pytest.raises(KeyboardInterrupt):
        run(stopped)
    assert not (run_path(stopped) / at_work.NAME).exists()


@pytest.mark.slow
def test_run_of_a_sweep_that_was_lost_is_a_row_with_its_place(tmp_path: Path) -> None:
    sweep = Sweep(Study(str(config(tmp_path, "forks")), ("algorithm.kind=forks,crashes,leaves",)), at_once=3)
    assert not sweep.go()
    whole, crashed, left = sweep.rows
    assert (whole.state, crashed.state, left.state) == ("finished", "failed", "failed")
    assert crashed.error == f"its process was killed by signal 11, {CLIENT}"
    assert f"status 0, {CLIENT}" in str(left.error)
