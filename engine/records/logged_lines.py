"""The lines that a run logged, in their file: they are read where they are needed, and none stays in memory."""

import io
from array import array
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, overload

import xxhash

from shoal.storage.errors import ShoalError
from shoal.storage.files.digest import CHUNK

Line = dict[str, Any]
CHANGED = "was changed while the run writes it; --resume rebuilds it from the newest checkpoint"


@dataclass(frozen=True)
class Logged:
    """The first bytes of a file of lines.

    Attributes:
        path: The file; None: there are no lines.
        size: Their number of bytes.
        content: XXH3-128 of these bytes, with which they are compared when they are read.
    """

    path: Path | None = None
    size: int = 0
    content: str = xxhash.xxh3_128_hexdigest(b"")

    @classmethod
    def first_lines(cls, path: Path, count: int) -> "Logged":
        """Takes the first lines of a file as it is now. Raises OSError: it cannot be read."""
        hasher, size = xxhash.xxh3_128(), 0
        with path.open("rb") as file:
            for _, line in zip(range(count), file):
                hasher.update(line)
                size += len(line)
        return cls(path, size, hasher.hexdigest())

    def chunks(self) -> Iterator[bytes]:
        """Yields the bytes, a few MiB at a time. Raises ShoalError: they were changed; OSError: they cannot be read."""
        if self.path is None:
            return
        hasher, rest = xxhash.xxh3_128(), self.size
        with self.path.open("rb") as file:
            while chunk := file.read(min(CHUNK, rest)):
                hasher.update(chunk)
                rest -= len(chunk)
                yield chunk
        if rest or hasher.hexdigest() != self.content:
            raise ShoalError(self.path, CHANGED)

    def copy_to(self, path: Path) -> None:
        """Writes a file of these lines. Raises as `chunks`."""
        with path.open("wb") as file:
            for chunk in self.chunks():
                file.write(chunk)

    def lines(self) -> Iterator[bytes]:
        """Yields each line, with its end. Raises as `chunks`, after the last one."""
        begun = b""
        for chunk in self.chunks():
            *whole, begun = io.BytesIO(begun + chunk).readlines() or [b""]
            yield from whole
            if begun.endswith(b"\n"):
                yield begun
                begun = b""
        if begun:
            yield begun


class LoggedLines(Sequence[Line]):
    """Lines of a file by their places, each read anew when it is asked for; equal to a list of the same lines."""

    def __init__(
        self, path: Path, ends: "array[int]", count: int, read: Callable[[bytes], Line], first: int = 0
    ) -> None:
        """Takes lines `first` to `count` of a file, which end at `ends`; `read` raises ValueError for a changed one."""
        self._path, self._ends, self._first, self._count, self._read = path, ends, first, count, read

    def __len__(self) -> int:
        return self._count - self._first

    @overload
    def __getitem__(self, place: int) -> Line: ...
    @overload
    def __getitem__(self, place: slice) -> "LoggedLines": ...
    def __getitem__(self, place: int | slice) -> "Line | LoggedLines":
        """Reads a line, or several that follow each other. Raises IndexError, or ShoalError: one was changed."""
        if isinstance(place, slice):
            first, count, step = place.indices(len(self))
            if step != 1:
                raise ValueError("lines of a run are taken one after another, without a step")
            first += self._first
            return LoggedLines(self._path, self._ends, max(first, self._first + count), self._read, first)
        number = self._first + range(len(self))[place]
        return next(self._lines(number, number + 1))

    def __iter__(self) -> Iterator[Line]:
        return self._lines(self._first, self._count)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Sequence):
            return NotImplemented
        return len(self) == len(other) and all(mine == theirs for mine, theirs in zip(self, other))

    __hash__ = None  # type: ignore[assignment]

    def _lines(self, first: int, stop: int) -> Iterator[Line]:
        if first == stop:
            return
        begin = self._ends[first - 1] if first else 0
        try:
            with self._path.open("rb") as file:
                file.seek(begin)
                for number in range(first, stop):
                    yield self._read(file.read(self._ends[number] - (self._ends[number - 1] if number else 0)))
        except (OSError, ValueError) as error:
            raise ShoalError(self._path, CHANGED) from error
