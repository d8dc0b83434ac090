"""A run while it is at work: two bars on a terminal, plain lines elsewhere."""

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from engine.records.summary import chosen, metric_of
from engine.rounds.metric import RANKINGS
from engine.screen.progress import SECONDS_BETWEEN_LINES, console
from engine.settings.sizes import size
from engine.wire.live import Live


class LiveView:
    """Rounds and clients done, their rate, bytes, hosts, retries, time left."""

    def __init__(self, name: str, rounds: int, done: int, bars: Progress | None) -> None:
        """Starts after `done` of `rounds`."""
        self._name, self._rounds, self._bars = name, rounds, bars
        self._shown = time.monotonic()
        self._retries = 0
        if bars is not None:
            self._run = bars.add_task(name, total=rounds, completed=done, rate="", note="")
            self._round = bars.add_task("", total=None, rate="", note="")
        self.back_to(done)

    def watch(self, live: Live) -> None:
        """A round is on its way."""
        rate = f"{live.visits / max(time.monotonic() - self._round_began, 1e-9):.1f} clients/s"
        note = _traffic(live.bytes_up, live.bytes_down, live.hosts, self._retries + live.retries)
        if self._bars is not None:
            self._bars.update(
                self._round,
                description=f"round {live.round}",
                completed=live.visits,
                total=live.expected,
                rate=rate,
                note=note,
            )
        elif self._due():
            self._print(f"round {live.round}: {live.visits}/{live.expected} clients, {rate}, {note}")

    def advance(self, line: dict[str, Any]) -> None:
        """A round is done; `line` is its line of metrics."""
        self._done = line["round"]
        self._retries += line["retries"]
        self._round_began = now = time.monotonic()
        rate = (self._done - self._first) / max(now - self._began, 1e-9)
        visits = f"{len(line['cohort'])} clients, {len(line['cohort']) / max(line['seconds']['round'], 1e-9):.1f}/s"
        hosts = (line["hosts"]["alive"], line["hosts"]["of"])
        traffic = _traffic(line["bytes_up"], line["bytes_down"], hosts, self._retries)
        if self._bars is not None:
            self._bars.update(self._run, completed=self._done, rate=f"{rate:.1f} rounds/s", note=_accuracy(line))
            self._bars.update(self._round, description=f"round {self._done}", note=f"{visits}, {traffic}")
        elif self._due() or self._done == self._rounds:
            left = (self._rounds - self._done) / rate
            self._print(
                f"{self._done}/{self._rounds} rounds, {rate:.1f}/s, {left:.0f} s left, "
                f"{', '.join(part for part in (_accuracy(line), visits, traffic) if part)}"
            )

    def back_to(self, done: int) -> None:
        """The run starts, or part of it was lost with the server."""
        self._first = self._done = done
        self._began = self._round_began = time.monotonic()
        if self._bars is not None:
            self._bars.update(self._run, completed=done)

    def _due(self) -> bool:
        return time.monotonic() - self._shown >= SECONDS_BETWEEN_LINES

    def _print(self, text: str) -> None:
        self._shown = time.monotonic()
        print(f"{self._name}: {text}", file=sys.stderr, flush=True)


@contextmanager
def live_view(name: str, rounds: int, done: int) -> Iterator[LiveView]:
    """Shows a run while it is at work."""
    if not console.is_terminal:
        yield LiveView(name, rounds, done, None)
        return
    columns = (
        TextColumn("{task.description}"),
        BarColumn(bar_width=20),
        MofNCompleteColumn(),
        TextColumn("{task.fields[rate]}"),
        TimeRemainingColumn(),
        TextColumn("{task.fields[note]}"),
    )
    with Progress(*columns, console=console) as bars:
        yield LiveView(name, rounds, done, bars)


def _traffic(up: int, down: int, hosts: tuple[int, int], retries: int) -> str:
    lost = f", {retries} retries" if retries else ""
    return f"{size(up)} up, {size(down)} down, {hosts[0]}/{hosts[1]} hosts{lost}"


def _accuracy(line: dict[str, Any]) -> str:
    parts = [] if line["loss"] is None else [f"loss {line['loss']:.3f}"]
    parts += [f"{name} {value:.2f}" for name, value in line.get("notes", {}).items() if value is not None]
    for scope, numbers in line.get("scopes", {}).items():
        if "val" in numbers:
            value, ranking = chosen(numbers["val"], scope), RANKINGS.get(metric_of(numbers["val"]))
            name = f"{scope} val {ranking}" if ranking else f"{scope} val"
            parts.append(f"{name} -" if value is None else f"{name} {100 * value:.1f} %")
    return ", ".join(parts)
