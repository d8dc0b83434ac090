"""What a long step has finished so far, one JSON object a line, so that a killed step goes on from there."""

import json
import os
from pathlib import Path
from typing import Any

from storage.atomic import cannot_write
from storage.errors import ShoalError


class Journal:
    """A file of finished work; a line counts once it is complete and on disk.

    Attributes:
        entries: All complete lines, oldest first.
    """

    def __init__(self, path: Path) -> None:
        """Reads what is there; the end of a line that a kill cut off is removed from the file.

        Raises:
            ShoalError: The file is not a journal.
        """
        self._path = path
        text = path.read_bytes() if path.exists() else b""
        whole = text[: text.rfind(b"\n") + 1]
        if whole != text:
            os.truncate(path, len(whole))
        try:
            self.entries: list[dict[str, Any]] = [json.loads(line) for line in whole.splitlines()]
        except ValueError as error:
            raise ShoalError(
                f"{path}: damaged ({error}); delete the folder it lies in, and it is made again"
            ) from error

    def append(self, entry: dict[str, Any]) -> None:
        """Adds a line; the work that it records must already be on disk.

        Raises:
            ShoalError: The line cannot be written.
        """
        try:
            with self._path.open("a") as file:
                file.write(json.dumps(entry) + "\n")
                file.flush()
                os.fsync(file.fileno())
        except OSError as error:
            raise cannot_write(self._path, error) from error
        self.entries.append(entry)
