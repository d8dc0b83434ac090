"""A run while it is at work: two bars on a terminal, plain lines elsewhere."""

import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from statistics import fmean
from typing import Any

from rich.console import Console, ConsoleOptions, RenderResult
from rich.measure import Measurement
from rich.progress import BarColumn, MofNCompleteColumn, Progress, ProgressColumn, Task, TextColumn, TimeRemainingColumn
from rich.table import Column
from rich.text import Text

from shoal.engine.config.sections import ACCURACY, EVALUATED
from shoal.engine.config.sizes import size
from shoal.engine.records.summary import FIRST_SCOPE, SAMPLED, chosen, metric_of, name_metric
from shoal.engine.rounds.costs import Live
from shoal.engine.screen.progress import SECONDS_BETWEEN_LINES, console, shows_bars, standing

LONGEST_NAME = 20
# Lines about kernels have so many times the seconds between them that others have.
RARER = 4
COMPILING = "compiling kernels, once per machine"


class AsRoomAllows:
    """A note that shows as many of its parts, from the first, as a line has room for; none is cut."""

    def __init__(self, parts: Sequence[str]) -> None:
        self._parts = [part for part in parts if part]

    def __rich_measure__(self, console: Console, options: ConsoleOptions) -> Measurement:
        return Measurement(0, min(len(", ".join(self._parts)), options.max_width))

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        shown = list(self._parts)
        while shown and len(", ".join(shown)) > options.max_width:
            shown.pop()
        yield Text(", ".join(shown), no_wrap=True)


class _NoteColumn(ProgressColumn):
    """The field `note` of a task, in the room that the other columns leave."""

    def get_table_column(self) -> Column:
        return Column(no_wrap=False)

    def render(self, task: Task) -> AsRoomAllows:
        return AsRoomAllows(task.fields["note"])


def columns() -> tuple[ProgressColumn, ...]:
    """Makes the columns of both bars: name, bar, count, time left, and notes as there is room, accuracy first."""
    return (
        TextColumn("{task.description}", markup=False),
        BarColumn(bar_width=12),
        MofNCompleteColumn(),
        TimeRemainingColumn(compact=True),
        _NoteColumn(),
    )


class LiveView:
    """A view of a run at work: rounds and clients done, their rate, bytes, hosts, retries, time left."""

    def __init__(
        self, name: str, rounds: int, done: int, bars: Progress | None, of_study: bool = False, first: str = FIRST_SCOPE
    ) -> None:
        """Starts after `done` of `rounds`; the end of a run `of_study` is a line of the study.

        The score of the scope `first` stands before all others.
        """
        self._name, self._rounds, self._bars, self._of_study, self._first_scope = name, rounds, bars, of_study, first
        self._shown = time.monotonic()
        self._retries = 0
        # The number of the newest kernel, and what it was when visits last went on; since when there are newer ones.
        self._kernels, self._kernels_before, self._kernels_began = 0, 0, 0.0
        self._kernels_shown = False
        self._at: tuple[int, bool, int] | None = None
        if bars is not None:
            short = name if len(name) <= LONGEST_NAME else f"{name[: LONGEST_NAME - 1]}…"
            self._run = bars.add_task(short, total=rounds, completed=done, note=())
            self._round = bars.add_task("", total=None, note=())
        self.back_to(done)

    def watch(self, live: Live) -> None:
        """Shows a round that is on its way, or the kernels that it waits for."""
        if (at := (live.round, live.scored, live.visits)) != self._at:
            self._at, self._kernels_before, self._kernels_began = at, self._kernels, 0.0
            self._kernels_shown = False
        number, kernel = live.kernel
        self._kernels = max(self._kernels, number)
        if number > self._kernels_before:
            self._show_kernel(number, kernel)
            return
        if not live.visits:
            self._round_began = time.monotonic()
        if self._bars is None and not self._due():
            return
        rate = f"{live.visits / max(time.monotonic() - self._round_began, 1e-9):.1f} clients/s"
        traffic = _traffic(live.bytes_up, live.bytes_down, live.hosts, self._retries + live.retries)
        if self._bars is not None:
            self._bars.update(
                self._round,
                description=f"round {live.round}" + (", scores" if live.scored else ""),
                completed=live.visits,
                total=live.expected,
                note=(rate, *traffic),
            )
        else:
            did = "clients scored" if live.scored else "clients"
            self._print(f"round {live.round}: {live.visits}/{live.expected} {did}, {', '.join((rate, *traffic))}")

    def _show_kernel(self, number: int, kernel: str) -> None:
        now = time.monotonic()
        self._kernels_began = self._kernels_began or now
        if self._bars is not None:
            self._bars.update(self._round, description=COMPILING, completed=number, total=None, note=(kernel,))
        elif self._due(RARER if self._kernels_shown else 1):
            self._kernels_shown = True
            self._print(f"{COMPILING}: number {number}, {kernel}, {now - self._kernels_began:.0f} s")

    def advance(self, line: dict[str, Any]) -> None:
        """Shows that a round is done; `line` is its line of metrics."""
        self._done = line["round"]
        self._retries += line["retries"]
        self._round_began = now = time.monotonic()
        rate = (self._done - self._first) / max(now - self._began, 1e-9)
        visits = f"{len(line['cohort'])} clients, {len(line['cohort']) / max(line['seconds']['round'], 1e-9):.1f}/s"
        hosts = (line["hosts"]["alive"], line["hosts"]["of"])
        traffic = _traffic(line["bytes_up"], line["bytes_down"], hosts, self._retries)
        if busy := line["hosts"].get("busy"):
            traffic.append(f"{100 * fmean(busy.values()):.0f} % busy")
        if self._bars is not None:
            self._bars.update(
                self._run, completed=self._done, note=(*_results_of(line, self._first_scope), f"{rate:.1f} rounds/s")
            )
            clients = len(line["cohort"])
            self._bars.update(
                self._round,
                description=f"round {self._done}",
                completed=clients,
                total=clients,
                note=(visits, *traffic),
            )
        elif self._due() or (self._done == self._rounds and not self._of_study):
            left = (self._rounds - self._done) / rate
            self._print(
                f"{self._done}/{self._rounds} rounds, {rate:.1f}/s, {left:.0f} s left, "
                f"{', '.join((*_results_of(line, self._first_scope), visits, *traffic))}"
            )

    def back_to(self, done: int) -> None:
        """Sets the view to so many rounds: the run starts, or rounds were lost with the server."""
        self._first = self._done = done
        self._began = self._round_began = time.monotonic()
        if self._bars is not None:
            self._bars.update(self._run, completed=done)

    def _due(self, times: int = 1) -> bool:
        return time.monotonic() - self._shown >= times * SECONDS_BETWEEN_LINES

    def _print(self, text: str) -> None:
        self._shown = time.monotonic()
        print(f"{self._name}: {text}", file=sys.stderr, flush=True)


@contextmanager
def live_view(
    name: str, rounds: int, done: int, of_study: bool = False, first: str = FIRST_SCOPE
) -> Iterator[LiveView]:
    """Shows a run while it is at work."""
    if not shows_bars():
        yield LiveView(name, rounds, done, None, of_study, first)
        return
    bars = Progress(*columns(), console=console)
    with standing(bars.get_renderable):
        yield LiveView(name, rounds, done, bars, first=first)


def _traffic(up: int, down: int, hosts: tuple[int, int], retries: int) -> list[str]:
    at_work, count = hosts
    busy = [] if at_work == count == 1 else [f"{at_work} of {count} hosts"]
    lost = [] if not retries else ["1 retry"] if retries == 1 else [f"{retries} retries"]
    return [f"{size(up)} up", f"{size(down)} down", *busy, *lost]


def _results_of(line: dict[str, Any], first: str) -> list[str]:
    """Returns the results of a round in words: accuracies, the loss, and notes of the method."""
    parts = []
    scopes = line.get("scopes", {})
    for scope in sorted(scopes, key=lambda scope: scope != first):
        numbers = scopes[scope]
        if "val" in numbers:
            value, metric = chosen(numbers["val"], scope), metric_of(numbers["val"])
            name = f"{scope} val" if metric == ACCURACY else f"{scope} val {name_metric(metric)}"
            mark = SAMPLED if EVALUATED in line else ""
            parts.append(f"{name} -" if value is None else f"{name} {100 * value:.1f}{mark} %")
    parts += [] if line["loss"] is None else [f"loss {line['loss']:.3f}"]
    return parts + [f"{name} {value:.2f}" for name, value in line.get("notes", {}).items() if value is not None]
