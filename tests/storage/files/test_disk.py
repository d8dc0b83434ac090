"""A folder to write in: one writer at a time, on a file system that has locks and room."""

import errno
import fcntl
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from support.errors import refused

from shoal.storage.files.disk import require_disk, writing

HOLD = """
import sys
from functools import partial
from pathlib import Path
from shoal.storage.files.disk import writing
with writing(Path(sys.argv[1])):
    print("held", flush=True)
    sys.stdin.read()
"""


@pytest.mark.parametrize("end", ["exit", "kill"])
def test_one_process_writes_at_a_time(tmp_path: Path, end: str) -> None:
    store = tmp_path / "a" / "store"
    command = [sys.executable, "-c", HOLD, str(store)]
    other = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert other.stdout is not None
    assert other.stdout.readline() == "held\n"
    with refused(store, says="another prepare"), writing(store):
        pass
    with writing(tmp_path / "another"):
        pass
    if end == "kill":
        other.send_signal(signal.SIGKILL)
    other.communicate()
    with writing(store):
        pass


def test_a_folder_that_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with refused(tmp_path / "file", says="cannot be made"), writing(tmp_path / "file"):
        pass


def test_without_locks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(file: object, how: int) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "flock", refuse)
    with refused(tmp_path, says="No locks available; set data.store"), writing(tmp_path):
        pass


def test_what_does_not_fit(tmp_path: Path) -> None:
    require_disk(tmp_path, 1, "the hops")
    with refused(tmp_path, says="the hops need 1048576.00 GiB,"):
        require_disk(tmp_path, 1 << 50, "the hops")
