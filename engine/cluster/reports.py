"""What a run shows of its hosts: busy time, slowest cells, prints of the user's code, signs of life, Ray's metrics."""

import io
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from heapq import nlargest
from statistics import fmean
from typing import Any

from shoal.engine.messages.cell import Cell, Outcome
from shoal.storage.errors import ShoalError

# Of what a process prints in a round, and of a line.
MOST_LINES, LONGEST_LINE = 10, 500
# Busy hosts need no look at their cells.
BUSY, SLOWEST = 0.75, 3
# A host shows that it lives this often in `engine.cell_timeout`.
SIGNS_IN_A_TIMEOUT = 20


class Prints(io.TextIOBase):
    """Takes what code prints in a process: the first lines of a round, and the number of others.

    Attributes:
        client: Who is visited; None: nobody is.
    """

    def __init__(self) -> None:
        """Takes nothing yet."""
        self.client: int | None = None
        self._round, self._room, self._more = -1, MOST_LINES, 0
        self._lines: list[tuple[int | None, str]] = []
        self._begun = ""

    @contextmanager
    def captured(self, number: int) -> Iterator[None]:
        """Takes what is printed inside of the block, in a round; a ShoalError that ends the block gets it as detail."""
        if number != self._round:
            self._round, self._room = number, MOST_LINES
        self.client = None
        try:
            with redirect_stdout(self), redirect_stderr(self):
                yield
        except ShoalError as error:
            lines, _ = self.taken()
            add_prints(error, [text for _, text in lines])
            raise

    def write(self, text: str) -> int:
        """Takes whole lines; a line that is not ended waits for its end."""
        *whole, begun = (self._begun + text).split("\n")
        self._begun = begun[:LONGEST_LINE]
        for line in whole:
            self._take(line)
        return len(text)

    def taken(self) -> tuple[list[tuple[int | None, str]], int]:
        """Lines since the last call, each with its client, and how many more there were."""
        if self._begun:
            self._take(self._begun)
        taken = self._lines, self._more
        self._lines, self._more, self._begun = [], 0, ""
        return taken

    def _take(self, line: str) -> None:
        if self._room:
            self._room -= 1
            self._lines.append((self.client, line[:LONGEST_LINE]))
        else:
            self._more += 1


def add_prints(error: ShoalError, lines: Sequence[str]) -> None:
    """Adds what was printed before an error to its detail."""
    if lines:
        error.detail = "\n".join([error.detail.rstrip("\n"), "printed before:", *lines])


class Work:
    """What hosts did in a round, by the outcomes of their cells.

    Attributes:
        printed: Lines, each with its host, None for the server, and its client, None where none is known.
    """

    def __init__(self) -> None:
        """Begins with a round."""
        self.printed: list[tuple[int | None, int | None, str]] = []
        self._cells: list[tuple[float, int, int, int]] = []
        self._more: dict[int | None, int] = {}

    def note(self, host: int, cell: Cell, outcome: Outcome) -> None:
        """A cell came back."""
        self._cells.append((outcome.busy, host, cell.ids[0], len(cell.ids)))
        self.print(host, *outcome.printed)

    def print(self, host: int | None, lines: Sequence[tuple[int | None, str]], more: int) -> None:
        """A process printed lines, and so many more that it did not keep."""
        self.printed += [(host, *line) for line in lines]
        if more:
            self._more[host] = self._more.get(host, 0) + more

    def end(self, seconds: float, hosts: int) -> dict[str, Any]:
        """Ends a round of so many seconds: the share in which each host worked, the slowest cells if many were idle."""
        spent = dict.fromkeys(range(hosts), 0.0)
        for busy, host, *_ in self._cells:
            spent[host] += busy
        found: dict[str, Any] = {
            "busy": {str(host): round(min(busy / max(seconds, 1e-9), 1.0), 4) for host, busy in spent.items()}
        }
        if hosts > 1 and fmean(found["busy"].values()) < BUSY:
            found["slowest"] = [
                dict(zip(("host", "client", "clients", "seconds"), (*cell, round(busy, 6))))
                for busy, *cell in nlargest(SLOWEST, self._cells)
            ]
        self.printed += [(host, None, f"{more} more lines") for host, more in self._more.items()]
        return found


class Signs:
    """Signs of life that a host gives its server when the visit of a client begins."""

    def __init__(self, server: Any, host: int, timeout: float) -> None:
        """Gives them to an actor with a method `sign`; `timeout` is the time after which a silent host is replaced."""
        self._server, self._host, self._seconds = server, host, timeout / SIGNS_IN_A_TIMEOUT
        self._given = float("-inf")

    def give(self) -> None:
        """Gives one, unless the last is a short time ago."""
        now = time.monotonic()
        if now - self._given >= self._seconds:
            self._given = now
            self._server.sign.remote(self._host)


class RayMetrics:
    """Numbers of a run among the metrics of the Ray cluster that it joined, by the name of the run."""

    def __init__(self, run: str) -> None:
        """Registers them; the cluster shows them with the prefix `ray_`."""
        from ray.util.metrics import Counter, Gauge  # only where a cluster is joined

        tags = {"tag_keys": ("run", "way")}
        self._run = run
        self._rounds = Counter("shoal_rounds", "Rounds done.", tag_keys=("run",))
        self._bytes = Counter("shoal_bytes", "Bytes of clients, by way: up or down.", **tags)
        self._gauges = {
            name: Gauge(f"shoal_{name}", text, tag_keys=("run",))
            for name, text in {
                "clients_per_second": "Clients a second, in the last round.",
                "busy_share": "Share of the last round in which hosts worked.",
                "checkpoint_seconds": "Seconds of the last checkpoint.",
            }.items()
        }

    def note(self, line: Mapping[str, Any]) -> None:
        """A round is done; `line` is its line of metrics."""
        seconds, tags = line["seconds"], {"run": self._run}
        self._rounds.inc(1, tags)
        for way in ("up", "down"):
            if sent := line[f"bytes_{way}"]:
                self._bytes.inc(sent, {**tags, "way": way})
        self._gauges["clients_per_second"].set(len(line["cohort"]) / max(seconds["round"], 1e-9), tags)
        self._gauges["busy_share"].set(fmean(line["hosts"]["busy"].values()), tags)
        if seconds["checkpoint"]:
            self._gauges["checkpoint_seconds"].set(seconds["checkpoint"], tags)
