"""The place where this process is at work in a run, kept in a file: for a process that ends without an exception."""

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NoReturn

from shoal.storage.errors import one_line
from shoal.storage.files.reading import read_bytes

# With this end of its name, a copy of a run, or its removal, treats the file as any that is not finished.
NAME = "failure.txt.unfinished"
LONGEST = 120
# The real `os._exit`, which `exits_named` replaces inside of its block.
end_process = os._exit
# The runs that this process is at work on, the innermost last.
_runs: list["AtWork"] = []


class AtWork:
    """The file of a run folder that names round and client as long as a process is at work there.

    Attributes:
        before: The place at which the process before this one ended without a line; None: it ended with one.
        place: The place of this process: round and client.
    """

    def __init__(self, folder: Path) -> None:
        """Reads the place that the process before has left."""
        self._path, self._file = folder / NAME, -1
        self.before = ended_at(folder)
        self.place = ""
        self.fail: Callable[[str], None] = lambda line: None

    def note(self, place: str) -> None:
        """Keeps a place outside of this process's memory, in one write of 120 bytes that waits for no disk."""
        self.place = place
        with suppress(OSError):
            if self._file < 0:
                flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC
                self._file = os.open(self._path, flags, 0o666)
            os.pwrite(self._file, place.encode(errors="replace")[:LONGEST].ljust(LONGEST), 0)

    def close(self) -> None:
        """Removes the file: this process ends its work with a line, or without a fault."""
        if self._file >= 0:
            os.close(self._file)
            self._file = -1
            with suppress(OSError):
                self._path.unlink()

    @contextmanager
    def keep_places(self, fail: Callable[[str], None]) -> Iterator[None]:
        """Keeps places inside of the block; `fail` takes the line of a process that is ended by `os._exit`."""
        self.fail = fail
        _runs.append(self)
        try:
            with exits_named():
                yield
        finally:
            _runs.remove(self)
            self.close()


def ended_at(folder: Path) -> str | None:
    """Returns the place at which the last process of a run ended without a line; None: it ended in order."""
    try:
        return one_line(read_bytes(folder / NAME)[:LONGEST].decode(errors="replace").strip()) or None
    except OSError:
        return None


@contextmanager
def exits_named() -> Iterator[None]:
    """Makes `os._exit`, inside of the block, say which code called it, and at what client; never with status 0.

    A process that was forked ends with the status that it gives.
    """
    earlier, process = os._exit, os.getpid()

    def leave(status: int) -> NoReturn:
        if os.getpid() != process:
            end_process(status)
        caller = sys._getframe(1)
        where = f"{caller.f_code.co_filename}, line {caller.f_lineno}"
        line = f"{where}: os._exit({status}) ends the whole process; raise an error instead"
        if _runs:
            line = f"{_runs[-1].place}: {line}"
            _runs[-1].fail(line)
            _runs[-1].close()
        with suppress(OSError):
            os.write(2, f"shoal: {one_line(line)}\n".encode(errors="replace"))
        end_process(status or 2)

    os._exit = leave
    try:
        yield
    finally:
        os._exit = earlier
