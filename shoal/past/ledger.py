"""A ledger of what left each client of a run: entries, bytes, times, what hid in a mean, and epsilon with privacy.

Entries are those of one round, which is made again in this process; bytes and times are as the run logged them.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import numpy as np
from pydantic import Field
from torch import Tensor

from shoal.algorithms.protocol import Reduce
from shoal.engine.hosts.backend import server_device
from shoal.engine.messages.cell import Cell, Outcome
from shoal.engine.rounds.costs import CLIENT_BYTES, unwatched
from shoal.engine.sections.section import load
from shoal.engine.sections.sections import find_bounding, options_of
from shoal.past.reader import Reading
from shoal.past.recording import Recorder, Recording
from shoal.past.rewind import PastRun
from shoal.storage.errors import ShoalError
from shoal.tables.text_table import TextTable

# The table of epsilon shows at most this many rounds.
MOST_ROUNDS = 10
HIDDEN = "a sum of bounded changes with noise: what it says of a client is bounded by epsilon"
NOISY = "an upload with noise of its own: what it says of a client, to the server, too, is bounded by epsilon"
OF_ROWS = "a model trained on clipped rows with noise: what it says of a node is bounded by epsilon"
BY_ROW = (
    "a mean by row, weighted by counts: a row that one client has is its own, of one item that item's embedding; "
    "counts tell the client's labels"
)
AVERAGED = "hidden from who sees the mean alone, not from the server, which is sent it; with one client it is its own"
HIDDEN_IN_A_SUM = "a hidden number, of which the server reads the sum over a cohort alone (simulated)"
MIXED = "seen by the server as it is; others receive mixtures, from which one of few clients can be told"
OF_CLASSES = "seen as it is: a row for each class, which of a class of one item is that item's embedding"
SEEN = "seen by the server as it is: what can be computed from a model or a vector of one client, can be from this"


@dataclass(frozen=True)
class Sent:
    """An entry of the uploads of a phase: how it is reduced, the largest of its shapes, and if rows have weights."""

    phase: str
    entry: str
    how: Reduce
    shape: tuple[int, ...]
    by_row: bool

    def reveals(self, classes: int, private: Any, in_sum: bool = False) -> str:
        """Returns a sentence that says what the entry tells of a client."""
        unit = "none" if private is None else private.unit
        hidden = unit == "client"
        if unit == "node" or (hidden and private.where == "client"):
            return OF_ROWS if unit == "node" else NOISY
        if self.how is Reduce.MEAN:
            return HIDDEN if hidden else HIDDEN_IN_A_SUM if in_sum else BY_ROW if self.by_row else AVERAGED
        if self.how is Reduce.MIX:
            return MIXED
        return OF_CLASSES if len(self.shape) == 2 and self.shape[0] == classes else SEEN


class _Entries(Recorder):
    """A recorder of the entries of a round's uploads, by phase and name."""

    def __init__(self) -> None:
        self.sent: dict[tuple[str, str], Sent] = {}

    def after(self, cell: Cell, outcome: Outcome) -> None:
        for entry, how in cell.entries.items() if outcome.ids else ():
            shapes, weight = _shapes(outcome, entry, how, cell.stages.rows)
            before = self.sent.get((cell.phase, entry))
            shape = max([*shapes, *([before.shape] if before else [])], key=lambda shape: int(np.prod(shape)))
            self.sent[cell.phase, entry] = Sent(cell.phase, entry, how, shape, weight)


def _shapes(outcome: Outcome, entry: str, how: Reduce, rows: bool) -> tuple[list[tuple[int, ...]], bool]:
    """Returns the shapes of an entry, and whether each of its rows has a weight."""
    if how is Reduce.GATHER:
        return [tuple(t.shape) for t in outcome.lists[entry]], False
    if how is Reduce.MEAN and not rows:
        part = next(iter(outcome.sums.values()))
        weight = part.weight[entry]
        return [tuple(part.total[entry].shape)], isinstance(weight, Tensor) and weight.dim() > 0
    of_rows = rows and any(weight.dim() for weight in outcome.lists.get(entry, ()))
    return [tuple(outcome.tensors[entry].shape[1:])], of_rows


@dataclass(frozen=True)
class Ledger:
    """The ledger of a run: the numbers that left its clients.

    Attributes:
        sent: Entries of one round, with what each tells.
        times: Messages of every client, int64 `[clients]`, one for each round that it took part in.
        bytes: Bytes that every client sent, int64 `[clients]`.
        epsilons: Epsilon after rounds, at the delta of the config; empty: nothing was hidden.
        bound: A sentence that says what epsilon bounds.
        unit: The unit that epsilon protects, a client or a node.
    """

    sent: Sequence[tuple[Sent, str]]
    times: np.ndarray
    bytes: np.ndarray
    epsilons: Mapping[int, float]
    bound: str
    unit: str = "client"

    def tables(self) -> dict[str, TextTable]:
        """Returns tables by name of a file: entries, clients, and epsilon after rounds if there is one."""
        entries = tuple(
            (sent.phase, sent.entry, f"{int(np.prod(sent.shape)):,}", sent.how.name.lower(), says)
            for sent, says in self.sent
        )
        clients = tuple(
            (name, f"{int(reduce(self.times)):,}", f"{int(reduce(self.bytes)):,}")
            for name, reduce in (("least", np.min), ("median", np.median), ("most", np.max), ("together", np.sum))
        )
        heads = ("phase", "entry", "numbers", "reduced as", "what it tells of a client")
        tables = {
            "entries": TextTable(heads, entries, 5, title="what a client sends in a round"),
            "clients": TextTable(("of a client", "rounds", "bytes sent"), clients, 1, title="how often, and how much"),
        }
        if self.epsilons:
            rows = tuple((str(number), f"{epsilon:.4g}") for number, epsilon in self.epsilons.items())
            tables["epsilon"] = TextTable(("after round", f"epsilon of a {self.unit}"), rows, 1, title=self.bound)
        return tables

    def csv(self) -> dict[str, str]:
        """Returns each table as CSV, by its name, and what every client sent as `clients`."""
        pairs = enumerate(zip(self.times.tolist(), self.bytes.tolist()))
        clients = TextTable(("client", "rounds", "bytes"), tuple((str(i), *map(str, pair)) for i, pair in pairs), 1)
        return {name: table.csv() for name, table in {**self.tables(), "clients": clients}.items()}


@dataclass(frozen=True)
class LedgerReader:
    """The reader of the ledger of a run, with the entries of one of its rounds."""

    round: Annotated[int, Field(ge=1)] = 1

    def read(self, past: PastRun) -> Reading:
        """Returns the tables of `ledger`, and a CSV of each. Raises as `ledger`."""
        result = ledger(past.path, self.round)
        return Reading([*result.tables().values()], result.csv())


def ledger(run: Path, number: int = 1) -> Ledger:
    """Makes the ledger of a run; the entries are those of one round, which is made again.

    Raises ShoalError: the run logged no such round, nothing was sent in it, or dp-accounting is not installed.
    """
    past = PastRun(run)
    # The first rounds of a fork were made by its parent, with other options.
    source = past.of_round(number)
    source.require_read(number)
    before = source.after(number - 1)
    entries = _Entries()
    # Masked uploads have other shapes than those that the ledger lists.
    recording = Recording(source.job.without_stage("secure"), entries)
    recording.start(source.plan.rounds, before, server_device(source.config)).round(unwatched)
    if not entries.sent:
        raise ShoalError(run, f"no client sent anything in round {number}; --round names another")
    # No fork changes what epsilon counts.
    private, classes = options_of(past.config, "privacy"), past.store.manifest.classes
    times, sizes = np.zeros(past.store.clients, np.int64), np.zeros(past.store.clients, np.int64)
    for line in past.lines:
        _add(line, times, sizes)
    epsilons, bound = dict[int, float](), ""
    if (bounding := find_bounding(past.config)) is not None:
        last, clients = len(past.lines), past.config.partition.clients
        drawn = min(past.config.participation.size(clients), clients)
        for after in sorted({round(last * (i + 1) / MOST_ROUNDS) for i in range(MOST_ROUNDS)} - {0} | {1, last}):
            epsilons[after] = load(bounding.epsilon)(past.config, after)
        bound = f"{load(bounding.bound)(past.config, last)}; {drawn} of {clients} clients a round"
    return Ledger(
        [(entry, entry.reveals(classes, private, "secure" in source.job.stages)) for entry in entries.sent.values()],
        times,
        sizes,
        epsilons,
        bound,
        "none" if private is None else private.unit,
    )


def _add(line: Mapping[str, Any], times: np.ndarray, sizes: np.ndarray) -> None:
    """Adds the bytes that clients sent in a round. Older runs logged the sum alone, which is shared out equally."""
    cohort = line["cohort"]
    if cohort:
        column = line.get(CLIENT_BYTES, {}).get("up") or [line["bytes_up"] / len(cohort)]
        times[cohort] += 1
        sizes[cohort] += np.array(column, np.int64)
