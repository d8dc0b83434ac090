"""Files by checksum in a folder that the processes of a machine share: each is fetched once, and the oldest go first.

`objects/ab/abcd…` are the files, with one lock a folder; `open/` has a locked list of names for every user of the
cache, which ends with its process; `bytes` counts what files take, more after a fetch that failed, never less.
"""

import fcntl
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from shoal.storage.errors import FetchError
from shoal.storage.files.atomic import cannot_write
from shoal.storage.files.digest import digest
from shoal.storage.files.names import require_digest

OBJECTS, OPEN, BYTES, LOCK = "objects", "open", "bytes", ".lock"
PART = ".part"
# The first is the part of the disk's free bytes that a cache without a limit takes; the second the part of a limit to
# which it is cleared.
TAKEN, CLEARED_TO = 0.9, 0.9


class ObjectCache:
    """The cache of a machine, as one user of it: what that got stays until the user is gone."""

    def __init__(self, folder: Path, limit: int | None) -> None:
        """Takes a folder, which is made; `limit` is in bytes, None: nine tenths of what the disk has free.

        Raises FetchError: the folder cannot be written.
        """
        self.folder, self._limit = folder, limit
        self._got: set[str] = set()
        with self.writing():
            for name in (OBJECTS, OPEN):
                (folder / name).mkdir(parents=True, exist_ok=True)
            # Others look under the same lock, and remove a list that is not locked.
            with self._lock(folder / LOCK):
                self._open_names()
                descriptor, _ = tempfile.mkstemp(dir=folder / OPEN)
                self._names = os.fdopen(descriptor, "a")
                fcntl.flock(self._names, fcntl.LOCK_EX)

    def get(self, xxh3: str, size: int, fetch: Callable[[Path], object]) -> Path:
        """Returns the path of a file, which `fetch` writes to a path unless it is there, whole.

        Raises FetchError: as `fetch`, or there is no room for the file. ShoalError: `xxh3` is no digest.
        """
        require_digest(self.folder, xxh3)
        path = self.folder / OBJECTS / xxh3[:2] / xxh3
        if xxh3 in self._got and path.exists():
            return path
        with self.writing():
            path.parent.mkdir(exist_ok=True)
            # Other processes no longer remove the file from here on.
            with self._lock(self.folder / LOCK, fcntl.LOCK_SH):
                os.write(self._names.fileno(), f"{xxh3}\n".encode())
            if not _is(path, xxh3, size):
                # Other processes that want the file wait here.
                with self._lock(path.parent / LOCK):
                    if not _is(path, xxh3, size):
                        self._fetch(path, size, fetch)
            os.utime(path)
        self._got.add(xxh3)
        return path

    def _fetch(self, path: Path, size: int, fetch: Callable[[Path], object]) -> None:
        part = path.with_name(path.name + PART)
        with self._lock(self.folder / LOCK, fcntl.LOCK_SH):
            path.unlink(missing_ok=True)
        self._make_room(size)
        try:
            with part.open("wb") as file:
                if size:
                    os.posix_fallocate(file.fileno(), 0, size)
            fetch(part)
            # The lock keeps other processes from counting meanwhile.
            with self._lock(self.folder / LOCK, fcntl.LOCK_SH):
                os.replace(part, path)
        except BaseException:
            with self._lock(self.folder / LOCK, fcntl.LOCK_SH):
                part.unlink(missing_ok=True)
            raise

    def _make_room(self, size: int) -> None:
        with self._lock(self.folder / LOCK):
            counted = self.folder / BYTES
            text = counted.read_text() if counted.exists() else ""
            used = int(text) if text.isdigit() else self._clear(None)
            free = shutil.disk_usage(self.folder).free
            most = used + int(TAKEN * free) if self._limit is None else min(used + free, self._limit)
            if used + size > most:
                used = self._clear(max(0, int(CLEARED_TO * most) - size))
            if used + size > most:
                raise FetchError(
                    "data.cache_limit",
                    f"{self.folder} has {most / 2**20:,.1f} MiB for files of stores, of which runs have "
                    f"{used / 2**20:,.1f} open, and {size / 2**20:,.1f} more are needed; raise it, free space, or set "
                    "data.cache to a larger disk",
                )
            counted.write_text(str(used + size))

    def _clear(self, most: int | None) -> int:
        """Removes the oldest files that no process has open until the rest has at most `most` bytes; returns these."""
        names = self._open_names()
        files = [(path.stat(), path) for path in (self.folder / OBJECTS).glob("*/*") if path.name != LOCK]
        used = sum(stat.st_size for stat, _ in files)
        for stat, path in sorted(files, key=lambda each: each[0].st_mtime_ns):
            if most is not None and used > most and path.name.removesuffix(PART) not in names:
                path.unlink()
                used -= stat.st_size
        return used

    def _open_names(self) -> set[str]:
        """Lists the files that users of the cache have open; removes lists of users that are gone."""
        names: set[str] = set()
        for user in (self.folder / OPEN).iterdir():
            with user.open() as file:
                try:
                    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    user.unlink()
                except BlockingIOError:
                    names.update(file.read().split())
        return names

    @contextmanager
    def writing(self) -> Iterator[None]:
        """Makes an OSError inside the block a FetchError: the folder cannot be written."""
        try:
            yield
        except OSError as error:
            raise FetchError("data.cache", *cannot_write(self.folder, error).args) from error

    @contextmanager
    def _lock(self, path: Path, kind: int = fcntl.LOCK_EX) -> Iterator[None]:
        with path.open("a") as file:
            fcntl.flock(file, kind)
            yield


def _is(path: Path, xxh3: str, size: int) -> bool:
    return path.exists() and path.stat().st_size == size and digest(path) == xxh3
