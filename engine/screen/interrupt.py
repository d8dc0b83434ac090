"""Ctrl-C, SIGTERM, SIGHUP: a run at work ends with its round; everything else, and a second signal, ends at once."""

import os
import signal
import sys
import threading
from collections.abc import Collection, Iterator
from contextlib import contextmanager, suppress
from types import FrameType

import psutil

from shoal.engine.records.at_work import end_process
from shoal.storage.files.places import remove_temporary
from shoal.storage.parent import ends_with

# This variable names the process that a command is a part of.
PARENT = "SHOAL_PARENT"
SHOW_CURSOR = "\x1b[?25h"
# A command that a signal ends at once ends with these lines.
_last: list[str] = []


class Interrupted(KeyboardInterrupt):
    """The end of a run on request, by a signal of this number; SIGINT if its time was over."""

    def __init__(self, number: int = signal.SIGINT) -> None:
        super().__init__()
        self.number = number


class Interrupt:
    """A request to stop, by the user or by a cluster that sends SIGTERM: whether there was one, and by which signal."""

    asked = False
    number: int = signal.SIGINT

    def require_none(self) -> None:
        """Raises Interrupted: there was one. Every run of a study ends with this, so that no further run begins."""
        if self.asked:
            raise Interrupted(self.number)


def _ending() -> list[signal.Signals]:
    """Returns the signals that end a command; under `nohup` it goes on without its terminal."""
    gone = [] if signal.getsignal(signal.SIGHUP) == signal.SIG_IGN else [signal.SIGHUP]
    return [signal.SIGINT, signal.SIGTERM, *gone]


@contextmanager
def graceful() -> Iterator[Interrupt]:
    """Listens for signals while a run is at work."""
    interrupt = Interrupt()
    if threading.current_thread() is not threading.main_thread():
        # Python lets no other thread listen, so that signals reach the main thread alone.
        yield interrupt
        return

    def stop(number: int, frame: FrameType | None) -> None:
        if interrupt.asked:
            earlier = before[signal.Signals(number)]
            if callable(earlier):
                earlier(number, frame)
            raise Interrupted(number)
        interrupt.asked, interrupt.number = True, number
        _print("stopping after this round; press again to stop now")

    before = {number: signal.getsignal(number) for number in _ending()}
    for handled in before:
        signal.signal(handled, stop)
    try:
        yield interrupt
    finally:
        for handled, earlier in before.items():
            signal.signal(handled, earlier)


@contextmanager
def says_last(line: str) -> Iterator[None]:
    """Prints a line at the end of the command if a signal ends it inside of the block."""
    _last.append(line)
    try:
        yield
    finally:
        _last.remove(line)


def listen() -> None:
    """Makes a signal end this process and its children immediately; runs can be resumed from written files.

    No exception is thrown into the code at work, since compiled code may not survive one.
    """
    for number in _ending():
        signal.signal(number, lambda number, frame: end_now(number))


def end_with_parent() -> None:
    """Makes a command that another one started stop when that one ends, in whatever way."""
    parent = os.environ.pop(PARENT, None)
    if parent is not None and not ends_with(int(parent), signal.SIGTERM):
        end_now(signal.SIGTERM)


def listen_no_more() -> None:
    """Ignores signals at the end of a command, so that nothing comes between it and its status."""
    for number in _ending():
        signal.signal(number, signal.SIG_IGN)


def end_now(number: int) -> None:
    """Ends all child processes and this one, with status 128 plus the number of the signal."""
    listen_no_more()
    if sys.stderr is not None and sys.stderr.isatty():
        # The line comes below a bar, and below the key that the terminal shows.
        _print(f"{SHOW_CURSOR}\n", end="")
    _print("\n".join(["stopped", *_last]))
    end_children()
    end_process(128 + number)


def end_children(spared: Collection[int] = ()) -> None:
    """Kills every process that this one started, and those that they started; removes their temporary folders.

    Children of this process whose numbers are `spared` go on.
    """
    # Processes are stopped first, so that none starts another one after they are counted.
    stopped: dict[int, psutil.Process] = {}
    while new := [child for child in _children(spared) if child.pid not in stopped]:
        for child in new:
            stopped[child.pid] = child
            with suppress(psutil.Error):
                child.send_signal(signal.SIGSTOP)
    for child in stopped.values():
        with suppress(psutil.Error):
            child.kill()
    remove_temporary()


def _children(spared: Collection[int] = ()) -> list[psutil.Process]:
    kept = set(spared)
    for number in spared:
        with suppress(psutil.Error):
            kept |= {child.pid for child in psutil.Process(number).children(recursive=True)}
    with suppress(psutil.Error):
        return [child for child in psutil.Process().children(recursive=True) if child.pid not in kept]
    return []


def _print(text: str, end: str = "\n") -> None:
    """Prints a line within a signal handler, by the system, since the streams of Python may be at work."""
    # Python has None for a stream that was closed when the process began.
    with suppress(OSError, ValueError, AttributeError):
        os.write(sys.stderr.fileno(), (text + end).encode())
