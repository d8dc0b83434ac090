"""The comparison of two runs, where they part and why: the reader, its tables, and the line that sums them up."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field

from shoal.bisect.causes import Explanation, Finding
from shoal.bisect.differences import compare
from shoal.bisect.foreign_uploads import ForeignUploads, list_uploads
from shoal.bisect.parting import Search
from shoal.bisect.sides import Side
from shoal.engine.config.config_text import CONFIG
from shoal.past.reader import Reading
from shoal.past.rewind import PastRun
from shoal.storage.errors import ShoalError
from shoal.tables.text_table import TextTable

# A table of steps, or of weights, shows at most so many rows.
MOST_ROWS = 20
TOLERANCE = 1e-5


@dataclass(frozen=True)
class Bisection:
    """The comparison of two runs.

    Attributes:
        sides: The runs; of uploads of another program the run alone.
        rounds: Rounds that both have.
        tolerance: The largest relative difference that is one in last bits.
        finding: The first difference; None: they are equal.
        in_value: The first difference in value, which may be the same; None: there is none, or it is not known.
        seen_to: The last round up to which models and what clients keep were compared, where they are equal.
        visits: Visits of clients that were made again.
        reads: Pairs of checkpoints that were compared.
    """

    sides: tuple[Side, ...]
    rounds: int
    tolerance: float
    finding: Finding | None
    in_value: Finding | None
    seen_to: int
    visits: int
    reads: int

    @property
    def verdict(self) -> str:
        """Sums it up in a line."""
        if self.finding is None:
            return self._equal()
        first = self._line(self.finding, "first difference")
        if self.in_value is None:
            return f"{first}; none is in value up to round {self.rounds}"
        return first if self.in_value is self.finding else f"{first}; {self._line(self.in_value, 'first in value')}"

    def _equal(self) -> str:
        if len(self.sides) == 1:
            return f"uploads equal in all {self.rounds} rounds, to a relative difference of {self.tolerance:g}"
        a, b = self.sides
        text = f"equal in {'all' if a.rounds == b.rounds else 'their first'} {self.rounds} rounds"
        if self.seen_to < self.rounds:
            text += f" as far as they were recorded; models were compared up to round {self.seen_to}"
        longer = max(self.sides, key=lambda side: side.rounds)
        return text if a.rounds == b.rounds else f"{text}; {longer.label} has {longer.rounds}"

    def _line(self, finding: Finding, what: str) -> str:
        rounds = f"round {finding.round}"
        if finding.earliest < finding.round:
            rounds = f"rounds {finding.earliest} to {finding.round}"
        parts = [rounds, *([f"phase {finding.phase}"] if finding.phase else []), *_who(finding.clients)]
        text = f"{what}: {', '.join(parts)}{', ' + finding.tensor if finding.tensor else ''}"
        if finding.keys:
            pairs = ", ".join(f"{key} ({_short(a)} and {_short(b)})" for key, (a, b) in finding.keys.items())
            return f"{text}; cause: {finding.cause}, {pairs}"
        return f"{text}; cause: {finding.cause}"

    def tables(self) -> dict[str, TextTable]:
        """Makes tables by name: the finding, and losses, gradients and weights of both runs side by side."""
        tables = {"runs": self._runs()}
        for name, finding in (("first", self.finding), ("in_value", self.in_value)):
            if finding is not None and (name == "first" or finding is not self.finding):
                tables[name] = self._of(finding, name)
        shown = self.in_value or self.finding
        if shown is not None and shown.steps:
            tables["steps"] = _steps(shown)
        if shown is not None and any(shown.weights.values()):
            tables["weights"] = _weights(shown)
        return tables

    def _runs(self) -> TextTable:
        rows = [("rounds", *(str(side.rounds) for side in self.sides))]
        rows.append(("checkpoints of rounds", *(_ranges(sorted(side.kept)) for side in self.sides)))
        rows.append(("digests of uploads", *("yes" if side.digests else "no" for side in self.sides)))
        if self.finding is not None:
            words = {True: "yes", False: "no", None: "not known"}
            made = (words[self.finding.reproduces[side.label]] for side in self.sides)
            rows.append((f"this code makes round {self.finding.round} as recorded", *made))
        notes = [f"{side.label}: {line}" for side in self.sides for line in dict.fromkeys(side.lost)]
        work = f"{self.visits} visits of clients were made again, {self.reads} pairs of checkpoints compared"
        return TextTable(
            ("", *(side.name for side in self.sides)), tuple(rows), 1 + len(self.sides), notes=(*notes, work)
        )

    def _of(self, finding: Finding, name: str) -> TextTable:
        rounds = str(finding.round)
        if finding.earliest < finding.round:
            rounds = f"{finding.earliest} to {finding.round}"
        clients = ", ".join(map(str, finding.clients[:MOST_ROWS])) + (", …" if len(finding.clients) > MOST_ROWS else "")
        far = "" if finding.difference is None else finding.difference.text(self.tolerance)
        rows = [
            ("cause", finding.cause),
            ("round", rounds),
            ("phase", finding.phase),
            ("clients", clients),
            ("tensor", finding.tensor),
            ("difference", far),
            *((key, f"{_short(a)} in A, {_short(b)} in B") for key, (a, b) in finding.keys.items()),
            *(("because", why) for why in finding.why),
        ]
        title = "the first difference" if name == "first" else "the first difference in value"
        return TextTable(("", "found"), tuple(row for row in rows if row[1]), 2, title=title)


def _steps(finding: Finding) -> TextTable:
    """Makes a table of the steps of local training of the first client, A beside B."""
    both = [finding.steps.get(label, []) for label in ("A", "B")]
    rows = []
    for number in range(min(MOST_ROWS, max(map(len, both)))):
        a, b = (steps[number] if number < len(steps) else None for steps in both)
        apart = "-"
        if a is not None and b is not None:
            pairs = [compare(name, g, b.gradients.get(name)) for name, g in a.gradients.items()]
            apart = f"{max((f.relative for f in pairs if f is not None), default=0.0):.3g}"
        cells = [f"{step.loss:.6g}" if step else "-" for step in (a, b)]
        norms = [f"{step.norm:.4g}" if step else "-" for step in (a, b)]
        rows.append((str(number + 1), *cells, *norms, apart))
    heads = ("step", "loss A", "loss B", "gradient A", "gradient B", "relative difference of gradients")
    title = f"round {finding.round}, client {finding.clients[0]}: loss and norm of gradients in local training"
    more = max(map(len, both)) - len(rows)
    return TextTable(heads, tuple(rows), 1, title=title, notes=(f"{more} steps more",) if more else ())


def _weights(finding: Finding) -> TextTable:
    """Makes a table of the weights of uploads in means, and of rows by which uploads are mixed, A beside B."""
    both = [finding.weights.get(label, {}) for label in ("A", "B")]
    names = list(dict.fromkeys([*both[0], *both[1]]))
    # Rows that differ come first.
    names.sort(key=lambda name: both[0].get(name) == both[1].get(name))
    rows = tuple((name, *(_numbers(side.get(name)) for side in both)) for name in names[:MOST_ROWS])
    notes = (f"{len(names) - len(rows)} rows more",) if len(names) > len(rows) else ()
    return TextTable(("mixing weights", "A", "B"), rows, 1, title=f"round {finding.round}", notes=notes)


def _numbers(value: Any) -> str:
    if value is None:
        return "-"
    return " ".join(f"{number:.4g}" for number in value) if isinstance(value, list) else f"{value:.6g}"


def _who(clients: Sequence[int]) -> list[str]:
    if not clients:
        return []
    return [f"client {clients[0]}" + (f" and {len(clients) - 1} more" if len(clients) > 1 else "")]


def _short(value: Any) -> str:
    text = str(value)
    return text if len(text) <= 60 else f"{text[:57]}…"


def _ranges(numbers: Sequence[int]) -> str:
    """Writes ascending numbers with those in between left out: `1 to 4, 8`."""
    parts, start = list[str](), 0
    for place, number in enumerate(numbers):
        if place + 1 == len(numbers) or numbers[place + 1] != number + 1:
            first = numbers[start]
            parts.append(str(number) if first == number else f"{first} to {number}")
            start = place + 1
    return ", ".join(parts[:MOST_ROWS]) + (", …" if len(parts) > MOST_ROWS else "") if parts else "none"


def bisect(run: Path, other: Path, tolerance: float = TOLERANCE) -> Bisection:
    """Finds where two runs part, and why; their folders stay as they are.

    Args:
        other: A run, or a folder of uploads of another program: `round-N/client-I.npz`, arrays by entry.
        tolerance: The largest difference of two numbers, as a share of the largest magnitude in both tensors, that is
            one in last bits.

    Raises:
        ShoalError: A folder has no run, or its record is damaged.
    """
    if not (math.isfinite(tolerance) and tolerance >= 0):
        raise ShoalError("--tolerance", f"expected a number from 0 on, got {tolerance}")
    a = Side("A", run)
    if not (other / CONFIG).exists() and (uploads := list_uploads(other)):
        foreign = ForeignUploads(a, uploads, tolerance)
        finding, rounds = foreign.find(), foreign.rounds
        return Bisection((a,), len(rounds), tolerance, finding, finding, rounds[-1], foreign.visits, 0)
    b = Side("B", other)
    search = Search(a, b)
    if run.resolve() == other.resolve():
        return Bisection((a, b), a.rounds, tolerance, None, None, a.rounds, 0, 0)
    parting = search.find()
    if parting is None:
        return Bisection((a, b), search.common, tolerance, None, None, search.seen_to, search.visits, search.reads)
    finding = Explanation(a, b, parting, tolerance).explain()
    visits, reads, in_value = finding.visits, search.reads, finding
    if not _is_in_value(finding, tolerance):
        later = Search(a, b, tolerance)
        reads_before, next_parting = reads, later.find()
        reads = reads_before + later.reads
        if next_parting is None:
            visits += later.visits
            return Bisection((a, b), search.common, tolerance, finding, None, 0, visits, reads)
        in_value = Explanation(a, b, next_parting, tolerance, tolerance).explain()
        visits += in_value.visits
    return Bisection((a, b), search.common, tolerance, finding, in_value, parting.round - 1, visits, reads)


def _is_in_value(finding: Finding, tolerance: float) -> bool:
    """Returns whether a difference is known to be one in value; one of which no tensor is known may be in last bits."""
    return finding.difference is not None and finding.difference.relative > tolerance


@dataclass(frozen=True)
class BisectReader:
    """The reader that compares a run with another one; options are the arguments of `bisect`."""

    other: str
    tolerance: Annotated[float, Field(ge=0)] = TOLERANCE

    def read(self, past: PastRun) -> Reading:
        """Returns the tables of the comparison; the runs are `as_recorded` if they are equal. Raises as `bisect`."""
        result = bisect(past.path, Path(self.other), self.tolerance)
        tables: Mapping[str, TextTable] = result.tables()
        csv = {name: table.csv() for name, table in tables.items()}
        return Reading([*tables.values()], csv, result.verdict, result.finding is None)
