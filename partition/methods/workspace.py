"""A partitioner's temporary folder, its memory and its reports of progress; only a tight limit changes the result."""

import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from shoal.storage.errors import ShoalError

PREFIX = "shoal-partition-"
# Paths below the folder of a workspace of what a killed process leaves there.
WRITTEN = (rf"{PREFIX}[^/]+/.+",)


def scratch_bytes(method: str, nodes: int, entries: int) -> int:
    """Bytes of temporary files of a partitioner, at most, for a graph of so many nodes and directed edges."""
    if method == "semi-external":
        # All edges between clusters, with both ends, and the cluster of every node.
        return 8 * entries + 4 * nodes
    return 4 * entries + 8 * nodes if method == "kaminpar" else 0


def silent(line: str) -> None:
    """Reports nothing."""


@dataclass(frozen=True)
class Workspace:
    """The folder of temporary files (None: the system's), what is called with a line for each step, and a limit.

    A folder in memory makes `semi-external` pointless. `memory_limit` are the bytes that it may use beyond the process
    as it was; None: not limited.
    """

    folder: Path | None = None
    report: Callable[[str], None] = silent
    memory_limit: int | None = None

    def clear(self) -> None:
        """Removes what killed processes left in `folder`, which no other partitioner may be using."""
        for left in self.folder.glob(PREFIX + "*") if self.folder else ():
            shutil.rmtree(left, ignore_errors=True)

    @contextmanager
    def scratch(self) -> Iterator[Path]:
        """A folder, removed with its content at the end; a ShoalError says that it cannot be made or written."""
        where = Path(tempfile.gettempdir()) if self.folder is None else self.folder
        try:
            with tempfile.TemporaryDirectory(prefix=PREFIX, dir=where) as folder:
                yield Path(folder)
        except OSError as error:
            reason = error.strerror or error
            raise ShoalError(where, f"cannot be written: {reason}; free space or choose another folder") from error
