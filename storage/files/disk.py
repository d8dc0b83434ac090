"""A folder to write in: its lock, and the free space on its disk."""

import errno
import fcntl
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from stat import S_ISREG
from typing import TextIO

from shoal.storage.errors import BusyError, ShoalError
from shoal.storage.files.atomic import present

LOCK = ".lock"
# A process finds out which machines see a folder by files whose names begin so.
MARK = ".seen-"
# Paths below any folder that a process writes in.
WRITTEN = (r"\.lock", r"\.seen-[^/]+")
NO_LOCKS = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP, errno.EINVAL)


def locked(path: Path, key: str, busy: BusyError) -> TextIO:
    """Makes a folder if it is missing, and opens its lock. Raises ShoalError: `busy`, or neither is possible."""
    try:
        path.mkdir(parents=True, exist_ok=True)
        return open_lock(path)
    except BlockingIOError:
        raise busy from None
    except OSError as error:
        if error.errno in NO_LOCKS:
            raise ShoalError(
                path, f"cannot be locked: {error.strerror}; set {key} to a file system with locks"
            ) from error
        raise ShoalError(
            path, f"cannot be made: {error.strerror}; set {key} to a folder that can be written"
        ) from error


def open_lock(path: Path) -> TextIO:
    """Opens the lock of a folder that is there.

    Raises ShoalError: there is something else in its place; BlockingIOError: another process has it; OSError.
    """
    lock = path / LOCK
    if present(lock) and not S_ISREG(lock.lstat().st_mode):
        raise ShoalError(lock, "is a link, a folder or a pipe where a file should be; remove it by hand")
    # The flags follow and wait for nothing that comes there now.
    flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    file = os.fdopen(os.open(lock, flags, 0o666), "a")
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        # The process that had the lock may have removed it with its folder.
        if not present(lock) or not os.path.samestat(os.fstat(file.fileno()), lock.lstat()):
            raise BlockingIOError(errno.EWOULDBLOCK, "was removed meanwhile", str(lock))
    except BaseException:
        file.close()
        raise
    return file


@contextmanager
def writing(path: Path, key: str = "data.store") -> Iterator[None]:
    """Holds the lock of a store folder, as `locked` does; `key` of a config says where it lies.

    A folder that is made for it, and in which nothing is written, as that of a graph that is refused, is removed again.
    """
    busy = BusyError(path, f"another prepare is writing this store; wait for it or set {key}")
    made = [folder for folder in (path, *path.parents) if not os.path.exists(folder)]
    with locked(path, key, busy):
        try:
            yield
        finally:
            with suppress(OSError):
                if made and os.listdir(path) == [LOCK]:
                    (path / LOCK).unlink()
                    for folder in made:
                        folder.rmdir()


def require_disk(folder: Path, needed: int, what: str) -> None:
    """Compares what a step will write with the free space of the file system. Raises ShoalError: it does not fit."""
    free = shutil.disk_usage(folder).free
    if needed > free:
        raise ShoalError(
            folder,
            f"{what} need {needed / 2**30:.2f} GiB, {free / 2**30:.2f} GiB are free; "
            "free space or choose another folder",
        )
