"""Ctrl-C: the first one ends the run after the round at work, the second one at once."""

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

from engine.screen.progress import say


class Interrupt:
    """Whether the user, or a cluster that sends SIGTERM, asked the run to stop."""

    asked = False


@contextmanager
def graceful() -> Iterator[Interrupt]:
    """Listens for SIGINT and SIGTERM while a run is at work."""
    interrupt = Interrupt()

    def stop(number: int, frame: FrameType | None) -> None:
        if interrupt.asked:
            raise KeyboardInterrupt
        interrupt.asked = True
        say("stopping after this round; once more to stop at once")

    before = {number: signal.signal(number, stop) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield interrupt
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
