"""Writing a store so that it can be interrupted at any time: a journal of finished files, and the manifest last."""

import os
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

from shoal.storage.errors import ShoalError
from shoal.storage.files.atomic import cannot_write
from shoal.storage.files.checksummed_json import sealed, unsealed
from shoal.storage.files.names import place_in, require_name
from shoal.storage.files.reading import cannot_read, read_bytes
from shoal.storage.shards.arrow_file import FileRecord, read_record, record_of

AGAIN = "delete the folder it lies in, and it is made again"


class Journal:
    """A file of finished work; a line counts once it is complete and on disk."""

    def __init__(self, path: Path, way_out: str = AGAIN) -> None:
        """Reads what is there, and removes a torn line. Raises ShoalError: it cannot, or a line is damaged."""
        self._path = path
        self.entries, torn = read_journal(path, way_out)
        if torn:
            try:
                os.truncate(path, path.stat().st_size - torn)
            except OSError as error:
                raise cannot_write(path, error) from error

    def append(self, entry: dict[str, Any], at_once: bool = True) -> None:
        """Adds a line, after what it records is on disk; it is, too, where it must be `at_once`.

        Another line outlives this process, and may be lost with the machine's power. Raises ShoalError: it cannot be
        written.
        """
        try:
            with self._path.open("a") as file:
                file.write(sealed(entry) + "\n")
                file.flush()
                if at_once:
                    os.fsync(file.fileno())
        except OSError as error:
            raise cannot_write(self._path, error) from error
        self.entries.append(entry)


def read_journal(path: Path, way_out: str = AGAIN) -> tuple[list[dict[str, Any]], int]:
    """Reads the complete lines of a journal, and the bytes of a torn one. Raises ShoalError: it is damaged."""
    try:
        text = read_bytes(path)
    except FileNotFoundError:
        return [], 0
    except OSError as error:
        raise cannot_read(path, error) from error
    whole = text[: text.rfind(b"\n") + 1]
    entries = []
    for number, line in enumerate(whole.split(b"\n")[:-1], 1):
        try:
            entries.append(unsealed(line))
        except ValueError as error:
            raise ShoalError(path, f"line {number} is damaged ({error}); {way_out}") from error
    return entries, len(text) - len(whole)


PROGRESS = "progress.jsonl"
# Paths below a store of what is written here.
WRITTEN = (r"progress\.jsonl",)
WAY_OUT = "delete it and run `shoal prepare` again, which makes again what the manifest does not name"


class StoreWriter:
    """The one writer of a store folder.

    Every finished file is noted in `progress.jsonl` with its checksum; a later prepare of the same identity does not
    make it again, if it still is what was written.
    """

    def __init__(self, path: Path, identity: dict[str, Any], say: Callable[[str], None] = lambda line: None) -> None:
        """Reads the journal of an interrupted prepare; `say` gets a line on a file that changed and is made again.

        Raises ShoalError: the folder holds an unfinished store of another identity, or its journal is damaged.
        """
        self.path = path
        self._say = say
        self._journal = Journal(place_in(path, PROGRESS), WAY_OUT)
        self._done = _records(path / PROGRESS, self._journal.entries)
        self._sound: dict[str, bool] = {}
        if not self._journal.entries:
            self._journal.append(identity)
        elif self._journal.entries[0] != identity:
            raise ShoalError(
                path,
                "holds an unfinished store of another dataset, of other files of it, or of another partition; "
                "delete it or set data.store",
            )

    def once(self, relative: Path, write: Callable[[Path], FileRecord]) -> FileRecord:
        """Writes a file unless an earlier prepare finished it."""
        record = self.finished(relative)
        if record is None:
            record = write(place_in(self.path, relative))
            self.add(relative, record)
        return record

    def add(self, relative: Path, record: FileRecord) -> None:
        """Notes a file that is complete on disk."""
        # A file whose line is lost is made again.
        self._journal.append({"path": str(relative), **asdict(record)}, at_once=False)
        self._done[str(relative)] = record
        self._sound[str(relative)] = True

    def bytes_finished(self, folder: Path) -> int:
        """Counts the bytes of the complete files in a folder of the store."""
        paths = [Path(path) for path in self._done if Path(path).parent == folder]
        return sum(record.bytes for record in map(self.finished, paths) if record is not None)

    def noted(self, relative: Path) -> FileRecord | None:
        """Returns the record of a file that was finished once, whether or not it still is there."""
        return self._done.get(str(relative))

    def finished(self, relative: Path) -> FileRecord | None:
        """Returns the record of a file that is complete on disk and as it was written, else None; it is read once."""
        record, full = self.noted(relative), self.path / relative
        if record is None or not full.exists():
            return None
        if str(relative) not in self._sound:
            self._sound[str(relative)] = self._is_sound(full, record)
        return record if self._sound[str(relative)] else None

    def _is_sound(self, full: Path, record: FileRecord) -> bool:
        try:
            if full.stat().st_size == record.bytes and record_of(full) == record:
                return True
        except OSError as error:
            raise cannot_read(full, error) from error
        self._say(f"{full}: not as it was written, made again")
        return False


def noted_files(store: Path) -> dict[Path, FileRecord]:
    """Lists the files that the journal of a store names, if there is one. Raises ShoalError: it is damaged."""
    entries, _ = read_journal(store / PROGRESS, WAY_OUT)
    return {Path(path): record for path, record in _records(store / PROGRESS, entries).items()}


def _records(journal: Path, entries: list[dict[str, Any]]) -> dict[str, FileRecord]:
    try:
        return {require_name(journal, entry["path"]): read_record(journal, entry) for entry in entries[1:]}
    except (KeyError, TypeError) as error:
        raise ShoalError(journal, f"damaged ({error}); {WAY_OUT}") from error
