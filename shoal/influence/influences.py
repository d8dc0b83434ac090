"""Influences of the clients of a run, on all others and by class: as tables, and in a file of the run.

Axes: C classes; lists of two have the client's own number first, then that of all others.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from math import ceil, isnan, log10, nan
from pathlib import Path
from statistics import fmean

from shoal.engine.records.run_folder import INFLUENCE
from shoal.storage.errors import ShoalError
from shoal.storage.files.atomic import replacing
from shoal.storage.files.checksummed_json import sealed, unsealed
from shoal.storage.files.reading import read_bytes
from shoal.tables.text_table import TextTable


@dataclass(frozen=True)
class Influence:
    """The influence of a client on a run.

    Attributes:
        first: The round of its first visit; 0: it has none, and changes nothing.
        trained: Rounds that the run without it trained.
        run: Folder of that run; for a client without visits the run's own.
        items: Test items by class, `[2][C]`.
        gains: Number of these items that are predicted right in the run minus that without the client, `[2][C]`.
    """

    client: int
    first: int
    trained: int
    run: Path
    items: Sequence[Sequence[int]]
    gains: Sequence[Sequence[int]]

    @property
    def on_itself(self) -> float:
        """Test accuracy of the client in the run minus that without it, in points; NaN without test items."""
        return _points(sum(self.gains[0]), sum(self.items[0]))

    @property
    def on_others(self) -> float:
        """The same of all others together."""
        return _points(sum(self.gains[1]), sum(self.items[1]))

    @property
    def others_text(self) -> str:
        """The influence on all others, with the digits that one test item changes."""
        return _format_points(self.on_others, sum(self.items[1]))

    @property
    def on_classes(self) -> list[float]:
        """The same of all others, by class."""
        return list(map(_points, self.gains[1], self.items[1]))


@dataclass(frozen=True)
class Influences:
    """Influences of clients, in a scope in the final round; how many rounds the run has, and names of the classes."""

    scope: str
    rounds: int
    classes: Sequence[str]
    found: Sequence[Influence]

    @property
    def ordered(self) -> list[Influence]:
        """The most useful client for others first."""
        return sorted(self.found, key=lambda each: (-each.on_others, each.client))

    @property
    def finding(self) -> str:
        """A line with the clients that help and harm all others most; empty without test items at others."""
        shown = [row for row in self.ordered if not isnan(row.on_others)]
        most = {"helps": shown[0], "harms": shown[-1]} if shown else {}
        signs = {"helps": 1, "harms": -1}
        parts = [
            f"client {row.client} {verb} all others most ({row.others_text} points)"
            for verb, row in most.items()
            if signs[verb] * row.on_others > 0
        ]
        text = ", ".join(parts) or ("no client changes the accuracy of all others" if shown else "")
        return text[:1].upper() + text[1:]

    def table(self, by_class: bool = False) -> TextTable:
        """Makes a table with a row a client, the most useful for others first, in points.

        `by_class` adds classes; then all points have two decimals, for programs, else as many as one item changes.
        """
        rows = []
        for row in self.ordered:
            others, itself = (
                _format_points(p, sum(i)) for p, i in zip((row.on_others, row.on_itself), row.items[::-1])
            )
            points = [others, itself]
            if by_class:
                points = [_format_points(p) for p in (row.on_others, row.on_itself, *row.on_classes)]
            first = map(str, (row.client, sum(row.items[0]), row.first or "-", row.trained))
            rows.append((*first, *points, row.run.name))
        trained, scratch = sum(row.trained for row in self.found), self.rounds * len(self.found)
        heads = ("client", "test items", "first round", "rounds trained", "on others", "on itself")
        return TextTable(
            (*heads, *(f"on class {name}" for name in (self.classes if by_class else ())), "run without it"),
            tuple(rows),
            1,
            title=f"influence on test accuracy, scope {self.scope}, final round: points with the client minus without",
            notes=(f"{trained} rounds trained, {scratch} from scratch",),
        )

    def of_classes(self) -> TextTable:
        """Makes a table with a row a class: mean, lowest and highest influence on its items at all other clients."""
        rows = []
        for c, name in enumerate(self.classes):
            pairs = [(row.on_classes[c], row.client) for row in self.found if row.items[1][c]]
            items = max((sum(counts[c] for counts in row.items) for row in self.found), default=0)
            ends = [_end_of(pairs, end(pairs)[0], items) for end in (min, max)] if pairs else ["-", "-"]
            mean = _format_points(fmean(points for points, _ in pairs), items * len(pairs)) if pairs else "-"
            rows.append((name, str(items), mean, *ends))
        heads = ("class", "test items", "mean", "lowest", "highest")
        title = "influence on test accuracy of a class at all others: points with the client minus without"
        return TextTable(heads, tuple(rows), 1, title=title)

    def write(self, run: Path) -> None:
        """Keeps them in the folder of the run, for its page."""
        plain = {**asdict(self), "found": [{**asdict(row), "run": str(row.run)} for row in self.found]}
        with replacing(run / INFLUENCE) as unfinished:
            unfinished.write_text(sealed(plain))


def read_influences(run: Path) -> Influences | None:
    """Reads the influences kept in a folder; None: there are none. Raises ShoalError: the file is damaged."""
    try:
        plain = unsealed(read_bytes(run / INFLUENCE))
        influences = [Influence(**{**entry, "run": Path(entry["run"])}) for entry in plain.pop("found")]
        return Influences(**plain, found=influences)
    except FileNotFoundError:
        return None
    except (ValueError, KeyError, TypeError) as error:
        raise ShoalError(run / INFLUENCE, f"damaged ({error}); shoal influence writes it again") from None


def _points(gain: int, items: int) -> float:
    return 100 * gain / items if items else nan


def _format_points(points: float, items: int | None = None) -> str:
    """Formats points of accuracy over test items, with no digit below what one item changes; or with two decimals."""
    if isnan(points):
        return "-"
    decimals = 2 if items is None else min(max(ceil(log10(max(items, 1))) - 2, 0), 2)
    text = f"{points:+.{decimals}f}"
    return text if items is None or float(text) else "0"


def _end_of(pairs: Sequence[tuple[float, int]], points: float, items: int) -> str:
    """Returns an end of the points of clients, with the client that has it, or how many clients have it."""
    clients = [client for of_client, client in pairs if of_client == points]
    who = f"client {clients[0]}" if len(clients) == 1 else f"{len(clients)} clients"
    return f"{_format_points(points, items)} ({who})"
