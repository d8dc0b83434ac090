"""How far the long steps of reading and partitioning are, told to whoever watches."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from contextvars import ContextVar

Advance = Callable[[int], None]
Watcher = Callable[[str, int, str, int], AbstractContextManager[Advance]]


def _nobody(what: str, total: int, unit: str, done: int) -> AbstractContextManager[Advance]:
    return nullcontext(lambda count: None)


_watcher: ContextVar[Watcher] = ContextVar("watcher", default=_nobody)


@contextmanager
def watched_by(watcher: Watcher) -> Iterator[None]:
    """Tells `watcher` of all steps inside the block."""
    token = _watcher.set(watcher)
    try:
        yield
    finally:
        _watcher.reset(token)


def step(what: str, total: int, unit: str, done: int = 0) -> AbstractContextManager[Advance]:
    """A step of `total` units of which `done` are done; gives a function to call with each further number done."""
    return _watcher.get()(what, total, unit, done)
