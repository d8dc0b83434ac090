"""A folder to write in: one writer at a time, on a file system that has locks and room."""

import errno
import fcntl
from pathlib import Path

import pytest

from storage.disk import require_disk, writing
from storage.errors import ShoalError


def test_one_writer_at_a_time(tmp_path: Path) -> None:
    folder = tmp_path / "store"
    with (
        writing(folder),
        pytest.raises(ShoalError, match=rf"^{folder}: another prepare is writing this store"),
        writing(folder),
    ):
        pass
    with writing(folder):
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


def test_a_folder_that_is_a_file(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with (
        pytest.raises(ShoalError, match=r"file: cannot be made: File exists; set data\.store"),
        writing(tmp_path / "file"),
    ):
        pass


def test_what_does_not_fit(tmp_path: Path) -> None:
    require_disk(tmp_path, 1, "the hops")
    with pytest.raises(ShoalError, match=rf"^{tmp_path}: the hops need 1048576\.00 GiB, .* are free; free space"):
        require_disk(tmp_path, 1 << 50, "the hops")
