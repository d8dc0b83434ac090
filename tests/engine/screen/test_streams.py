"""What a command says of a stream that is closed or full, or lacks a character; and where it can be started."""

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import psutil
import pytest
import yaml
from support.small_runs import small_run

PROGRAM = """
import atexit
import os
import subprocess
import sys
from shoal.cli.main import main
from shoal.cli.cli import app

@app.command("say")
def say() -> None:
    print("[/b] \\u2026 \\udcff")
    print("message", file=sys.stderr)

@app.command("say-much")
def say_much() -> None:
    print("x" * (1 << 20))

@app.command("write")
def write(file: str) -> None:
    with open(file, "w"):
        os.system("echo from a child")
        print("result", flush=True)
        print("message", file=sys.stderr)

@app.command("serve")
def serve() -> None:
    service = subprocess.Popen(["cat"], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    left = subprocess.Popen(["cat"], stdin=subprocess.PIPE)
    atexit.register(lambda: print(left.pid, service.communicate(b"the last record")[0].decode()))

main()
"""


def shoal(*words: object, **options: Any) -> "subprocess.Popen[bytes]":
    buffered = {key: value for key, value in os.environ.items() if key != "PYTHONUNBUFFERED"}
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "env": buffered, **options}
    return subprocess.Popen([sys.executable, "-c", PROGRAM, *map(str, words or ("say",))], **pipes)


def closing(which: str, *command: object) -> "subprocess.CompletedProcess[bytes]":
    """A command that starts without some of its streams, `>&-` as a shell has it."""
    words = ["sh", "-c", f'exec "$@" {which}', "sh", sys.executable, *map(str, command)]
    return subprocess.run(words, capture_output=True)


def test_closed_and_full_streams_end_with_a_true_status() -> None:
    end, begin = os.pipe()
    os.close(end)
    full = os.open("/dev/full", os.O_WRONLY)
    closed, no_room, no_message = shoal(stdout=begin), shoal(stdout=full), shoal(stderr=full)
    assert closed.communicate()[1] == b"message\n"
    assert closed.returncode == 128 + signal.SIGPIPE
    line = b"shoal: standard output: cannot be written: No space left on device; files are kept\n"
    assert no_room.communicate()[1] == b"message\n" + line
    assert no_room.returncode == 2
    assert no_message.communicate()[0].startswith(b"[/b]")
    assert no_message.returncode == 0
    os.close(begin)
    os.close(full)


@pytest.mark.parametrize("which", [">&-", "2>&-", "<&- >&- 2>&-"])
def test_stream_that_is_closed_takes_nothing_into_files(tmp_path: Path, which: str) -> None:
    """A file that is opened next would have its number, and get what is printed."""
    done = closing(which, "-c", PROGRAM, "write", tmp_path / "file")
    assert (done.returncode, (tmp_path / "file").read_bytes()) == (0, b"")
    assert done.stdout == (b"" if " >&-" in f" {which}" else b"from a child\nresult\n")
    assert done.stderr == (b"" if "2>&-" in which else b"message\n")


def test_run_without_streams_is_finished(tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_text(yaml.safe_dump(small_run(tmp_path)))
    done = closing("<&- >&-", "-m", "shoal", "run", tmp_path / "config.yaml")
    assert done.returncode == 0, done.stderr
    assert len(list(tmp_path.glob("runs/*/summary.json"))) == 1


def test_pipe_that_does_not_wait_is_waited_for() -> None:
    """Of a pipe that another process made one that does not wait, Python takes what fits."""
    end, begin = os.pipe()
    os.set_blocking(begin, False)
    process = shoal("say-much", stdout=begin)
    os.close(begin)
    with open(end, "rb") as pipe:
        assert len(pipe.read()) == (1 << 20) + 1
    assert process.communicate()[1] == b""
    assert process.returncode == 0


PRINTS = """
from dataclasses import dataclass
from shoal import Callback
from shoal.algorithms.methods.fedavg import FedAvg

@dataclass(frozen=True)
class Method(FedAvg):
    def round(self, server, ctx, cohort):
        print("of a method", flush=True)
        yield from super().round(server, ctx, cohort)

@dataclass
class After(Callback):
    def after_round(self, run, line):
        print("of a callback", flush=True)
"""


@pytest.mark.slow
@pytest.mark.parametrize("prints", ["Method", "After"])
def test_code_that_prints_for_a_reader_that_is_gone_is_no_failure(tmp_path: Path, prints: str) -> None:
    (tmp_path / "own.py").write_text(PRINTS)
    name = f"{tmp_path / 'own.py'}:{prints}"
    own = {"algorithm": {"name": name}} if prints == "Method" else {"callbacks": [{"name": name}]}
    (tmp_path / "config.yaml").write_text(yaml.safe_dump(small_run(tmp_path, **own)))
    end, begin = os.pipe()
    os.close(end)
    command = [sys.executable, "-m", "shoal", "run", tmp_path / "config.yaml"]
    done = subprocess.run(command, stdout=begin, stderr=subprocess.PIPE)
    os.close(begin)
    assert done.returncode == 128 + signal.SIGPIPE, done.stderr
    assert b"shoal: " not in done.stderr


def test_exit_hooks_of_services_reach_their_processes() -> None:
    """Afterwards every process that is left ends with the command."""
    process = shoal("serve")
    said, errors = process.communicate()
    left, record = said.decode().split(maxsplit=1)
    assert (record, errors, process.returncode) == ("the last record\n", b"", 0)
    assert not psutil.pid_exists(int(left)) or psutil.Process(int(left)).status() == psutil.STATUS_ZOMBIE


@pytest.mark.parametrize(
    "locale", [{"PYTHONIOENCODING": "latin-1"}, {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}]
)
def test_characters_that_a_terminal_lacks_are_numbers(locale: dict[str, str]) -> None:
    done = shoal(env={**os.environ, **locale})
    assert done.communicate() == (b"[/b] \\u2026 \\udcff\n", b"message\n")
    assert done.returncode == 0


@pytest.mark.parametrize("folder", ["gone", os.fsdecode(b"\xff")])
def test_working_folder_that_no_config_can_hold_is_one_line(tmp_path: Path, folder: str) -> None:
    (tmp_path / folder).mkdir()
    command = f'cd "$0" && {"rmdir" if folder == "gone" else "ls"} "$0" && exec "$@"'
    words = ["sh", "-c", command, tmp_path / folder, sys.executable, "-m", "shoal", "list"]
    done = subprocess.run(words, capture_output=True, text=True)
    assert done.returncode == 2
    (line,) = done.stderr.splitlines()
    assert line.startswith("shoal: ")
    assert ("start in another folder" in line) == (folder == "gone")
