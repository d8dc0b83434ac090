"""Threads for compiled loops, which let go of the interpreter's lock; their number changes no result."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TypeVar

import numpy as np

Item = TypeVar("Item")
Result = TypeVar("Result")
Spread = Callable[[Callable[[Item], Result], Sequence[Item]], Iterable[Result]]

# Fewer entries are sooner done by one thread than handed to several.
FEW = 1 << 13
# Work that is spread asks for so many threads; a thread that does a part of it has one.
_count: ContextVar[int] = ContextVar("count", default=1)


@contextmanager
def threads(count: int) -> Iterator[None]:
    """Lets work inside of the block use so many threads."""
    token = _count.set(count)
    try:
        yield
    finally:
        _count.reset(token)


def thread_count() -> int:
    """Returns the number of threads that work may use."""
    return _count.get()


@contextmanager
def spread() -> Iterator[Spread]:
    """Gives a function like `map`, of items that threads work on at the same time; results come in their order."""
    if (count := _count.get()) == 1:
        yield map
        return
    with ThreadPoolExecutor(count) as pool:
        yield lambda work, items: map(work, items) if len(items) == 1 else pool.map(work, items)


def shares(indptr: np.ndarray, low: int, high: int) -> list[tuple[int, int]]:
    """Divides rows `low` to `high` of a CSR between threads, into ranges of about as many entries."""
    entries, count = int(indptr[high] - indptr[low]), _count.get()
    if count == 1 or entries < FEW:
        return [(low, high)]
    inner = indptr[low] + entries * np.arange(1, count) // count
    cuts = [low, *np.clip(np.searchsorted(indptr, inner), low, high).tolist(), high]
    return [(first, end) for first, end in zip(cuts, cuts[1:]) if first < end]


def ahead(items: Iterator[Item]) -> Iterator[Item]:
    """Yields items, of which a second thread takes the next one while the caller uses this one."""
    if _count.get() == 1:
        yield from items
        return
    end = object()
    with ThreadPoolExecutor(1) as pool:
        following = pool.submit(next, items, end)
        while (item := following.result()) is not end:
            following = pool.submit(next, items, end)
            yield item  # type: ignore[misc]
