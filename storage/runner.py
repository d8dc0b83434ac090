"""Work on many items: here, one after another, or where a choice of runners is set, spread over processes."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

Item = TypeVar("Item")
Result = TypeVar("Result")
# Gives the result of every item of a group, in their order. A file appears whole or not at all, with the same bytes
# each time: a group that was lost is worked on again, maybe beside the first who still works on it.
Work = Callable[[Any, Sequence[Item]], Iterable[Result]]


@dataclass(frozen=True)
class Room:
    """A limit on the groups that are worked on at a time, and on the bytes of memory of each."""

    groups: int
    memory: int


class Runner:
    """Works on groups of items in this process, one after another."""

    def room(self, least: int, limit: int, on_a_machine: int | None = None) -> Room:
        """Returns the room for groups that take `least` bytes or more; here `limit` bytes, elsewhere those of machines.

        At most so many groups are worked on `on_a_machine` at a time.
        """
        return Room(1, limit)

    def results(
        self, work: Work[Item, Result], given: Any, groups: Sequence[Sequence[Item]], memory: int, ordered: bool = False
    ) -> Iterator[tuple[Item, Result]]:
        """Yields every item with its result as it is there, of groups that take `memory` bytes each; work may raise.

        `given` goes to all processes, once each. With `ordered`, results come in the order of the groups.
        """
        for group in groups:
            yield from zip(group, work(given, group), strict=True)


HERE = Runner()
Choice = Callable[[int, Path, Sequence[Path]], Runner]
_choice: ContextVar[Choice] = ContextVar("choice", default=lambda size, folder, files: HERE)


@contextmanager
def run_by(choice: Choice) -> Iterator[None]:
    """Lets `choice` take the runner of all work inside of the block."""
    token = _choice.set(choice)
    try:
        yield
    finally:
        _choice.reset(token)


def runner(size: int, folder: Path, files: Sequence[Path] = ()) -> Runner:
    """Returns the runner for work on `size` bytes, which writes into `folder` and maps `files`."""
    return _choice.get()(size, folder, files)


def parts(items: Sequence[Item], groups: int) -> list[Sequence[Item]]:
    """Divides items, in order, into groups of one size, at most, for each of the `groups` that run at a time."""
    size = max(1, -(-len(items) // (PARTS * groups)))
    return [items[first : first + size] for first in range(0, len(items), size)]


PARTS = 4
