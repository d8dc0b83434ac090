"""Progress of a long step: a bar on a terminal or in a notebook, plain lines elsewhere."""

import importlib.util
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext

from rich.console import Group, RenderableType
from rich.live import Live
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from shoal.engine.screen.output import Console
from shoal.storage.progress import Advance

console = Console(stderr=True)
SECONDS_BETWEEN_LINES = 5.0
# A step inside of a step is shown after so many seconds.
SECONDS_OF_INNER_STEP = 1.0
# These parts stand at the foot of the terminal, the outermost first.
_standing: list[Callable[[], RenderableType]] = []
_steps: list["Step"] = []


def shows_bars() -> bool:
    """Returns whether bars can be shown: on a terminal, or in a notebook with widgets."""
    return console.is_terminal or (console.is_jupyter and importlib.util.find_spec("ipywidgets") is not None)


@contextmanager
def standing(part: Callable[[], RenderableType], stays: bool = True) -> Iterator[None]:
    """Shows a part at the foot of the terminal inside of the block, below those that stand there.

    After the block the first part stays, unless `stays` is false; a part below another one goes.
    """
    _standing.append(part)
    try:
        if len(_standing) > 1:
            yield
            return
        everything = lambda: Group(*(make() for make in _standing))  # noqa: E731
        with Live(console=console, get_renderable=everything, refresh_per_second=10, transient=not stays):
            yield
    finally:
        _standing.remove(part)


class Step:
    """A long step of known length."""

    def __init__(self, what: str, total: int, unit: str, bar: Progress | None, done: int = 0, inner: bool = False):
        """Starts at `done` of `total`; an `inner` one, a part of another, is shown only if it takes long."""
        self._what, self._total, self._unit, self.bar, self._inner = what, total, unit, bar, inner
        self._first = self._done = done
        self._began = self._shown = time.monotonic()
        self._task = bar.add_task(what, total=total, completed=done, rate="") if bar and not inner else None

    def advance(self, count: int = 1) -> None:
        """Notes that `count` more are done."""
        if not count:
            return
        self._done += count
        now = time.monotonic()
        rate = (self._done - self._first) / max(now - self._began, 1e-9)
        if self.bar is not None:
            if self._task is None and now - self._began > SECONDS_OF_INNER_STEP:
                self._task = self.bar.add_task(f"  {self._what}", total=self._total, rate="")
            if self._task is not None:
                self.bar.update(self._task, completed=self._done, rate=f"{_short(rate)} {self._unit}/s")
        elif now - self._shown >= SECONDS_BETWEEN_LINES or (self._done == self._total and not self._inner):
            self._shown = now
            left = (self._total - self._done) / max(rate, 1e-9)
            print(
                f"{self._what}: {self._done}/{self._total} {self._unit}, {_short(rate)}/s, {left:.0f} s left",
                file=sys.stderr,
                flush=True,
            )

    def end(self) -> None:
        """Ends the step: its bar is full; that of an inner step goes."""
        if self.bar is not None and self._task is not None:
            if self._inner:
                self.bar.remove_task(self._task)
            else:
                self.bar.update(self._task, completed=self._total)


@contextmanager
def progress(what: str, total: int, unit: str, done: int = 0) -> Iterator[Step]:
    """Shows a step while it runs, with its rate and the time left; one inside of another shares its place."""
    outer = _steps[0] if _steps else None
    bar = outer.bar if outer else _bar() if shows_bars() else None
    step = Step(what, total, unit, bar, done, outer is not None)
    _steps.append(step)
    try:
        with nullcontext() if outer or bar is None else standing(bar.get_renderable):
            yield step
            step.end()
    finally:
        _steps.remove(step)


def _bar() -> Progress:
    return Progress(
        TextColumn("{task.description}", markup=False),
        BarColumn(bar_width=20),
        MofNCompleteColumn(),
        TextColumn("{task.fields[rate]}", markup=False),
        TimeRemainingColumn(compact=True),
        console=console,
    )


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
