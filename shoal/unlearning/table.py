"""Scores of models after removals as a table, with intervals over removals and runs."""

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from statistics import fmean, stdev

from scipy.stats import t as student

from shoal.tables.text_table import TextTable
from shoal.unlearning.scoring import Figures

EXACT, ORIGINAL = "exact", "original"
CONFIDENCE = 0.95
# A column: its head, what it shows, its decimals, and whether approximations show their difference to the exact model.
COLUMNS: tuple[tuple[str, str, int, bool], ...] = (
    ("rounds", "rounds", 1, False),
    ("visits", "visits", 0, False),
    ("weights", "weights", 3, False),
    ("equal %", "equal", 1, False),
    ("variation %", "variation", 2, False),
    ("AUC %", "membership", 1, True),
    ("rest %", "rest", 1, True),
    ("forgotten %", "forgotten", 1, True),
)


@dataclass(frozen=True)
class Scored:
    """A model after a removal from a run, and the work that it took.

    Attributes:
        run: Name of the run.
        removed: Name of the removal.
        first: The round that first saw it; 0: none did.
        model: `exact`, `original`, or the name of an approximation.
        rounds, visits: Its work on clients; of the original that of the run.
    """

    run: str
    removed: str
    first: int
    model: str
    rounds: int
    visits: int
    figures: Figures

    def value(self, name: str) -> float | None:
        """Returns a number by its name."""
        value: float | None = getattr(self if name in ("rounds", "visits") else self.figures, name)
        return value


@dataclass(frozen=True)
class Unlearned:
    """Models after removals, in the order of runs, removals and models; `rounds` are those of all runs."""

    scored: Sequence[Scored]
    trainings: float
    notes: tuple[str, ...] = ()

    def values(self, model: str, name: str, difference: bool) -> list[float]:
        """Lists a number of a model over removals, or its difference to the exact one's, without missing ones."""
        exact = {(row.run, row.removed): row.value(name) for row in self.scored if row.model == EXACT}
        numbers = list[float]()
        for row in self.scored:
            value, base = row.value(name), exact[row.run, row.removed] if difference else 0.0
            if row.model == model and value is not None and base is not None:
                numbers.append(value - base)
        return numbers

    def table(self) -> TextTable:
        """Makes a table with a row a model: means over removals, with half the width of their 95 % intervals."""
        models = list(dict.fromkeys(row.model for row in self.scored))
        rows = []
        for model in models:
            cells = []
            for _, name, decimals, compared in COLUMNS:
                differs = compared and model != EXACT
                cells.append(_cell(self.values(model, name, differs), decimals, differs))
            rows.append((model, *cells))
        removed = dict.fromkeys((row.run, row.removed) for row in self.scored)
        runs, (run, name) = dict.fromkeys(run for run, _ in removed), next(iter(removed))
        what = f"{name} of {run}" if len(removed) == 1 else f"{len(removed)} removals of {len(runs)} runs"
        notes = (
            "weights, equal, variation: to the exact model, of test items; AUC, rest, forgotten: of exact itself, of "
            "others the difference to it",
            *(("±: 95 % interval of the mean over removals",) if len(removed) > 1 else ()),
            f"exact removal: work of {self.trainings:.2f} trainings",
            *self.notes,
        )
        heads = ("model", *(head for head, *_ in COLUMNS))
        return TextTable(heads, tuple(rows), 1, title=f"removed: {what}", notes=notes)

    def csv(self) -> str:
        """Writes a line a model and removal, with all digits."""
        heads = ("run", "removed", "first_round", "model", "rounds", "visits", *Figures.__dataclass_fields__)
        show: Callable[[float | None], str] = lambda value: "" if value is None else f"{value:.17g}"  # noqa: E731
        rows = tuple(
            (row.run, row.removed, str(row.first), row.model, str(row.rounds), str(row.visits),
             *map(show, asdict(row.figures).values()))
            for row in self.scored
        )  # fmt: skip
        return TextTable(heads, rows, 1).csv()


def interval(numbers: Sequence[float]) -> float:
    """Returns half the width of the interval of a mean with 95 % confidence, by Student's t."""
    count = len(numbers)
    return float(student.ppf((1 + CONFIDENCE) / 2, count - 1)) * stdev(numbers) / count**0.5


def _cell(numbers: Sequence[float], decimals: int, differs: bool) -> str:
    if not numbers:
        return "-"
    text = f"{fmean(numbers):{'+' if differs else ''}.{decimals}f}"
    return text if len(numbers) < 2 else f"{text} ± {interval(numbers):.{decimals}f}"
