"""Memory of a process and of what it starts, for benchmarks."""

import threading

from shoal.engine.hosts.device import tree_memory


class Peak:
    """Most memory of this process and its children while the block runs, in bytes beyond that at its start.

    It is the sum of proportional set sizes: a page that a fork shares with its parent counts once. A peak of this
    process alone, as `getrusage` or `VmHWM` have it, leaves out METIS, which works in a fork.

    Attributes:
        start: Bytes at the start.
        highest: Most bytes of all samples.
        bytes: `highest` less `start`, after the block.
    """

    def __init__(self, seconds: float = 0.005) -> None:
        """Takes a sample every `seconds`, beside the time that a sample itself takes."""
        self._seconds, self._done = seconds, threading.Event()
        self._thread = threading.Thread(target=self._watch)

    def __enter__(self) -> "Peak":
        self.start = self.highest = tree_memory()
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._done.set()
        self._thread.join()
        self.bytes = self.highest - self.start

    def _watch(self) -> None:
        while not self._done.wait(self._seconds):
            self.highest = max(self.highest, tree_memory())
