"""Threads for compiled loops, which let go of the interpreter's lock; their number changes no result."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from contextvars import ContextVar, copy_context
from itertools import islice, pairwise
from typing import Any, TypeVar

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
    return [(first, end) for first, end in pairwise(cuts) if first < end]


def spread_rows(
    on_threads: Spread, indptr: np.ndarray, low: int, high: int, work: Callable[..., None], *args: Any
) -> None:
    """Calls `work(first, end, *args)` for shares of the rows `low` to `high` of a CSR, and waits for all of them."""
    for _ in on_threads(lambda rows: work(*rows, *args), shares(indptr, low, high)):
        pass


def ahead(items: Iterator[Item]) -> Iterator[Item]:
    """Yields items, of which a second thread takes the next one while the caller uses this one."""
    if _count.get() == 1:
        yield from items
        return
    # A signal would wait for what a thread does: the first item may take as long as all others together. Of one or two
    # items, the start of a thread would take longer.
    yield from islice(items, 2)
    with ThreadPoolExecutor(1) as pool:
        following = list(islice(items, 1))
        while following:
            later = pool.submit(copy_context().run, lambda: list(islice(items, 1)))
            yield from following
            following = later.result()


def batches(items: Sequence[Item]) -> Iterator[Sequence[Item]]:
    """Cuts items, in order, into as many at a time as there may be threads."""
    yield from (items[first : first + _count.get()] for first in range(0, len(items), _count.get()))
