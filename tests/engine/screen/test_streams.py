"""What a command says of a stream that is closed or full, or lacks a character; and where it can be started."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = """
import sys
from shoal.engine.cli.main import main
from shoal.engine.cli.cli import app

@app.command("say")
def say() -> None:
    print("[/b] \\u2026 \\udcff")
    print("message", file=sys.stderr)

main()
"""


def shoal(**options: object) -> "subprocess.Popen[bytes]":
    buffered = {key: value for key, value in os.environ.items() if key != "PYTHONUNBUFFERED"}
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "env": buffered, **options}
    return subprocess.Popen([sys.executable, "-c", PROGRAM, "say"], **pipes)  # type: ignore[call-overload]


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
