"""What a partitioner may use and tell while it works; a tight memory limit alone may change the result."""

import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from storage.errors import ShoalError

PREFIX = "shoal-partition-"


def silent(line: str) -> None:
    """Tells nobody."""


@dataclass(frozen=True)
class Workspace:
    """Attributes:
    folder: Where temporary files go; None: the system's folder for them. One that lies in memory makes
        `semi-external` pointless.
    report: Called with one line a step, for a user who waits.
    memory_limit: Bytes that `semi-external` may use beyond the process as it was; None: not limited.
    """

    folder: Path | None = None
    report: Callable[[str], None] = silent
    memory_limit: int | None = None

    def clear(self) -> None:
        """Removes what killed processes left in `folder`, which must be in no other partitioner's use."""
        for left in self.folder.glob(PREFIX + "*") if self.folder else ():
            shutil.rmtree(left, ignore_errors=True)

    @contextmanager
    def scratch(self) -> Iterator[Path]:
        """A folder of its own, removed with what lies in it when the block ends.

        Raises:
            ShoalError: It cannot be made or written, because the disk is full for instance.
        """
        where = Path(tempfile.gettempdir()) if self.folder is None else self.folder
        try:
            with tempfile.TemporaryDirectory(prefix=PREFIX, dir=where) as folder:
                yield Path(folder)
        except OSError as error:
            reason = error.strerror or error
            raise ShoalError(f"{where}: cannot be written: {reason}; free space or choose another folder") from error
