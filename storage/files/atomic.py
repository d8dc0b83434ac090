"""A file that appears under its name only when it is complete and on disk."""

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

from shoal.storage.errors import ShoalError


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Gives the path of an unfinished file that takes the place of `path` when the block ends; the folder is made.

    Raises ShoalError: it cannot be written; no unfinished file stays behind.
    """
    unfinished = path.with_name(path.name + ".unfinished")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        yield unfinished
        with unfinished.open("rb") as f:
            os.fsync(f.fileno())
        os.replace(unfinished, path)
    except OSError as error:
        with suppress(OSError):
            unfinished.unlink()
        raise cannot_write(path, error) from error


def cannot_write(path: Path, error: OSError) -> ShoalError:
    """The error for a file that could not be written."""
    return ShoalError(path, f"cannot be written: {error.strerror or error}; free space or choose another folder")


def present(path: Path) -> bool:
    """Whether something lies at a path. Raises ShoalError: its folder cannot be read."""
    try:
        os.lstat(path)
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError as error:
        raise ShoalError(path, f"cannot be looked at: {error.strerror}") from error
    return True


def reopened(path: Path) -> BinaryIO:
    """The file with what it holds, to be read and written at any place; an empty one if there is none."""
    return path.open("r+b" if path.exists() else "w+b")


def to_disk(file: BinaryIO) -> None:
    """Waits until what was written cannot be lost with the machine's power."""
    file.flush()
    os.fsync(file.fileno())
