"""Memory of this process and all its descendants, Ray's included."""

import ctypes
import os
import threading
import time

import psutil

MOST_OF_A_CORE = 0.01
M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3  # of glibc's malloc.h
KEPT, LARGEST_KEPT = 2**28, 2**25


class PeakMemory:
    """Samples the memory of a process tree in the background.

    Attributes:
        peak: Largest sum so far, in bytes: proportional set size, so that shared pages count once.
    """

    def __init__(self, seconds: float = 2.0) -> None:
        """Starts sampling every `seconds`, or less often where a sample takes long: a look at every mapped page."""
        self.peak = 0
        self._seconds = seconds
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()

    def _watch(self) -> None:
        while not self._stop.is_set():
            began = time.perf_counter()
            self.peak = max(self.peak, tree_memory())
            self._stop.wait(max(self._seconds, (time.perf_counter() - began) / MOST_OF_A_CORE))

    def stop(self) -> int:
        """Takes a last sample, the first time, and returns the peak, in bytes."""
        if self._stop.is_set():
            return self.peak
        self._stop.set()
        self._thread.join()
        self.peak = max(self.peak, tree_memory())
        return self.peak


def keep_freed_memory() -> None:
    """Lets this process keep 256 MiB of freed memory, in pieces of up to 32 MiB; does nothing without glibc.

    What a step of training frees, the next one takes again. By itself glibc hands it back to the system in between, and
    every step has a page fault for every 4 KiB.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(M_TRIM_THRESHOLD, KEPT)
        mallopt(M_MMAP_THRESHOLD, LARGEST_KEPT)


def resident() -> int:
    """Bytes that this process has in memory, mapped files included."""
    return psutil.Process().memory_info().rss


def tree_memory() -> int:
    """Proportional set size of this process and its descendants, in bytes."""
    me = psutil.Process(os.getpid())
    total = 0
    for process in [me, *me.children(recursive=True)]:
        try:
            total += process.memory_full_info().pss
        except (psutil.NoSuchProcess, psutil.AccessDenied, AttributeError):
            continue
    return total
