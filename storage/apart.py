"""Making things in a thread of their own: those that stay in memory, and those that are needed soon."""

import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from functools import cache
from typing import TypeVar

T = TypeVar("T")
NAME = "keeper"


def apart(make: Callable[[], T]) -> T:
    """Makes something that stays in memory, in the process's keeper thread, and waits for it.

    A step of training allocates and frees blocks of megabytes. If a small block that stays is placed between them, the
    free space that they leave is split, and the next step needs new memory. A thread of its own has a heap of its own
    in glibc. Without this, a client's first visit makes the process some such blocks larger, with their page faults.
    """
    if threading.current_thread().name.startswith(NAME):
        return make()
    return _keeper(NAME).submit(make).result()


def ahead(make: Callable[[], T]) -> "Future[T]":
    """Begins to make something in a second such thread; only the result's `result()` waits for it."""
    return _keeper(f"{NAME}-ahead").submit(make)


@cache
def _keeper(name: str) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(1, thread_name_prefix=name)
