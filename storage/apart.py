"""What stays in memory, made apart from what comes and goes, and what is wanted soon, made meanwhile."""

import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from functools import cache
from typing import TypeVar

T = TypeVar("T")
NAME = "keeper"


def apart(make: Callable[[], T]) -> T:
    """Makes something in the process's keeper thread, whose memory glibc takes from elsewhere, and waits for it.

    A step of training allocates and frees blocks of megabytes. A small block that stays, placed between them, splits
    the hole they leave, and the next step takes new memory: without this, a client's first visit costs some such blocks
    for ever, and their page faults.
    """
    if threading.current_thread().name.startswith(NAME):
        return make()
    return _keeper(NAME).submit(make).result()


def ahead(make: Callable[[], T]) -> "Future[T]":
    """Begins to make something apart, in a thread that nobody waits for before its result is asked."""
    return _keeper(f"{NAME}-ahead").submit(make)


@cache
def _keeper(name: str) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(1, thread_name_prefix=name)
