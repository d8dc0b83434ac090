"""Writing a store so that it can be interrupted anywhere: a lock, a log of finished files, the manifest last."""

import fcntl
import json
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

from storage.arrow_file import FileRecord
from storage.atomic import cannot_write
from storage.errors import ShoalError

PROGRESS = "progress.jsonl"


class StoreWriter:
    """The one writer of a store folder.

    Every finished file is noted in `progress.jsonl` with its checksum, after the file itself is on disk; a later
    prepare of the same identity finds it there and does not make it again.
    """

    def __init__(self, path: Path, identity: dict[str, Any]) -> None:
        """Reads what an interrupted prepare left.

        Raises:
            ShoalError: The folder holds an unfinished store of another identity.
        """
        self.path = path
        self._log = path / PROGRESS
        try:
            lines = [json.loads(line) for line in self._complete_lines()]
            self._done: dict[str, dict[str, Any]] = {entry["path"]: entry for entry in lines[1:]}
        except (ValueError, KeyError, TypeError) as error:
            raise ShoalError(f"{self._log}: damaged ({error}); delete the folder {path} and prepare again") from error
        if not lines:
            self._append(identity)
        elif lines[0] != identity:
            raise ShoalError(
                f"{path}: holds an unfinished store of another dataset or partition; delete it or set data.store"
            )

    def _complete_lines(self) -> list[str]:
        """The lines of the log; the end of one that a kill cut off is removed from the file."""
        if not self._log.exists():
            return []
        text = self._log.read_text()
        whole = text[: text.rfind("\n") + 1]
        if whole != text:
            os.truncate(self._log, len(whole.encode()))
        return whole.splitlines()

    def _append(self, entry: dict[str, Any]) -> None:
        try:
            with self._log.open("a") as f:
                f.write(json.dumps(entry) + "\n")
                f.flush()
                os.fsync(f.fileno())
        except OSError as error:
            raise cannot_write(self._log, error) from error

    def once(self, relative: Path, write: Callable[[Path], FileRecord]) -> FileRecord:
        """Writes a file unless an earlier prepare finished it.

        Args:
            relative: Where in the store.
            write: Writes the file at the full path and returns its record.
        """
        record = self.finished(relative)
        if record is None:
            record = write(self.path / relative)
            entry = {"path": str(relative), **asdict(record)}
            self._append(entry)
            self._done[str(relative)] = entry
        return record

    def bytes_finished(self, folder: Path) -> int:
        """Bytes of the complete files in a folder of the store."""
        paths = [Path(path) for path in self._done if Path(path).parent == folder]
        return sum(record.bytes for record in map(self.finished, paths) if record is not None)

    def finished(self, relative: Path) -> FileRecord | None:
        """The record of a file that is complete on disk, else None."""
        entry = self._done.get(str(relative))
        full = self.path / relative
        if entry is None or not full.exists() or full.stat().st_size != entry["bytes"]:
            return None
        return FileRecord(entry["bytes"], entry["sha256"])


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """Holds the lock of a store folder, which is made if it is not there.

    Raises:
        ShoalError: Another process is preparing the same store, or the folder cannot be made.
    """
    try:
        path.mkdir(parents=True, exist_ok=True)
        lock = (path / ".lock").open("w")
    except OSError as error:
        raise ShoalError(
            f"{path}: cannot be made: {error.strerror}; set data.store to a folder that can be written"
        ) from error
    with lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ShoalError(f"{path}: another prepare is writing this store; wait for it or set data.store") from None
        yield


def require_disk(folder: Path, needed: int, what: str) -> None:
    """Compares what a step will write with the free space of the file system.

    Raises:
        ShoalError: It does not fit.
    """
    free = shutil.disk_usage(folder).free
    if needed > free:
        raise ShoalError(
            f"{folder}: {what} need {needed / 2**30:.2f} GiB, {free / 2**30:.2f} GiB are free; "
            "free space or set data.store"
        )
