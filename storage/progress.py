"""Progress of long steps, such as reading and partitioning, reported to a watcher if there is one."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from contextvars import ContextVar

Advance = Callable[[int], None]
Watcher = Callable[[str, int, str, int], AbstractContextManager[Advance]]


def _no_watcher(what: str, total: int, unit: str, done: int) -> AbstractContextManager[Advance]:
    return nullcontext(lambda count: None)


_watcher: ContextVar[Watcher] = ContextVar("watcher", default=_no_watcher)


@contextmanager
def watched_by(watcher: Watcher) -> Iterator[None]:
    """Reports all steps inside the block to `watcher`."""
    token = _watcher.set(watcher)
    try:
        yield
    finally:
        _watcher.reset(token)


def step(what: str, total: int, unit: str, done: int = 0) -> AbstractContextManager[Advance]:
    """Begins a step of `total` units, `done` of them already done; gives a function that adds to the units done."""
    return _watcher.get()(what, total, unit, done)
