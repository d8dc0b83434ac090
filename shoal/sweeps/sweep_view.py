"""A sweep while it is at work: a table of its combinations that fills on a terminal, a line for each run elsewhere."""

import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from statistics import fmean

from rich.text import Text

from shoal.engine.config.names import shown_name
from shoal.engine.screen import progress
from shoal.engine.screen.output import Table
from shoal.engine.screen.progress import say, shows_bars, standing
from shoal.study.groups import Key, Row, group_runs, others_of, varied_in
from shoal.study.main_score import MainScore
from shoal.study.plain_names import key_names, value_names, with_value
from shoal.study.study import is_seed

FINISHED, FAILED, WAITING, NOT_CHOSEN = "finished", "failed", "waiting", "not chosen"
# So many lines of a terminal are left to bars, heads and notes around the table.
OTHER_LINES = 8


class SweepView:
    """The progress of the runs of a sweep, and the time to expect; `rows` change as runs finish."""

    def __init__(self, rows: Sequence[Row], runs: int, at_once: int = 1, quiet: bool = False) -> None:
        """Makes a view in which `runs` of the rows will run; others are not chosen. `quiet` omits lines of runs."""
        self._rows, self._runs, self._at_once, self._quiet = rows, runs, at_once, quiet
        self._varied = list(varied_in(rows))
        self._names = key_names(self._varied)
        self._running: dict[int, float] = {}
        # Seconds of finished runs, by the columns that repetitions share.
        self._took: dict[Key, list[float]] = {}
        for row in rows:
            if "seconds.rounds" in row.figures:
                self._took.setdefault(others_of(row), []).append(row.figures["seconds.rounds"])

    def label(self, place: int) -> str:
        """Returns the values of a run, of the keys that vary, in a line; the name of a run without any."""
        columns = self._rows[place].columns
        texts = (with_value(self._names[key], _value(key, columns)) for key in self._varied if key in columns)
        return ", ".join(texts) or self._rows[place].run

    def begin(self, place: int) -> None:
        """Notes that a run is at work; its store is prepared."""
        self._running[place] = time.monotonic()

    def end(self, place: int) -> None:
        """Notes that a run is over; prints a line that says so if no table does, or why it failed."""
        row, began = self._rows[place], self._running.pop(place, None)
        seconds = row.figures.get("seconds.rounds", 0.0) if began is None else time.monotonic() - began
        if row.state == FINISHED:
            self._took.setdefault(others_of(row), []).append(seconds)
        if self._quiet:
            return
        if row.state == FAILED:
            say(f"{self._done()} {self.label(place)}: failed: {row.error}")
        elif not shows_bars():
            say(f"{self._done()} {self.label(place)}: {_score([row])} %, {span(seconds)}{self._left()}")

    def put_off(self, place: int) -> None:
        """Notes that a run has not begun, since another process is at work on it."""
        self._running.pop(place, None)

    @contextmanager
    def show(self) -> Iterator[None]:
        """Shows the table on a terminal as long as the sweep is at work."""
        if not shows_bars():
            yield
            return
        with standing(self.table, stays=False):
            yield

    def seconds_left(self) -> float | None:
        """Estimates the seconds of the runs to come, without preparing; None before the first run is finished."""
        every = [seconds for several in self._took.values() for seconds in several]
        if not every:
            return None

        def estimate(row: Row) -> float:
            return fmean(self._took.get(others_of(row), every))

        counts, now, running = self._counts(), time.monotonic(), list(self._running.items())
        waiting = [estimate(row) for place, row in enumerate(self._rows) if self._waits(place)]
        to_run = self._runs - counts[FINISHED] - counts[FAILED] - len(running)
        of_running = (estimate(self._rows[place]) - (now - began) for place, began in running)
        ahead = to_run * fmean(waiting) if waiting else 0.0
        return (ahead + sum(max(seconds, 0.0) for seconds in of_running)) / self._at_once

    def table(self) -> Table:
        """Makes a row for each combination, as many as the terminal has room for, those at work among them."""
        # Another thread draws the table while runs finish, so that it takes copies.
        rows, running = list(self._rows), list(self._running)
        groups = group_runs([row for row in rows if row.state != NOT_CHOSEN])
        at_work = [any(rows[place] in group.rows for place in running) for group in groups]
        room = max(progress.console.height - OTHER_LINES, 3)
        first = max(0, min(at_work.index(True) - room // 2 if True in at_work else len(groups), len(groups) - room))
        keys = [key for key in self._varied if not is_seed(key)]
        counts = self._counts()
        done = f"{counts[FINISHED] + counts[FAILED]} of {self._runs} runs done{self._left()}"
        above = f"{first} combinations above" if first else ""
        below = f"{len(groups) - first - room} below" if first + room < len(groups) else ""
        table = Table(
            box=None, padding=(0, 2, 0, 0), pad_edge=False, caption_justify="left",
            caption=Text("; ".join(part for part in (done, above, below) if part)),
        )  # fmt: skip
        for key in keys:
            table.add_column(Text(self._names[key]), overflow="fold")
        for head in ("test (%)", "seconds"):
            table.add_column(head, justify="right", no_wrap=True)
        table.add_column("runs", no_wrap=True)
        for group, works in list(zip(groups, at_work))[first : first + room]:
            seconds = self._took.get(others_of(group.rows[0]), [])
            cells = [_value(key, group.columns) for key in keys]
            cells += [_score(group.rows), f"{fmean(seconds):.0f}" if seconds else "-", _state(group.rows, works)]
            table.add_row(*map(Text, cells))
        return table

    def _waits(self, place: int) -> bool:
        return self._rows[place].state == WAITING and place not in self._running

    def _counts(self) -> Counter[str]:
        return Counter(row.state for row in self._rows)

    def _done(self) -> str:
        return f"[{self._counts()[FINISHED] + self._counts()[FAILED]}/{self._runs}]"

    def _left(self) -> str:
        seconds = self.seconds_left()
        return f"; {span(seconds)} left" if seconds else ""


def _value(key: str, columns: Mapping[str, str]) -> str:
    value = columns.get(key, "")
    return shown_name(value_names(key, [value])[value])


def _score(rows: Sequence[Row]) -> str:
    """Formats the mean test score of finished runs at the best validation round."""
    groups = group_runs([row for row in rows if row.figures])
    main = MainScore(groups)
    scores = [value for group in groups for value in main.values(group)]
    return f"{100 * fmean(scores):.2f}" if scores else "-"


def _state(rows: Sequence[Row], works: bool) -> str:
    counts = Counter(row.state for row in rows)
    done = f"{counts[FINISHED]}/{len(rows)}" if counts[FINISHED] else ""
    failed = f"{counts[FAILED]} failed" if counts[FAILED] else ""
    return ", ".join(part for part in (done, failed, "at work" if works else "") if part) or "waiting"


def span(seconds: float) -> str:
    """Writes a duration in words."""
    minutes = round(seconds / 60)
    return f"{round(seconds)} s" if seconds < 90 else f"{minutes} min" if minutes < 90 else f"{seconds / 3600:.1f} h"
