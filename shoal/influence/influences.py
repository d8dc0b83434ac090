"""Influences of the clients of a run, on all others and by class: as tables, and in a file of the run.

Axes: C classes; lists of two have the client's own number first, then that of all others.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from math import isnan, nan
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

    def table(self, by_class: bool = False) -> TextTable:
        """Makes a table with a row a client, the most useful for others first, in points; `by_class` adds classes."""
        rows = tuple(
            (
                *map(str, (row.client, sum(row.items[0]), row.first or "-", row.trained)),
                *map(_format_points, (row.on_others, row.on_itself, *(row.on_classes if by_class else ()))),
                row.run.name,
            )
            for row in self.ordered
        )
        trained, scratch = sum(row.trained for row in self.found), self.rounds * len(self.found)
        heads = ("client", "test items", "first round", "rounds trained", "on others", "on itself")
        return TextTable(
            (*heads, *(f"on class {name}" for name in (self.classes if by_class else ())), "run without it"),
            rows,
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
            lowest_and_highest = (min(pairs), max(pairs)) if pairs else ()
            ends = [f"{_format_points(point)} (client {client})" for point, client in lowest_and_highest]
            mean = _format_points(fmean(points for points, _ in pairs)) if pairs else "-"
            rows.append((name, str(items), mean, *(ends or "--")))
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


def _format_points(points: float) -> str:
    return "-" if isnan(points) else f"{points:+.2f}"
