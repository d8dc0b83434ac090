"""A file that appears under its name only when it is complete and on disk."""

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from pathlib import Path
from stat import S_ISDIR, S_ISLNK, S_ISREG
from typing import BinaryIO

from shoal.storage.errors import ShoalError

UNFINISHED = ".unfinished"
# The name of an unfinished file adds this, a pattern, to that of the file.
OF_UNFINISHED = r"(\.[^/]+)?\.unfinished"
_suffix = ContextVar("suffix", default=UNFINISHED)
NO_FILE = "is a pipe or a device, which no file replaces; name a file"


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Gives the path of an unfinished file that takes the place of `path` when the block ends; the folder is made.

    Raises ShoalError: it cannot be written, or there is something there that is no file; no unfinished file stays.
    """
    unfinished = path.with_name(path.name + _suffix.get())
    require_replaceable(path)
    require_replaceable(unfinished)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        _require_own(unfinished)
        yield unfinished
        with unfinished.open("rb") as f:
            os.fsync(f.fileno())
        os.replace(unfinished, path)
    except OSError as error:
        with suppress(OSError):
            unfinished.unlink()
        raise cannot_write(path, error) from error


def _require_own(unfinished: Path) -> None:
    """Removes a link, or a second name of another file, through which what is written would go elsewhere."""
    with suppress(FileNotFoundError):
        stat = unfinished.lstat()
        if S_ISLNK(stat.st_mode) or (S_ISREG(stat.st_mode) and stat.st_nlink > 1):
            unfinished.unlink()


def write_apart(name: str) -> None:
    """Gives unfinished files from here on names of this process's own, whose work others may do a second time."""
    _suffix.set(f".{name}{UNFINISHED}")


def cannot_write(path: Path, error: OSError) -> ShoalError:
    """Makes the error for a file that could not be written."""
    return ShoalError(path, f"cannot be written: {error.strerror or error}; free space or choose another folder")


def require_replaceable(path: Path) -> None:
    """Raises ShoalError: at a path lies a pipe, a device or a socket, which a file would replace."""
    if present(path):
        mode = path.lstat().st_mode
        if not (S_ISREG(mode) or S_ISLNK(mode) or S_ISDIR(mode)):
            raise ShoalError(path, NO_FILE)


def output(path: Path) -> Path:
    """Finds the file that is written where a user names a path: that to which a link leads.

    Raises ShoalError: it is none, as `/dev/stdout`, or a folder.
    """
    target = Path(os.path.realpath(path))
    for folder in (Path(os.path.realpath(path.parent)), target.parent):
        of_devices = folder.is_relative_to("/dev") and not folder.is_relative_to("/dev/shm")
        if of_devices or folder.is_relative_to("/proc"):
            raise ShoalError(path, NO_FILE)
    require_replaceable(target)
    if target.is_dir():
        raise ShoalError(path, "is a folder; name a file in it")
    return target


def present(path: Path) -> bool:
    """Whether something lies at a path. Raises ShoalError: its folder cannot be read."""
    try:
        os.lstat(path)
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError as error:
        raise ShoalError(path, f"cannot be looked at: {error.strerror}") from error
    return True


def reopen(path: Path) -> BinaryIO:
    """Opens a file with what it holds, to be read and written at any place; an empty one if there is none."""
    return path.open("r+b" if path.exists() else "w+b")


def to_disk(file: BinaryIO) -> None:
    """Waits until what was written cannot be lost with the machine's power."""
    file.flush()
    os.fsync(file.fileno())
