"""A raylet that ends while Ray starts: its own words, a second try, and a prepare that does without."""

import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from support.small_runs import small_run

from shoal.engine.cluster.raylet import BUSY, ENDED, LOG, last_line, why_ended

# The helper of every Ray that starts, while a file names fewer starts than are to fail, ends at once.
HELPER_ENDS = """
import os
import sys
if any("runtime_env/agent" in word for word in sys.orig_argv):
    with open({file!r}, "a+") as file:
        file.write("x")
        file.seek(0)
        if len(file.read()) <= {failures}:
            os._exit(1)
"""
# For a prepare, the smallest work is worth a start of Ray.
PROGRAM = """
import sys
from shoal.cli.main import main
from shoal.engine.preparing import prepare
if sys.argv[1] == "prepare":
    prepare.TO_START = 1
main()
"""
FATAL = (
    "[2026-11-28 16:20:18,320 C 7468 7468] (raylet) node_manager.cc:3636:  An unexpected system state has occurred. "
    "You have likely discovered a bug in Ray. Please report this issue at https://github.com/ray-project/ray/issues "
    "and we'll work with you to fix it. Check failed: statussetor3636.has_value() {what}\n*** StackTrace ***\n"
)
PORT = "Timed out waiting for file /tmp/a/session_2026-11-28/runtime_env_agent_port_14846de3"
BEFORE = "[2026-11-28 16:20:17,001 E 7468 7468] (raylet) main.cc:12: an error of before\n"
AFTER = "[2026-11-28 16:20:19,001 I 7468 7468] (raylet) main.cc:13: information\n"


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (BEFORE + FATAL.format(what=PORT) + AFTER, BUSY),
        (FATAL.format(what="No space left on \x1b[1mdevice"), "No space left on \\x1b[1mdevice"),
        (BEFORE + AFTER, "an error of before"),
        (AFTER, None),
        ("", None),
    ],
)
def test_last_line_is_what_ended_it(tmp_path: Path, text: str, says: str | None) -> None:
    (tmp_path / LOG).parent.mkdir(parents=True)
    (tmp_path / LOG).write_text(text)
    assert last_line(tmp_path) == says
    assert why_ended(tmp_path) == f"{ENDED}: {says}" if says else f"{ENDED}; look for lack of memory"


def test_without_a_log_memory_is_named(tmp_path: Path) -> None:
    assert why_ended(tmp_path) == why_ended(None) == f"{ENDED}; look for lack of memory"


@pytest.fixture
def short() -> Iterator[Path]:
    """A folder of a short path for Ray."""
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:
        yield Path(folder)


def shoal(folder: Path, short: Path, failures: int, *words: object) -> "subprocess.CompletedProcess[str]":
    """A command in whose process the first starts of Ray fail."""
    (folder / "hooks").mkdir(exist_ok=True)
    text = HELPER_ENDS.format(file=str(folder / "starts"), failures=failures)
    (folder / "hooks" / "sitecustomize.py").write_text(text)
    env = {**os.environ, "PYTHONPATH": str(folder / "hooks"), "RAY_TMPDIR": str(short)}
    command = [sys.executable, "-c", PROGRAM, *map(str, words)]
    return subprocess.run(command, capture_output=True, text=True, env=env, timeout=300)


def config(folder: Path) -> Path:
    path = folder / "config.yaml"
    path.write_text(yaml.safe_dump(small_run(folder, engine={"backend": "ray", "hosts": 1})))
    return path


@pytest.mark.slow
def test_second_start_is_tried_and_said(tmp_path: Path, short: Path) -> None:
    done = shoal(tmp_path, short, 1, "run", config(tmp_path))
    assert done.returncode == 0, done.stderr
    assert re.search(rf"^Ray did not start: {re.escape(ENDED)}: .*; trying again$", done.stderr, re.MULTILINE)
    assert list(short.iterdir()) == []


@pytest.mark.slow
def test_ray_that_does_not_start_is_one_line_with_its_words(tmp_path: Path, short: Path) -> None:
    done = shoal(tmp_path, short, 9, "run", config(tmp_path))
    assert done.returncode == 2
    line = done.stderr.splitlines()[-1]
    assert line.startswith(f"shoal: ray: {ENDED}: ")
    assert line.endswith("; tried 2 times; engine.backend=local needs no Ray")
    assert "Traceback" not in done.stderr
    assert list(short.iterdir()) == []


@pytest.mark.slow
def test_prepare_goes_on_without_ray(tmp_path: Path, short: Path) -> None:
    done = shoal(tmp_path, short, 9, "prepare", config(tmp_path))
    assert done.returncode == 0, done.stderr
    assert "; the prepare goes on in this process" in done.stderr


# Ray was not up in time, or no host was.
ONE_LINE = ("shoal: ray: ", "shoal: engine.hosts: none of ")


@pytest.mark.slow
def test_two_runs_at_once_on_a_busy_machine(tmp_path: Path, short: Path) -> None:
    """Beside a process for every processor that computes: both are finished, or end with one line that says why."""
    busy = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(2 * (os.cpu_count() or 1))]
    try:
        env = {**os.environ, "RAY_TMPDIR": str(short)}
        command = [sys.executable, "-m", "shoal", "run", str(config(tmp_path)), "run.checkpoint_every=1"]
        pipes: dict[str, Any] = {"stdout": subprocess.DEVNULL, "stderr": subprocess.PIPE, "env": env, "text": True}
        # One store for both would be prepared by one of them alone.
        own = [[f"seed={seed}", f"data.store={tmp_path / f'store-{seed}'}"] for seed in (0, 1)]
        runs = [subprocess.Popen([*command, *keys], **pipes) for keys in own]
        for process in runs:
            _, errors = process.communicate(timeout=500)
            assert "Traceback" not in errors
            assert process.returncode == 0 or errors.splitlines()[-1].startswith(ONE_LINE), errors
    finally:
        for process in busy:
            process.kill()
            process.wait()
