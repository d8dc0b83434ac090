"""A folder to write in: one writer at a time, on a file system that has locks and room."""

import errno
import fcntl
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from shoal.storage.errors import ShoalError
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


def hold(store: Path) -> subprocess.Popen[str]:
    process = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(store)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "held\n"
    return process


@pytest.mark.parametrize("end", ["exit", "kill"])
def test_one_process_writes_at_a_time(tmp_path: Path, end: str) -> None:
    store = tmp_path / "a" / "store"
    other = hold(store)
    line = rf"^{store}: another prepare is writing this store; wait for it or set data\.store$"
    with pytest.raises(ShoalError, match=line), writing(store):
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
    with (
        pytest.raises(ShoalError, match=rf"^{tmp_path}/file: cannot be made: .*; set data\.store .*$"),
        writing(tmp_path / "file"),
    ):
        pass


def test_without_locks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(file: object, how: int) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "flock", refuse)
    with (
        pytest.raises(ShoalError, match=rf"^{tmp_path}: cannot be locked: No locks available; set data\.store"),
        writing(tmp_path),
    ):
        pass


def test_what_does_not_fit(tmp_path: Path) -> None:
    require_disk(tmp_path, 1, "the hops")
    with pytest.raises(ShoalError, match=rf"^{tmp_path}: the hops need 1048576\.00 GiB, .* are free; free space"):
        require_disk(tmp_path, 1 << 50, "the hops")
