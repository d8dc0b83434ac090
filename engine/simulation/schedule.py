"""Simulated time of synchronous rounds: devices and links of clients, and the server's link, a queue that all share.

Axes: B clients, C clients of a cohort, D classes. Times are in seconds.
"""

import csv
import math
from collections.abc import Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np

from shoal.algorithms.rng import key
from shoal.engine.config.config import SHIPPED
from shoal.engine.simulation.work import ClientWork, Work
from shoal.storage.errors import ShoalError
from shoal.storage.files.reading import read_text
from shoal.storage.suggestions import did_you_mean

CLASS, SHARE, SERVER = "class", "share", "server"
# Files have these columns beside class and share, with their defaults; None: the column must be there.
DEVICES = {"gflops": None, "gb_per_s": None, "watts": None, "idle_watts": 0.0, "spread": 0.0, "per_hour": 0.0}
NETWORKS = {"down_mbit": None, "up_mbit": None, "latency_ms": None, "spread": 0.0, "per_gb": 0.0}
# Columns have bounds, within which all times, energies and sums of money are finite numbers.
OTHERS, SPEED = (0.0, 1e12), (1e-12, 1e18)
BOUNDS = {
    **dict.fromkeys(("gflops", "gb_per_s", "down_mbit", "up_mbit"), SPEED),
    SHARE: (0.0, 1.0),
    "spread": (0.0, 10.0),
}
GIGA, MBIT, HOUR = 1e9, 1e6 / 8, 3600
# A file has at most so many bytes, and a line so many characters.
MOST_BYTES, LONGEST = 1 << 20, 2000


@dataclass(frozen=True)
class Classes:
    """The classes of devices or links of a file: names, and columns float64 `[D]`, `share` among them."""

    path: Path
    names: tuple[str, ...]
    columns: dict[str, np.ndarray]

    def draw(self, clients: int, seed: int, what: str) -> tuple[np.ndarray, np.ndarray]:
        """Draws the class of every client, int64 `[B]`, and its speed over that of the class: log-normal of median 1.

        Both are keyed by (seed, what), and a client has the same however many others there are.
        """
        bounds = np.cumsum(self.columns[SHARE])
        uniform = np.random.default_rng(key(seed, "clock", what)).random(clients)
        number = np.searchsorted(bounds / bounds[-1], uniform, side="right")
        normal = np.random.default_rng(key(seed, "clock", what, "speed")).standard_normal(clients)
        return number, np.exp(self.columns["spread"][number] * normal)


def read_classes(place: str, folder: str, known: dict[str, float | None]) -> Classes:
    """Reads a CSV of classes: a file, or the name of one of ours in a folder; lines that begin with # are skipped.

    Raises ShoalError: there is no such file, or a column, a number or the sum of shares is wrong.
    """
    path = _file(place, folder)
    try:
        text = read_text(path, MOST_BYTES).splitlines()
    except (OSError, ValueError) as error:
        raise ShoalError(path, f"cannot be read: {getattr(error, 'strerror', None) or error}") from error
    lines = {number: line for number, line in enumerate(text, 1) if line.strip() and not line.startswith("#")}
    if long := next((number for number, line in lines.items() if len(line) > LONGEST), None):
        raise ShoalError(path, f"line {long}", f"expected at most {LONGEST:,} characters, got {len(lines[long]):,}")
    reader = csv.DictReader(lines.values())
    try:
        heads, rows = list(reader.fieldnames or ()), list(reader)
    except csv.Error as error:
        # A cell with an open quote may go on over many lines, beyond what the reader takes.
        raise ShoalError(path, f"cannot be read: {error}") from error
    needed = [CLASS, SHARE, *(name for name, default in known.items() if default is None)]
    if wrong := next((head for head in heads if head not in (CLASS, SHARE, *known)), None):
        there = (CLASS, SHARE, *known)
        raise ShoalError(path, str(wrong), f"{did_you_mean(wrong, there)}unknown column; known are {', '.join(there)}")
    if missing := next((name for name in needed if name not in heads), None):
        raise ShoalError(path, missing, f"the column is missing; needed are {', '.join(needed)}")
    for kind, names in (("column", heads), ("class", [row[CLASS] for row in rows])):
        if not all(names):
            raise ShoalError(path, f"expected a name for every {kind}, got none for one of them")
        if twice := next((name for place, name in enumerate(names) if name in names[:place]), None):
            raise ShoalError(path, twice, f"the {kind} is given twice; leave one of them")
    columns = {name: np.array([_number(path, row, name, known.get(name)) for row in rows]) for name in (SHARE, *known)}
    total = math.fsum(columns[SHARE])
    if abs(total - 1) > 1e-6:
        raise ShoalError(path, SHARE, f"shares of all classes must sum to 1, found {total:g}")
    return Classes(path, tuple(row[CLASS] for row in rows), columns)


def read_network(place: str) -> Classes | None:
    """Reads classes of links, as `read_classes`; None for `none`: messages take no time and no money."""
    return None if place == "none" else read_classes(place, "networks", NETWORKS)


def _file(place: str, folder: str) -> Path:
    ours = SHIPPED / folder
    names = sorted(path.stem for path in ours.glob("*.csv"))
    if place in names:
        return ours / f"{place}.csv"
    if not Path(place).is_file():
        raise ShoalError(Path(place), f"no such file; give a CSV, or one of ours: {', '.join(names)}")
    return Path(place)


def _number(path: Path, row: dict[str, Any], name: str, default: float | None) -> float:
    """Returns a number of a row; raises ShoalError: it is none, or is outside of `BOUNDS`."""
    text = row.get(name, default)
    try:
        value = float(text)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        value = math.nan
    least, most = BOUNDS.get(name, OTHERS)
    if None in row or not least <= value <= most:
        raise ShoalError(path, f"{row[CLASS]}.{name}", f"expected a number from {least:g} to {most:g}, got {text!r}")
    return value


@dataclass(frozen=True)
class Fleet:
    """The devices and links of clients, float64 `[B]` each, in units of the SI; and the server's link.

    Attributes:
        device: Number of the client's class of devices, int64.
        flops, traffic: Operations and bytes of memory a second.
        watts, idle_watts: Power while it computes, and in the rest of a round.
        per_hour, per_byte: Money for an hour of a round, and for a byte sent or received.
        down, up, latency: Bytes a second of its link, and seconds of every message.
        server_down, server_up: Bytes a second that the server receives and sends.
    """

    device: np.ndarray
    flops: np.ndarray
    traffic: np.ndarray
    watts: np.ndarray
    idle_watts: np.ndarray
    per_hour: np.ndarray
    down: np.ndarray
    up: np.ndarray
    latency: np.ndarray
    per_byte: np.ndarray
    server_down: float
    server_up: float

    @classmethod
    def of(cls, devices: Classes, networks: Classes | None, clients: int, seed: int) -> "Fleet":
        """Draws a device and a link for every client, by the seed.

        Without networks messages take no time and no money. Raises ShoalError: no row `server` has share 0.
        """
        device, speed = devices.draw(clients, seed, "device")
        columns = {name: column[device] for name, column in devices.columns.items()}
        compute = (
            device, GIGA * columns["gflops"] * speed, GIGA * columns["gb_per_s"] * speed, columns["watts"],
            columns["idle_watts"], columns["per_hour"],
        )  # fmt: skip
        if networks is None:
            fast, none = np.full(clients, math.inf), np.zeros(clients)
            return cls(*compute, fast, fast, none, none, math.inf, math.inf)
        link = networks.columns
        server = networks.names.index(SERVER) if SERVER in networks.names else 0
        if networks.names[server] != SERVER or link[SHARE][server]:
            raise ShoalError(networks.path, SERVER, "a row of this class with share 0 must give the server's link")
        network, pace = networks.draw(clients, seed, "network")
        return cls(
            *compute, MBIT * link["down_mbit"][network] * pace,
            MBIT * link["up_mbit"][network] * pace, link["latency_ms"][network] / 1000, link["per_gb"][network] / GIGA,
            MBIT * float(link["down_mbit"][server]), MBIT * float(link["up_mbit"][server]),
        )  # fmt: skip

    def seconds(self, work: Work) -> np.ndarray:
        """Returns seconds of work of every client, `[B]`: of operations or of memory, the longer one (the roofline)."""
        return np.maximum(work.flops / self.flops, work.traffic / self.traffic)


@dataclass(frozen=True)
class Schedule:
    """The schedule of a round, in seconds from its beginning, `[C]` each, and its end.

    Attributes:
        received, ready: The times when a client has the download, and when it has computed.
        arrived, finished: The times when its upload is at the server's link, and when the server has it.
        moving: Seconds that its own messages take, without those of others in front of them.
        late: True if it is finished after the deadline; the server does not wait for it.
        end: The time when the server has all uploads that it waits for, or the deadline, if any of these is late.
    """

    received: np.ndarray
    ready: np.ndarray
    arrived: np.ndarray
    finished: np.ndarray
    moving: np.ndarray
    late: np.ndarray
    end: float


def schedule(
    fleet: Fleet,
    cohort: np.ndarray,
    down: np.ndarray,
    up: np.ndarray,
    compute: np.ndarray,
    deadline: float = math.inf,
    counted: np.ndarray | None = None,
) -> Schedule:
    """Schedules a synchronous round of a cohort, int64 `[C]`, ascending; bytes and seconds of compute are `[C]`.

    `counted` says which clients the server waits for, bool `[C]`; None: all. The others take places in the queues.
    The server's link is a queue, first in, first out, in each direction: it sends downloads one after another in the
    order of clients, and takes uploads one after another as they arrive. A message passes one link after the other.
    """
    latency = fleet.latency[cohort]
    sent, service = down / fleet.server_up, up / fleet.server_down
    to_client = latency * (down > 0) + down / fleet.down[cohort]
    to_server = latency * (up > 0) + up / fleet.up[cohort]
    received = np.cumsum(sent) + to_client
    ready = received + compute
    arrived = ready + to_server
    order = np.argsort(arrived, kind="stable")
    done = np.cumsum(service[order])
    # A link works without a break from some arrival on, which is the one that makes the upload end latest.
    finished = np.empty_like(arrived)
    finished[order] = done + np.maximum.accumulate(arrived[order] - (done - service[order]))
    waited = np.ones(len(cohort), dtype=bool) if counted is None else counted
    late = (finished > deadline) & waited
    end = deadline if late.any() else float(finished[waited].max(initial=0.0))
    return Schedule(received, ready, arrived, finished, sent + to_client + to_server + service, late, end)


@dataclass(frozen=True)
class Clock:
    """The costs of rounds, `[T]` each: seconds, joules, money, operations, seconds that clients wait, and late clients.

    `of_clients` are seconds of all clients of the round. `late_of` and `visits_of` are late visits and all visits by
    class of devices, int64 `[D]`.
    """

    seconds: np.ndarray
    joules: np.ndarray
    money: np.ndarray
    flops: np.ndarray
    idle: np.ndarray
    late: np.ndarray
    of_clients: np.ndarray
    late_of: np.ndarray
    visits_of: np.ndarray


@dataclass(frozen=True)
class Round:
    """The record of a round: its cohort, bytes of each client, seconds of the server, and whether it scored.

    A run that is not synchronous also has the seconds since the step before (`took`), and those of each client from the
    step that made its model, `[C]` (`spent`); its evaluations take no time. Clients that were drawn and took no part to
    the end are in `cohort`, and not `counted`, bool `[C]`. `end` is the time when the round ended in the run; None:
    when the last client that counts is finished.
    """

    cohort: np.ndarray
    down: np.ndarray
    up: np.ndarray
    server: float
    scored: bool
    took: float = 0.0
    spent: np.ndarray | None = None
    counted: np.ndarray | None = None
    end: float | None = None


def clock(rounds: Sequence[Round], work: ClientWork, fleet: Fleet, deadline: float = math.inf) -> Clock:
    """Computes the clock of the rounds of a run; in a round that scored, the cohort evaluates before it sends.

    A client uses `watts` while it computes, to the end of the round at most, and `idle_watts` in the rest of it.
    """
    plain, scored = (
        (fleet.seconds(work.train) + fleet.seconds(work.upload) + extra, work.train.flops + work.upload.flops + flops)
        for extra, flops in ((0.0, 0.0), (fleet.seconds(work.evaluate), work.evaluate.flops))
    )
    table, late, visits = np.zeros((7, len(rounds))), [], []
    for number, line in enumerate(rounds):
        cohort = line.cohort
        compute, flops = (values[cohort] for values in (scored if line.scored else plain))
        of_round = schedule(fleet, cohort, line.down, line.up, compute, deadline, line.counted)
        end = of_round.end if line.end is None else line.end
        took, busy = end + line.server, np.clip(end - of_round.received, 0, compute)
        total = np.full(len(cohort), took)
        if line.spent is not None:
            took, busy, total = line.took + line.server, compute, line.spent
        waits = np.maximum(total - busy - of_round.moving, 0)
        joules = fleet.watts[cohort] @ busy + fleet.idle_watts[cohort] @ (total - busy)
        money = fleet.per_hour[cohort] @ total / HOUR + fleet.per_byte[cohort] @ (line.down + line.up)
        table[:, number] = took, joules, money, flops.sum(), waits.sum(), of_round.late.sum(), total.sum()
        late.append(fleet.device[cohort[of_round.late]])
        visits.append(fleet.device[cohort])
    classes = int(fleet.device.max(initial=0)) + 1
    by_class = [
        np.bincount(np.concatenate(devices) if devices else np.zeros(0, int), minlength=classes)
        for devices in (late, visits)
    ]
    return Clock(*table, *by_class)


def join_clocks(clocks: Sequence[Clock]) -> Clock:
    """Returns the clock of rounds that follow one another, of the same devices."""
    names = [clock.name for clock in fields(Clock)]
    of_rounds, of_classes = names[:-2], names[-2:]
    return Clock(
        **{name: np.concatenate([getattr(clock, name) for clock in clocks]) for name in of_rounds},
        **{name: np.sum([getattr(clock, name) for clock in clocks], axis=0) for name in of_classes},
    )
