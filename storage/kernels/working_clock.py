"""A clock of work: it stands still while numba makes a kernel ready, which its first call in a process waits for."""

import time

from numba.core import event


class _Kernels(event.Listener):
    """Seconds in which kernels were compiled, or loaded as compiled before, in this process."""

    def __init__(self) -> None:
        self.seconds, self._began, self._depth = 0.0, 0.0, 0

    def on_start(self, event: event.Event) -> None:
        """One begins; it may need others."""
        if not self._depth:
            self._began = time.perf_counter()
        self._depth += 1

    def on_end(self, event: event.Event) -> None:
        """One is ready."""
        self._depth -= 1
        if not self._depth:
            self.seconds += time.perf_counter() - self._began


_kernels = _Kernels()
# Held from the look for a compiled kernel to its end.
event.register("numba:compiler_lock", _kernels)


def seconds_of_kernels() -> float:
    """Seconds in which this process made kernels ready so far."""
    return _kernels.seconds


def working_clock() -> float:
    """Seconds, of which only differences mean anything, without those of `seconds_of_kernels`."""
    return time.perf_counter() - _kernels.seconds
