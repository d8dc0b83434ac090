"""The table of a study: combinations by row, figures or the values of a key by column, spreads over seeds in cells."""

import shutil
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from shoal.engine.config.sections import current_name
from shoal.engine.config.sizes import size
from shoal.engine.records.summary import OF_SAMPLES, SAMPLED
from shoal.engine.studies.groups import Group, Row, Spread, Statistic, baseline_of, grouped, paired_p, spread_of, varied
from shoal.engine.studies.means import (
    MEANS,
    SCOPES,
    Mean,
    by_one_mean,
    comparable,
    is_of_sample,
    is_share,
    is_short,
    several_clients,
)
from shoal.engine.studies.sweep_folder import read_rows, rows_of, title_of
from shoal.engine.studies.text_table import TextTable
from shoal.storage.errors import ShoalError
from shoal.storage.files.atomic import output, replacing

Ties = Literal["shown", "exact"]
Place = tuple[int, int]
METHOD = "algorithm"
# Sections of the items that are scored, and of who holds them: numbers of other ones are never compared.
OF_DATA = ("data", "partition", "task", "evaluation")


def shared_keys(groups: Sequence[Group]) -> list[str]:
    """The keys whose values groups must share to be compared: all that vary, but those of the method.

    A key that each method has one value of, as a rate that validation chose for it, belongs to the method. Where
    methods do not vary, all keys but those of the data are compared.
    """
    keys = varied(groups)
    of_method = [key for key in keys if _section(key) == METHOD]
    shared = [key for key in keys if key not in of_method and (of_method or _section(key) in OF_DATA)]
    for key in [key for key in shared if _section(key) not in OF_DATA]:
        others = [*of_method, *(other for other in shared if other != key)]
        values = {tuple(group.columns.get(other) for other in others) for group in groups}
        if len(values) == len({tuple(group.columns.get(other) for other in (*others, key)) for group in groups}):
            shared.remove(key)
    return shared


def marked(
    values: Mapping[Place, float], equal: Callable[[float, float], bool], not_worse: Callable[[Place, Place], bool]
) -> tuple[list[Place], list[Place]]:
    """Places of the best, and of the second best, of values that are compared; none of a single one.

    With the highest come those that are equal to it or `not_worse(place, highest)`; the highest of the rest, with its
    equals, is the second best.
    """
    if len(values) < 2:
        return [], []
    top = max(values, key=values.__getitem__)
    best = [place for place, v in values.items() if equal(v, values[top]) or not_worse(place, top)]
    rest = {place: value for place, value in values.items() if place not in best}
    return best, [place for place, value in rest.items() if equal(value, max(rest.values()))]


def _section(key: str) -> str:
    return key.partition(".")[0]


# Visits of clients that failed, which are shown if there are any.
LEFT_OUT = "left_out.visits"


@dataclass(frozen=True)
class Layout:
    """The layout of a table.

    Attributes:
        figures: Names of figures; empty: validation and test of every scope at the best validation round, and costs.
        rows: Keys that name a row; empty: all that vary and are not in `columns`, the key whose values are the columns.
        statistic: Mean ± sample standard deviation, or median [quartiles], over runs that differ in seeds alone.
        against: Values of keys that name the combination to compare with, by the paired t-test over seeds.
        mean: The mean over clients of scores with short names; None: see `by_one_mean`.
        ties: What ties with the best or the second best: what is `shown` as the same number, or is `exact`ly equal.
        not_worse: Level of the paired t-test over seeds; what is not worse by it is marked with the best.
    """

    figures: tuple[str, ...] = ()
    rows: tuple[str, ...] = ()
    columns: str | None = None
    statistic: Statistic = "mean"
    against: tuple[tuple[str, str], ...] = ()
    mean: Mean | None = None
    ties: Ties = "shown"
    not_worse: float | None = None


def table_of(rows: Sequence[Row], layout: Layout, title: str = "") -> TextTable:
    """Makes the table of the finished runs; of what may be compared the best and the second best are marked."""
    chosen, mean = by_one_mean([row for row in rows if row.state != "not chosen"], layout.mean)
    groups = [group for group in grouped(chosen) if any(row.figures for row in group.rows)]
    if not groups:
        return TextTable(("runs",), (), 1, title=title, notes=("no run is finished",))
    known: dict[str, float] = {}
    for figures_of_run in (row.figures for group in groups for row in group.rows):
        known.update({name: max(value, known.get(name, value)) for name, value in figures_of_run.items()})
    figures = layout.figures or _unasked(known)
    for figure in figures:
        if figure not in known:
            similar = [name for name in known if name.endswith(figure.rpartition(".")[2])] or list(known)
            raise ShoalError(f"--figure {figure}: no run has it; there are {', '.join(similar[:12])}")
    all_keys = list(dict.fromkeys(key for group in groups for key in group.columns))
    for key in (*layout.rows, *([layout.columns] if layout.columns else []), *(key for key, _ in layout.against)):
        if key not in all_keys:
            raise ShoalError(key, f"runs do not differ in this key; they do in {', '.join(all_keys) or 'seeds alone'}")
    against = dict(layout.against)
    if against and not any(against.items() <= group.columns.items() for group in groups):
        raise ShoalError("--against", f"no finished runs have {_listed(against)}")
    keys = list(layout.rows) or [key for key in varied(groups) if key != layout.columns]
    cells = _cells(groups, keys, layout.columns)
    numbers = _Numbers(layout.statistic, against, groups, mean, layout.ties, layout.not_worse)
    return _joined(cells, keys, figures, numbers, title)


@dataclass(frozen=True)
class _Numbers:
    """Turns a figure of a group into a cell."""

    statistic: Statistic
    against: Mapping[str, str]
    groups: Sequence[Group]
    mean: str
    ties: Ties
    not_worse: float | None

    @property
    def rows(self) -> list[Row]:
        return [row for group in self.groups for row in group.rows]

    def spread(self, group: Group | None, figure: str) -> Spread | None:
        return None if group is None else spread_of(group.values(figure), self.statistic)

    def of_sample(self, group: Group, figure: str) -> bool:
        return is_share(figure) and any(is_of_sample(figure, row.figures) for row in group.rows)

    def cell(self, group: Group | None, figure: str) -> str:
        found = self.spread(group, figure)
        if group is None or found is None:
            return "-"
        text = _number(found.middle, figure)
        if found.low is not None and found.high is not None and "bytes" not in figure:
            low, high = _number(found.low, figure), _number(found.high, figure)
            text += f" ± {low}" if self.statistic == "mean" else f" [{low}, {high}]"
        if self.of_sample(group, figure):
            text += SAMPLED
        other = baseline_of(group, self.groups, self.against) if self.against and is_share(figure) else None
        if other is None or other is group:
            return text
        p = paired_p(group, other, figure)
        return f"{text} (p -)" if p is None else f"{text} (p {p:.3f})"


def _cells(groups: Sequence[Group], keys: Sequence[str], column: str | None) -> dict[tuple[str, ...], dict[str, Group]]:
    """Groups by the values of the row's keys and that of the column's."""
    cells: dict[tuple[str, ...], dict[str, Group]] = {}
    for group in groups:
        row = tuple(group.columns.get(key, "-") for key in keys)
        value = "" if column is None else group.columns.get(column, "")
        of_row = cells.setdefault(row, {})
        if value in of_row:
            shared = ", ".join(key for key in group.columns if of_row[value].columns.get(key) != group.columns[key])
            raise ShoalError("--rows", f"combinations that differ in {shared} would share a cell; name it, too")
        of_row[value] = group
    return cells


def _joined(
    cells: Mapping[tuple[str, ...], Mapping[str, Group]],
    keys: Sequence[str],
    figures: Sequence[str],
    numbers: _Numbers,
    title: str,
) -> TextTable:
    values = list(dict.fromkeys(value for row in cells.values() for value in row))
    wanted = [(figure, value) for figure in figures for value in values]
    heads = [" ".join(part for part in (value, figure) if part) for figure, value in wanted]
    if len(figures) == 1 and values != [""]:
        heads = values
    runs = {group.finished for row in cells.values() for group in row.values()}
    counted = len(runs) > 1
    rows, placed = [], list[list[Group | None]]()
    for row, by_value in cells.items():
        groups = [by_value.get(value) for _, value in wanted]
        count = ["/".join(str(group.finished) for group in by_value.values())] if counted else []
        rows.append((*row, *count, *(numbers.cell(g, figure) for g, (figure, _) in zip(groups, wanted))))
        placed.append(groups)
    notes = [f"{figures[0]}"] if len(figures) == 1 and heads == values else []
    notes += _notes(numbers, runs, figures)
    best, second = _marks(placed, [figure for figure, _ in wanted], numbers, len(keys) + counted)
    return TextTable(
        (*keys, *(["runs"] if counted else []), *heads), tuple(rows), len(keys), best, title, tuple(notes),
        second, _compared(numbers), numbers.mean if any(map(is_short, figures)) else "",
    )  # fmt: skip


def _marks(
    placed: Sequence[Sequence[Group | None]], figures: Sequence[str], numbers: _Numbers, first: int
) -> tuple[frozenset[Place], frozenset[Place]]:
    """Places of the best and the second best of every share, wherever they are in the table; of costs none."""
    keys = shared_keys(numbers.groups)
    of: dict[tuple[str, tuple[str | None, ...]], dict[Place, Group]] = {}
    for row, groups in enumerate(placed):
        for column, (group, figure) in enumerate(zip(groups, figures)):
            if group is not None and is_share(figure) and comparable(figure, numbers.rows):
                shared = tuple(group.columns.get(key) for key in keys)
                of.setdefault((figure, shared), {})[row, first + column] = group
    best, second = set[Place](), set[Place]()
    for (name, _), groups_of in of.items():
        known = {place: s.middle for place, group in groups_of.items() if (s := numbers.spread(group, name))}

        def equal(a: float, b: float, name: str = name) -> bool:
            return a == b or (numbers.ties == "shown" and _number(a, name) == _number(b, name))

        def not_worse(place: Place, top: Place, of: Mapping[Place, Group] = groups_of, name: str = name) -> bool:
            p = paired_p(of[place], of[top], name) if numbers.not_worse is not None else None
            return p is not None and numbers.not_worse is not None and p >= numbers.not_worse

        bests, seconds = marked(known, equal, not_worse)
        best.update(bests)
        second.update(seconds)
    return frozenset(best), frozenset(second)


def _compared(numbers: _Numbers) -> str:
    """What marks compare, for a legend."""
    keys = shared_keys(numbers.groups)
    text = f" of equal {', '.join(keys)}" if keys else ""
    if numbers.not_worse is not None:
        text += f"; with the best is what the paired t-test over seeds does not find worse at {numbers.not_worse:g}"
    return text


def _notes(numbers: _Numbers, runs: set[int], figures: Sequence[str]) -> list[str]:
    most = max(runs)
    spread = "mean ± sample standard deviation" if numbers.statistic == "mean" else "median [lower, upper quartile]"
    notes = [f"{spread} over {most} runs" if len(runs) == 1 else spread] if most > 1 else []
    if any(map(is_share, figures)):
        notes.append("shares in %")
    if any(".best." in figure for figure in figures):
        notes.append("best: at the best validation round of the scope")
    if numbers.against:
        notes.append(
            f"p: paired t-test over seeds against {_listed(numbers.against)}, not corrected for several comparisons"
        )
    if any(numbers.of_sample(group, figure) for group in numbers.groups for figure in figures):
        notes.append(OF_SAMPLES)
    lines = ["; ".join(notes)]
    if any(map(is_short, figures)):
        several = several_clients(numbers.rows)
        counts = f"{', '.join(map(str, several[:-1]))} and {several[-1]}" if several else ""
        why = f"; runs have {counts} clients" if several else ""
        lines.append(f"scores: {MEANS[numbers.mean]}{why}")
    if unlike := [figure for figure in figures if is_share(figure) and not comparable(figure, numbers.rows)]:
        lines.append(f"not compared, for they depend on the number of clients: {', '.join(unlike)}")
    return lines


def _listed(values: Mapping[str, str]) -> str:
    return ", ".join(f"{key} {value}" for key, value in values.items())


def _unasked(known: Mapping[str, float]) -> tuple[str, ...]:
    """Validation and test of every scope, then seconds and bytes."""
    scores = [f"{scope}.best.{part}" for scope in SCOPES for part in ("val", "test")]
    costs = ("seconds.round_median", "bytes.up_per_client_round", "bytes.down_per_client_round")
    left_out = [LEFT_OUT] if known.get(LEFT_OUT) else []
    return tuple(figure for figure in (*scores, *left_out, *costs) if figure in known)


def _number(value: float, figure: str) -> str:
    if is_share(figure):
        return f"{100 * value:.2f}"
    if "bytes" in figure:
        return size(round(value))
    return f"{value:.3f}" if abs(value) < 100 else f"{value:,.0f}"


Format = Literal["terminal", "markdown", "latex", "csv"]


def layout_of(
    figures: Sequence[str], rows: str | None, columns: str | None, statistic: Statistic, against: str,
    mean: Mean | None, ties: Ties, not_worse: float | None,
) -> Layout:  # fmt: skip
    """A layout from the options of a command line."""
    if not_worse is not None and not 0 < not_worse < 1:
        raise ShoalError("--not-worse", f"must be a level between 0 and 1, as 0.05, found {not_worse:g}")
    pairs = [part.partition("=") for part in against.split(",") if part]
    if wrong := next((key for key, equals, _ in pairs if not equals), None):
        raise ShoalError(f"--against {wrong}: has the form key=value, as in train.lr=0.1")
    named = tuple((key, value) for key, _, value in pairs)
    keys = tuple((rows or "").split(",")) if rows else ()
    return Layout(tuple(map(current_name, figures)), keys, columns, statistic, named, mean, ties, not_worse)


def show_rows(rows: Sequence[Row], layout: Layout, title: str = "") -> None:
    """The table of runs on the terminal, or as wide as it is where there is none; below it the failed runs."""
    print(on_screen(table_of(rows, layout, title)), end="")
    for row in rows:
        if row.error:
            print(f"failed: {row.label}: {row.error}")


def show_sweep(folder: Path) -> None:
    """Every run of a sweep with its state and its folder, and the table of what is finished."""
    rows = read_rows(folder)
    keys = list(dict.fromkeys(key for row in rows for key in row.columns))
    runs = [(*(row.columns.get(key, "") for key in keys), row.state, row.run) for row in rows]
    print(on_screen(TextTable((*keys, "state", "run"), tuple(runs), len(keys) + 2, title=title_of(folder))))
    show_rows(rows, Layout())


def write_table(paths: Sequence[Path], layout: Layout, form: Format, out: Path | None) -> None:
    """Writes the table of runs and sweeps to a file, or prints it."""
    rows = rows_of(paths)
    if form == "terminal" and out is None:
        show_rows(rows, layout)
        return
    table = table_of(rows, layout)
    text = {"terminal": table.text, "markdown": table.markdown, "latex": table.latex, "csv": table.csv}[form]()
    if out is None:
        print(text, end="")
        return
    with replacing(output(out)) as unfinished:
        unfinished.write_text(text)
    print(f"written: {out}")


def on_screen(table: TextTable) -> str:
    """A table for the terminal, or as wide as it is where there is none."""
    return table.text(shutil.get_terminal_size().columns if sys.stdout.isatty() else None)
