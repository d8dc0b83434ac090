"""The costs of a round (bytes, seconds, visits, losses of clients), and where its cells run."""

import math
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Protocol

from numba.core import event

from shoal.algorithms.client import ClientInfo
from shoal.algorithms.protocol import Ask, Tree
from shoal.engine.config.sections import SCORING
from shoal.engine.messages.cell import Cell, Outcome
from shoal.engine.rounds.reduction import tree_bytes

ON_HOSTS = ("train", "upload", "evaluate")
# The line of a round has the bytes of every client by this key.
CLIENT_BYTES = "client_bytes"
# By this key it has the clients that were drawn and took no part to the end, by what became of them.
MISSING = "missing"
# By this key the line of a round that is not synchronous has the simulated time of the step.
SIMULATED = "simulated"


# A kernel has a number, in the order in which a process compiles them, and the name of its function.
Kernel = tuple[int, str]
NO_KERNEL: Kernel = (0, "")


@dataclass(frozen=True)
class Live:
    """The progress of a round: visits to clients, those known to be needed, bytes, hosts (at work, of all), lost cells.

    While clients are `scored`, visits are those of the evaluation, of the model at hand. The last `kernel` that a host
    began to compile is its number and its name.
    """

    round: int
    visits: int
    expected: int
    bytes_up: int
    bytes_down: int
    hosts: tuple[int, int]
    retries: int
    scored: bool = False
    kernel: Kernel = NO_KERNEL


Watch = Callable[[Live], None]


def unwatched(live: Live) -> None:
    """Ignores the progress of a round."""


class Pool(Protocol):
    """The hosts that run cells: on Ray, or this process.

    Attributes:
        retried: How often a cell, or a client of one, was lost with its host, since the pool was made.
        transfer: Seconds spent on sending cells and taking in outcomes, since then.
    """

    retried: int
    transfer: float

    @property
    def hosts(self) -> tuple[int, int]:
        """Returns the number of hosts at work, and of all."""
        ...

    def run_cells(self, cells: Sequence[Cell], shared: Tree) -> Iterable[tuple[int, Outcome]]:
        """Runs cells in any order; yields the position of each with its outcome."""
        ...


class Meter:
    """A meter of the costs of one round.

    Attributes:
        failures: Clients that were left out, with the error's line and the traceback.
        losses: Of the clients that were trained.
        notes: The method's numbers of the round, by name; None where they are not finite.
        waited: Seconds spent on waiting for hosts.
    """

    def __init__(self, number: int, infos: Sequence[ClientInfo], pool: Pool, watch: Watch) -> None:
        """Starts the clock of a round; `watch` is called before the first and after every cell."""
        self._number, self._infos, self._pool, self._watch = number, infos, pool, watch
        self.failures: dict[int, tuple[str, str]] = {}
        self.notes: dict[str, float | None] = {}
        self.losses: dict[int, float] = {}
        self._bytes_up = self._bytes_down = 0
        # These are counts by client.
        self._up, self._down = defaultdict[int, int](int), defaultdict[int, int](int)
        self._visits = self._expected = 0
        self._scored = False
        self._retried_before, self._transfer_before = pool.retried, pool.transfer
        self._began, self._ready_before = working_clock(), seconds_of_kernels()
        # These are seconds of hosts in other processes.
        self._kernels = 0.0
        self._seconds = dict.fromkeys(ON_HOSTS, 0.0)
        self.waited = 0.0
        self._scoring = 0.0
        self._halved = 0

    def note(self, notes: Mapping[str, float]) -> None:
        """Keeps the method's notes."""
        self.notes = {name: float(value) if math.isfinite(value) else None for name, value in notes.items()}

    def expect(self, visits: int, scored: bool) -> None:
        """Adds to the visits that are needed; those that only score are counted from 0 for each model."""
        if scored:
            self._visits = self._expected = 0
        self._scored = scored
        self._expected += visits
        self._show()

    def count_downloads(self, ask: Ask, ids: Sequence[int]) -> None:
        """Counts the downloads of an `Ask`."""
        shared = tree_bytes(ask.shared)
        for i in ids:
            private = ask.private.get(i)
            self.count_download(i, tree_bytes({**ask.shared, **private}) if private else shared)

    def count_download(self, client: int, size: int) -> None:
        """Counts the bytes of a result of mixing, or of a download, for a client."""
        self._bytes_down += size
        self._down[client] += size

    def count_uploads(self, outcome: Outcome) -> None:
        """Counts the uploads of a cell, or of clients of several, which are at the server."""
        self._bytes_up += sum(outcome.bytes_up)
        for client, size in zip(outcome.ids, outcome.bytes_up):
            self._up[client] += size

    def count_cell(self, visits: int, outcome: Outcome) -> None:
        """Counts a cell that came back after so many visits."""
        self._visits += visits
        self._halved += outcome.halved
        self._kernels += outcome.kernels / max(self._pool.hosts[0], 1)
        for step, spent in outcome.seconds.items():
            self._seconds[step] += spent
        self._show()

    def _show(self) -> None:
        hosts, retries = self._pool.hosts, self._pool.retried - self._retried_before
        sent = self._bytes_up, self._bytes_down
        self._watch(Live(self._number, self._visits, self._expected, *sent, hosts, retries, self._scored))

    def keep_losses(self, outcome: Outcome) -> None:
        """Keeps the losses of clients that were trained."""
        self.losses.update(zip(outcome.ids, outcome.losses))

    @contextmanager
    def scoring(self) -> Iterator[None]:
        """Counts the seconds of a block, less those of waiting for hosts, as scoring."""
        began, waited = working_clock(), self.waited
        yield
        self._scoring += working_clock() - began - (self.waited - waited)

    def add_evaluation(self, other: "Meter") -> None:
        """Adds work for an evaluation that another meter counted: its time, and clients that were left out."""
        self._seconds["evaluate"] += sum(other._seconds.values())
        self._kernels += other._kernels
        self.waited += other.waited
        self.failures |= other.failures

    def discard(self) -> None:
        """Forgets bytes, losses and notes of a round that changes nothing; its time, and who failed, stay."""
        self._bytes_up = self._bytes_down = 0
        self._up.clear()
        self._down.clear()
        self.losses, self.notes = {}, {}

    def line(self, cohort: Sequence[int], scopes: dict[str, Any] | None) -> dict[str, Any]:
        """Makes the round's line of metrics: clients that took part to the end, and accuracies by scope if it was
        evaluated.
        """
        total, waited = working_clock() - self._began - self._kernels, self.waited - self._kernels
        transfer = self._pool.transfer - self._transfer_before
        method = total - waited - self._scoring
        server = {"transfer": transfer, "wait": waited - transfer, "aggregate": method, SCORING: self._scoring}
        kernels = seconds_of_kernels() - self._ready_before + self._kernels
        line: dict[str, Any] = {
            "round": self._number,
            "cohort": list(cohort),
            "loss": self._mean_loss(),
            "retries": self._pool.retried - self._retried_before,
            "hosts": dict(zip(("alive", "of"), self._pool.hosts)),
            "bytes_up": self._bytes_up,
            "bytes_down": self._bytes_down,
            # Papers count so, with four bytes each.
            "scalars_up": self._bytes_up / 4,
            "scalars_down": self._bytes_down / 4,
            CLIENT_BYTES: {"up": _column(self._up, cohort), "down": _column(self._down, cohort)},
            "seconds": {
                "round": total,
                "hosts": sum(self._seconds.values()),
                **self._seconds,
                **server,
                "kernels": kernels,
            },
        }
        if self._halved:
            line["halved_batches"] = self._halved
        if self.failures:
            line["failures"] = {str(i): text for i, text in self.failures.items()}
        if self.notes:
            line["notes"] = self.notes
        if scopes is not None:
            line["scopes"] = scopes
        return line

    def _mean_loss(self) -> float | None:
        """Averages the losses of the clients that report one, over training rows; None if none does."""
        finite = [(self._infos[i].train, loss) for i, loss in self.losses.items() if math.isfinite(loss)]
        rows = [(train, loss) for train, loss in finite if train]
        weight = sum(train for train, _ in rows)
        mean = sum(train * loss for train, loss in rows) / weight if weight else math.inf
        return mean if math.isfinite(mean) else None


def _column(sizes: Mapping[int, int], cohort: Sequence[int]) -> list[int]:
    """Lists the bytes of every client of a cohort, in its order; where all have as many, that number once."""
    column = [sizes.get(client, 0) for client in cohort]
    return column[:1] if len(set(column)) == 1 else column


class _Kernels(event.Listener):
    """A listener that adds up the seconds in which this process compiled kernels, or loaded compiled ones."""

    def __init__(self) -> None:
        self.seconds, self._began, self._depth = 0.0, 0.0, 0

    def on_start(self, event: event.Event) -> None:
        """Notes when a kernel begins; it may need others."""
        if not self._depth:
            self._began = time.perf_counter()
        self._depth += 1

    def on_end(self, event: event.Event) -> None:
        """Adds the time of a kernel that is ready."""
        self._depth -= 1
        if not self._depth:
            self.seconds += time.perf_counter() - self._began


class _Compiled(event.Listener):
    """A listener that counts the kernels that this process compiles; those that the machine has are loaded.

    What numba compiles of its own on the way is none: a kernel is a function that a machine keeps.
    """

    def __init__(self) -> None:
        self.number = 0
        self.note: Callable[[Kernel], None] = _unnoted

    def on_start(self, event: event.Event) -> None:
        """Notes a kernel as it begins."""
        function = event.data["dispatcher"].py_func
        if not function.__module__.startswith("numba."):
            self.number += 1
            self.note((self.number, function.__name__.lstrip("_")))

    def on_end(self, event: event.Event) -> None:
        """Ignores the end of a kernel."""


def _unnoted(kernel: Kernel) -> None:
    """Ignores a kernel."""


_kernels, _compiled = _Kernels(), _Compiled()
# Numba holds this lock from the look for a compiled kernel to its end.
event.register("numba:compiler_lock", _kernels)
event.register("numba:compile", _compiled)


def kernels_compiled() -> int:
    """Counts the kernels that this process compiled so far."""
    return _compiled.number


def note_kernels(note: Callable[[Kernel], None] = _unnoted) -> None:
    """Gives `note` each kernel that this process compiles, as it begins; without it nothing is noted."""
    _compiled.note = note


def seconds_of_kernels() -> float:
    """Returns the seconds in which this process made kernels ready so far."""
    return _kernels.seconds


def working_clock() -> float:
    """Reads a clock in seconds, of which only differences mean anything, without those of `seconds_of_kernels`."""
    return time.perf_counter() - _kernels.seconds
