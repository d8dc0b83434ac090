"""A folder to write in: its lock, and the free space on its disk."""

import fcntl
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TextIO

from shoal.storage.errors import ShoalError

LOCK = ".lock"


def locked(path: Path, key: str, busy: ShoalError) -> TextIO:
    """The open lock of a folder, made if it is missing. Raises ShoalError: `busy`, or it cannot be made or locked."""
    try:
        path.mkdir(parents=True, exist_ok=True)
        lock = (path / LOCK).open("a")
    except OSError as error:
        raise ShoalError(
            path, f"cannot be made: {error.strerror}; set {key} to a folder that can be written"
        ) from error
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        lock.close()
        if isinstance(error, BlockingIOError):
            raise busy from None
        raise ShoalError(path, f"cannot be locked: {error.strerror}; set {key} to a file system with locks") from error
    return lock


@contextmanager
def writing(path: Path, key: str = "data.store") -> Iterator[None]:
    """Holds the lock of a store folder, as `locked` does; `key` of a config says where it lies."""
    busy = ShoalError(path, f"another prepare is writing this store; wait for it or set {key}")
    with locked(path, key, busy):
        yield


def require_disk(folder: Path, needed: int, what: str) -> None:
    """Compares what a step will write with the free space of the file system. Raises ShoalError: it does not fit."""
    free = shutil.disk_usage(folder).free
    if needed > free:
        raise ShoalError(
            folder,
            f"{what} need {needed / 2**30:.2f} GiB, {free / 2**30:.2f} GiB are free; "
            "free space or choose another folder",
        )
