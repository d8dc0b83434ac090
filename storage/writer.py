"""Writing a store so that it can be interrupted at any time: a log of finished files, and the manifest last."""

import json
import os
from collections.abc import Callable
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
        """Reads the log of an interrupted prepare, if there is one.

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
            relative: Path inside the store.
            write: Writes the file at the full path and returns its record.
        """
        record = self.finished(relative)
        if record is None:
            record = write(self.path / relative)
            self.add(relative, record)
        return record

    def add(self, relative: Path, record: FileRecord) -> None:
        """Notes a file that is complete on disk."""
        entry = {"path": str(relative), **asdict(record)}
        self._append(entry)
        self._done[str(relative)] = entry

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
