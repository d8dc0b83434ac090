"""Progress of a long step: a bar on a terminal or in a notebook, plain lines elsewhere."""

import importlib.util
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from shoal.storage.progress import Advance

# Brackets and colons in a name or path are what they are, no markup.
PLAIN: Any = {"markup": False, "emoji": False}
console = Console(stderr=True, **PLAIN)
SECONDS_BETWEEN_LINES = 5.0


def shows_bars() -> bool:
    """Whether bars can be shown: on a terminal, or in a notebook with widgets."""
    return console.is_terminal or (console.is_jupyter and importlib.util.find_spec("ipywidgets") is not None)


class Step:
    """A long step of known length."""

    def __init__(self, what: str, total: int, unit: str, bar: Progress | None, done: int = 0) -> None:
        """Starts at `done` of `total`."""
        self._what, self._total, self._unit, self._bar = what, total, unit, bar
        self._first = self._done = done
        self._began = self._shown = time.monotonic()
        self._task = bar.add_task(what, total=total, completed=done, rate="") if bar else None

    def advance(self, count: int = 1) -> None:
        """So many more are done."""
        if not count:
            return
        self._done += count
        now = time.monotonic()
        rate = (self._done - self._first) / max(now - self._began, 1e-9)
        if self._bar is not None and self._task is not None:
            self._bar.update(self._task, completed=self._done, rate=f"{_short(rate)} {self._unit}/s")
        elif now - self._shown >= SECONDS_BETWEEN_LINES or self._done == self._total:
            self._shown = now
            left = (self._total - self._done) / max(rate, 1e-9)
            print(
                f"{self._what}: {self._done}/{self._total} {self._unit}, {_short(rate)}/s, {left:.0f} s left",
                file=sys.stderr,
                flush=True,
            )


@contextmanager
def progress(what: str, total: int, unit: str, done: int = 0) -> Iterator[Step]:
    """Shows a step while it runs, with its rate and the time left."""
    if not shows_bars():
        yield Step(what, total, unit, None, done)
        return
    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[rate]}", markup=False),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=console) as bar:
        yield Step(what, total, unit, bar, done)


@contextmanager
def watch(what: str, total: int, unit: str, done: int) -> Iterator[Advance]:
    """Shows a step of reading or partitioning; see `shoal.storage.progress`."""
    with progress(what, total, unit, done) as step:
        yield step.advance


def _short(rate: float) -> str:
    return f"{rate:.1f}" if rate < 1000 else f"{rate:,.0f}"


def say(line: str) -> None:
    """Prints one line on standard error."""
    console.print(line, highlight=False, soft_wrap=True)
