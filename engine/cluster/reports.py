"""Reports of a run's hosts: busy time, slowest cells, prints of the user's code, Ray's metrics."""

import io
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from functools import cache
from heapq import nlargest
from statistics import fmean
from typing import Any

from shoal.engine.messages.cell import Cell, Outcome
from shoal.storage.errors import ShoalError

# So many lines of a process are kept in a round, and so many characters of a line.
MOST_LINES, LONGEST_LINE = 10, 500
# If hosts work less than this share of a round, its slowest cells are shown.
BUSY, SLOWEST = 0.75, 3


class Prints(io.TextIOBase):
    """A stream that takes the prints of code in a process: the first lines of a round, and the number of others.

    Attributes:
        client: The client that is visited; None: there is none.
    """

    def __init__(self) -> None:
        """Takes nothing yet."""
        self.client: int | None = None
        self._round, self._room, self._more, self._begun = -1, MOST_LINES, 0, ""
        self._lines: list[tuple[int | None, str]] = []

    @contextmanager
    def capture(self, number: int) -> Iterator[None]:
        """Takes prints inside of the block, in a round; a ShoalError that ends the block has them as detail."""
        if number != self._round:
            self._round, self._room = number, MOST_LINES
        self.client = None
        try:
            with redirect_stdout(self), redirect_stderr(self):
                yield
        except ShoalError as error:
            if lines := [text for _, text in self.take()[0]]:
                error.detail = "\n".join([error.detail.rstrip("\n"), "printed before:", *lines])
            raise

    def write(self, text: str) -> int:
        """Takes whole lines; a line that is not ended waits for its end."""
        *whole, begun = (self._begun + text).split("\n")
        kept = whole[: self._room]
        self._lines += [(self.client, line[:LONGEST_LINE]) for line in kept]
        self._room -= len(kept)
        self._more += len(whole) - len(kept)
        self._begun = begun[:LONGEST_LINE]
        return len(text)

    def take(self) -> tuple[list[tuple[int | None, str]], int]:
        """Takes the lines since the last call, each with its client, and the number of lines that were dropped."""
        if self._begun:
            self.write("\n")
        taken = self._lines, self._more
        self._lines, self._more = [], 0
        return taken


class Work:
    """The work of hosts in a round, by the outcomes of their cells.

    Attributes:
        printed: Lines, each with its host, None for the server, and its client, None where none is known.
    """

    def __init__(self) -> None:
        """Begins with a round."""
        self.printed: list[tuple[int | None, int | None, str]] = []
        self._cells: list[tuple[float, int, int, int, str]] = []
        self._more: Counter[int | None] = Counter()

    def note(self, host: int, cell: Cell, outcome: Outcome) -> None:
        """Notes that a cell came back."""
        self._cells.append((outcome.busy, host, cell.ids[0], len(cell.ids), cell.phase))
        if any(outcome.printed):
            self.print(host, *outcome.printed)

    def print(self, host: int | None, lines: Sequence[tuple[int | None, str]], more: int) -> None:
        """Notes the lines that a process printed, and the number of lines that it dropped."""
        self.printed += [(host, *line) for line in lines]
        self._more[host] += more

    def end(self, seconds: float, hosts: int) -> dict[str, Any]:
        """Ends a round of so many seconds.

        Returns the share in which each host worked, cells by phase (empty for evaluations), and the slowest cells if
        many hosts were idle.
        """
        self.printed += [(host, None, f"{more} more lines") for host, more in self._more.items() if more]
        busy = dict.fromkeys(map(str, range(hosts)), 0.0)
        for spent, host, *_ in self._cells:
            busy[str(host)] = min(busy[str(host)] + spent / max(seconds, 1e-9), 1.0)
        cells = dict(Counter(phase for *_, phase in self._cells))
        if hosts == 1 or fmean(busy.values()) >= BUSY:
            return {"busy": busy, "cells": cells}
        names = ("seconds", "host", "client", "clients")
        slowest = [dict(zip(names, cell)) for cell in nlargest(SLOWEST, self._cells)]
        return {"busy": busy, "cells": cells, "slowest": slowest}


def publish(run: str, line: Mapping[str, Any]) -> None:
    """Shows a round, by its line of metrics, among the metrics of the Ray cluster that its run joined."""
    numbers = {
        "round": line["round"],
        "clients_per_second": len(line["cohort"]) / max(line["seconds"]["round"], 1e-9),
        "busy_share": fmean(line["hosts"]["busy"].values()),
        "bytes_up": line["bytes_up"],
        "bytes_down": line["bytes_down"],
    }
    if written := line["seconds"]["checkpoint"]:
        numbers["checkpoint_seconds"] = written
    for name, number in numbers.items():
        _gauge(name).set(number, {"run": run})


@cache
def _gauge(name: str) -> Any:
    from ray.util.metrics import Gauge  # only where a cluster is joined

    return Gauge(f"shoal_{name}", f"{name} of the last round that has it", tag_keys=("run",))
