"""What a long step has finished so far, one sealed JSON object a line, so that a killed step goes on from there."""

import os
from pathlib import Path
from typing import Any

from storage.atomic import cannot_write
from storage.errors import ShoalError
from storage.sealed import sealed, unsealed
from storage.unreadable import cannot_read

AGAIN = "delete the folder it lies in, and it is made again"


class Journal:
    """A file of finished work; a line counts once it is complete and on disk.

    Attributes:
        entries: All complete lines, oldest first.
    """

    def __init__(self, path: Path, way_out: str = AGAIN) -> None:
        """Reads what is there; the end of a line that a kill cut off is removed from the file.

        Args:
            path: The file; it need not exist.
            way_out: What to do about a damaged one.

        Raises:
            ShoalError: The file is damaged, or cannot be read or cut.
        """
        self._path = path
        self.entries, torn = read_journal(path, way_out)
        if torn:
            try:
                os.truncate(path, path.stat().st_size - torn)
            except OSError as error:
                raise cannot_write(path, error) from error

    def append(self, entry: dict[str, Any]) -> None:
        """Adds a line; the work that it records must already be on disk.

        Raises:
            ShoalError: The line cannot be written.
        """
        try:
            with self._path.open("a") as file:
                file.write(sealed(entry) + "\n")
                file.flush()
                os.fsync(file.fileno())
        except OSError as error:
            raise cannot_write(self._path, error) from error
        self.entries.append(entry)


def read_journal(path: Path, way_out: str = AGAIN) -> tuple[list[dict[str, Any]], int]:
    """The complete lines of a journal, oldest first, and the bytes of a line that a kill cut off.

    Raises:
        ShoalError: A line is not as it was written, or the file cannot be read.
    """
    try:
        text = path.read_bytes()
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
            raise ShoalError(f"{path}: line {number} is damaged ({error}); {way_out}") from error
    return entries, len(text) - len(whole)
