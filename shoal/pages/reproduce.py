"""Reproduces tables of a paper: plans, runs what is missing, and sets ours beside the paper's figures."""

import csv
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean, stdev

from yaml import YAMLError, safe_load

from shoal.engine.config.run_identity import changes_numbers, fingerprint_of, flatten
from shoal.engine.records.graphs import sources
from shoal.engine.records.run_folder import finished
from shoal.engine.runs.dry_run import expected
from shoal.engine.runs.plan import RunPlan
from shoal.engine.screen.output import put
from shoal.engine.screen.progress import say
from shoal.pages.figures import Drawing, Point, over_key
from shoal.pages.looks import in_panels
from shoal.pages.page import Head, Section, write_page
from shoal.storage.datasets.registry import missing_files
from shoal.storage.errors import ShoalError
from shoal.storage.files.atomic import replacing
from shoal.study.groups import Row
from shoal.study.means import MEANS, figures_by, is_share, validation_by
from shoal.study.plain_names import key_names, score_name
from shoal.study.study import Selection
from shoal.study.sweep_folder import root_of, row_of
from shoal.sweeps.sweep import Sweep, store_keys
from shoal.sweeps.sweep_view import span
from shoal.tables.papers import (
    LOCAL,
    Paper,
    PaperCell,
    Printed,
    known_names,
    require_free,
    smallest_of,
    some_of,
    study_of,
)
from shoal.tables.study_table import Place, mark_best, on_screen
from shoal.tables.text_table import TextTable

TABLES = "tables.md"
WITHIN, OUTSIDE = "within", "outside"
LEVEL = 0.95
NOISE = (
    f"noise: whether Welch's {100 * LEVEL:.0f} % interval of the gap holds 0, over seeds here and the paper's "
    "repetitions; a figure that the paper prints without a deviation, or without their number, counts as exact"
)
SMALLEST = "three rounds of one seed: they show that it runs, and measure nothing"
CHANGED = "with {}: other runs than the paper's, so there is no gap, and the paper's figures are of another setting"
MEGABYTE = 1e6
# Our figures are in this column of the table.
OURS = 4
# These keys change the last digits of numbers, and nothing that a paper describes.
OF_THE_MACHINE = (
    *("engine.cell_size", "engine.device", "engine.trainer", "engine.threads"),
    "resources.server_gpus",
)
LONGEST = 60


@dataclass(frozen=True)
class Asked:
    """The options of a reproduction: names of blocks, columns and rows, seeds, the smallest look, and overrides."""

    only: Collection[str] = ()
    seeds: int | None = None
    smallest: bool = False
    overrides: Sequence[str] = ()

    def __post_init__(self) -> None:
        """Refuses a number of seeds for a look of one seed, by a ShoalError."""
        if self.smallest and self.seeds is not None:
            raise ShoalError("--seeds", "--smallest is a look of one seed; leave out one of the two")

    @property
    def changed(self) -> list[str]:
        """Returns the overrides that make other runs than those of the paper's tables."""
        return [text for text in self.overrides if any(map(_is_of_the_paper, _keys(text)))]

    @property
    def compares(self) -> bool:
        """Returns whether runs are those that a table describes, so that a gap means something."""
        return not self.smallest and not self.changed

    @property
    def title(self) -> str:
        """Returns the end of a title, with the changed keys; empty where there are none."""
        return f", with {', '.join(self.changed)}" if self.changed else ""

    def file_name(self, name: str, *more: str) -> str:
        """Returns the name of a file or folder, with `more` and the changed keys in it."""
        parts = [name, *more, *self.changed]
        whole = "-".join(re.sub(r"[^\w.]+", "-", part).strip("-") for part in parts)
        return whole if len(whole) <= LONGEST else f"{whole[:LONGEST]}-{fingerprint_of({'parts': parts})}"

    def folder(self, paper: Paper, tables: Sequence[str]) -> str:
        """Returns the name of the folder of a page; what shows a part of some table has one of its own."""
        if self.smallest:
            return self.file_name(f"{paper.name}-smallest")
        few = self.seeds is not None and any(self.seeds < paper.tables[name].seeds for name in tables)
        only = ["only", *dict.fromkeys(self.only)] if self.only else []
        return self.file_name(paper.name, *only, *(["seeds", str(self.seeds)] if few else []))


def _keys(override: str) -> list[str]:
    """Returns the dotted keys that an override sets, those of a mapping one by one."""
    key, _, value = override.partition("=")
    try:
        return [*flatten({key: safe_load(value) if value.startswith("{") else value})]
    except YAMLError:
        # The config refuses such a text, and says why.
        return [key]


def _is_of_the_paper(key: str) -> bool:
    """Returns whether a config key is part of an experiment: it changes numbers and says nothing of the machine."""
    return changes_numbers(key) and key not in OF_THE_MACHINE


def cells_of(paper: Paper, table: str, asked: Asked) -> list[PaperCell]:
    """Returns the cells of a table that were asked for; raises ShoalError: an override sets what makes one of them."""
    cells = some_of(paper.cells(table), asked.only) if asked.only else paper.cells(table)
    cells = smallest_of(cells) if asked.smallest else cells
    require_free(paper, table, cells, asked.overrides)
    return cells


class TableRuns:
    """The runs of a table, and the reasons why some cells have none.

    `study` has the possible runs of the `cells` that were asked for. For every run, `places` has the place of its cell,
    and `rows` state and figures. `why_not` has the reasons for cells without runs.
    """

    def __init__(self, paper: Paper, name: str, asked: Asked) -> None:
        """Reads the configs of all runs; starts and writes nothing. Raises ShoalError if no config is right."""
        self.paper, self.name, self.read, self.asked = paper, name, paper.tables[name], asked
        self.title = f"{name}: {self.read.title}{asked.title}"
        self.cells = cells_of(paper, name, asked)
        self.why_not = {cell.label: cell.cannot for cell in self.cells if cell.cannot is not None}
        self._seeds = 1 if asked.smallest else asked.seeds or self.read.seeds
        runs: list[tuple[int, Selection, RunPlan, Row]] = []
        faults: dict[str, ShoalError] = {}
        for place, cell in enumerate(self.cells):
            if cell.cannot is not None:
                continue
            study = study_of(paper, name, [cell], self._seeds, asked.overrides)
            try:
                plans = [RunPlan.of(config) for config in study.configs]
                rows = [row_of(choice.columns, plan.folder) for choice, plan in zip(study.choices, plans)]
            except ShoalError as error:
                faults[cell.label] = error
                continue
            runs += zip([place] * len(rows), study.choices, plans, rows)
        if faults and not runs:
            # `Local` stays beside rows that the user named; the fault of one of these says more.
            raise faults[min(faults, key=lambda label: label.rpartition(", ")[2] == LOCAL)]
        self.why_not |= {label: error.line for label, error in faults.items()}
        # The first repetition of all cells comes before the second of any.
        runs.sort(key=lambda run: int(run[1].columns["seed"]))
        self.places = [place for place, _, _, _ in runs]
        self.plans = [plan for _, _, plan, _ in runs]
        if any(isinstance(plan.place, str) for plan in self.plans):
            raise ShoalError(
                "run.root", "is an address; tables of a paper are kept in a folder of this machine; set one"
            )
        self.rows = [row for _, _, _, row in runs]
        selections = tuple(selection for _, selection, _, _ in runs)
        self.study = replace(study_of(paper, name, [], self._seeds), selections=selections)

    @property
    def root(self) -> Path | None:
        """The folder of the runs; None where there are none."""
        return root_of(self.plans[0].config) if self.plans else None

    def go(self, at_once: int) -> None:
        """Runs what is not finished; a run whose data cannot be had is left out with the reason."""
        faults: dict[str, str] = {}
        seen: dict[Path, int] = {}
        for at, plan in enumerate(self.plans):
            if finished(plan.folder) or plan.folder in seen:
                continue
            key = store_keys(plan)
            if key not in faults:
                faults[key] = _fault(plan)
            if not faults[key]:
                seen[plan.folder] = at
            else:
                self.why_not[self.cells[self.places[at]].label] = faults[key]
        if seen:
            kept = sorted({*seen.values(), *self._finished_rivals()})
            sweep = Sweep(replace(self.study, selections=tuple(self.study.selections[at] for at in kept)), at_once)
            try:
                sweep.go()
            finally:
                by_folder = {row.run: row for row in sweep.rows}
                for at, row in enumerate(self.rows):
                    now = by_folder.get(row.run, row)
                    self.rows[at] = row_of(row.columns, row.path, now.state, now.error)

    def _finished_rivals(self) -> list[int]:
        """Returns the places of finished runs by which validation chooses."""
        if self.study.choose is None:
            return []
        places: dict[Path, int] = {}
        for at, plan in enumerate(self.plans):
            if self.study.choose in self.study.selections[at].columns and finished(plan.folder):
                places.setdefault(plan.folder, at)
        return list(places.values())

    def values(self, place: int) -> tuple[list[float], str]:
        """Returns the figures of the runs of a cell, in the unit of its table, and the value that validation chose."""
        cell = self.cells[place]
        rows = [row for row, of_cell in zip(self.rows, self.places) if of_cell == place and row.figures]
        chosen, choose = "", self.read.choose
        if choose is not None and any(choose.key in row.columns for row in rows):
            first = [row for row in rows if int(row.columns["seed"]) < choose.seeds]
            scores = next(iter(validation_by(first, choose.key, choose.by).values()), {})
            if not scores:
                return [], ""
            chosen = max(scores, key=scores.__getitem__)
            rows = [row for row in rows if row.columns[choose.key] == chosen]
        figures = [figures_by(row.path, self.read.mean) for row in rows]
        return [_in_unit(of_run[cell.score], cell.score) for of_run in figures if cell.score in of_run], chosen

    def table(self) -> TextTable:
        """Makes a table of the cells: the paper's figure, ours, the gap, and how it compares with `Local`."""
        rows: list[tuple[str, ...]] = []
        shares: dict[tuple[str, str], dict[Place, float]] = {}
        local = {(c.block, c.column): self.values(at)[0] for at, c in enumerate(self.cells) if c.row == LOCAL}
        for place, cell in enumerate(self.cells):
            values, chosen = self.values(place)
            of_local = local.get((cell.block, cell.column), [])
            name = f"{cell.row} ({chosen})" if chosen else cell.row
            printed = cell.printed if self.asked.compares else None
            numbers = (_format(values), _gap(values, printed), verdict(values, printed, self.read.runs))
            over = f"{fmean(values) - fmean(of_local):+.2f}" if values and of_local and cell.row != LOCAL else "-"
            if values and is_share(cell.score):
                shares.setdefault((cell.block, cell.column), {})[len(rows), OURS] = fmean(values)
            text = "-" if cell.printed is None else cell.printed.text
            rows.append((cell.block, cell.column, name, text, *numbers, over, str(len(values) or "-")))
        heads = ("block", "column", "row", "paper", "ours", "gap", "noise", "over Local", "seeds")
        # The names of blocks and columns are left out if no row has one.
        shown = [at for at in range(len(heads)) if at > 1 or any(row[at] for row in rows)]
        # Blocks and columns have other data or models, so that the best is marked in each of them.
        both = [
            mark_best(of_column, lambda *two: len({f"{number:.2f}" for number in two}) == 1, lambda *_: False)
            for of_column in shares.values()
        ]
        best, second = (frozenset((r, shown.index(c)) for pair in both for r, c in pair[at]) for at in (0, 1))
        return TextTable(
            tuple(heads[at] for at in shown), tuple(tuple(row[at] for at in shown) for row in rows),
            shown.index(3), best, self.title, tuple(self.notes()), second,
        )  # fmt: skip

    def drawings(self) -> list[Drawing]:
        """Draws our figures, a line for each row, for each block that has values of a numeric key as columns."""
        keys = {key for column in self.read.columns.values() for key in column.set}
        figures: list[Drawing] = []
        if len(keys) != 1 or not all(is_share(cell.score) for cell in self.cells):
            return figures
        (key,) = keys
        values = [column.set.get(key) for column in self.read.columns.values()]
        if len(values) < 2 or not all(isinstance(value, int | float) for value in values):
            return figures
        for block in dict.fromkeys(cell.block for cell in self.cells):
            lines: dict[str, list[Point]] = {}
            for place, cell in enumerate(self.cells):
                of_runs = [value / 100 for value in self.values(place)[0]]
                if cell.block == block and of_runs:
                    spread = stdev(of_runs) if len(of_runs) > 1 else 0.0
                    lines.setdefault(cell.row, []).append((float(cell.set[key]), fmean(of_runs), spread))
            if any(len(line) > 1 for line in lines.values()):
                figure = "-".join(filter(None, (self.name, block.lower().replace(" ", "-"))))
                x, y = key_names([key])[key], score_name(self.read.score, {}, short=True)
                title = f"{score_name(self.read.score, {})} by {x} {block}".strip() + self.asked.title
                over_key(figures, figure, title, in_panels(list(lines.items())), x, y)
        return figures

    def notes(self) -> list[str]:
        """Returns notes that say what is compared, what the table leaves open, and why cells have no runs."""
        scores = ", ".join(dict.fromkeys(cell.score for cell in self.cells))
        notes = [f"ours: {scores}, mean ± sample standard deviation; scores: {MEANS[self.read.mean]}"]
        notes += [NOISE] if self.asked.compares else []
        notes += [SMALLEST] if self.asked.smallest else []
        notes += [CHANGED.format(", ".join(self.asked.changed))] if self.asked.changed else []
        notes += [f"a part of the table: {', '.join(dict.fromkeys(self.asked.only))}"] if self.asked.only else []
        if not self.asked.smallest and self._seeds != self.read.seeds:
            notes.append(f"{self._seeds} seeds, where the table has {self.read.seeds}")
        notes += [self.read.note] if self.read.note else []
        reasons: dict[str, list[str]] = {}
        for label, reason in self.why_not.items():
            reasons.setdefault(reason, []).append(label)
        for row in self.rows:
            if row.error:
                reasons.setdefault(row.error, []).append(row.label)
        return [*notes, *(f"no runs: {_shorten(labels)}: {reason}" for reason, labels in reasons.items())]


def _fault(plan: RunPlan) -> str:
    """Returns the reason why the store of a run cannot be made; empty if it can."""
    try:
        plan.prepare()
    except ShoalError as error:
        return error.line
    return ""


def _in_unit(value: float, score: str) -> float:
    """Converts a figure to %, MB or seconds."""
    return 100 * value if is_share(score) else value / MEGABYTE if "bytes" in score else value


def _format(values: Sequence[float]) -> str:
    if not values:
        return "-"
    return f"{fmean(values):.2f}" + (f" ± {stdev(values):.2f}" if len(values) > 1 else "")


def _gap(values: Sequence[float], printed: Printed | None) -> str:
    return f"{fmean(values) - printed.value:+.2f}" if values and printed is not None else "-"


def verdict(values: Sequence[float], printed: Printed | None, runs: int | None) -> str:
    """Returns whether the difference of a mean and a paper's figure is noise, by Welch's t-test over repetitions.

    A paper's figure without a deviation, or without a number of runs, counts as exact. `-` where there is no figure, or
    fewer than two values.
    """
    if printed is None or len(values) < 2:
        return "-"
    gap = fmean(values) - printed.value
    parts = [(stdev(values) ** 2 / len(values), len(values) - 1)]
    if printed.deviation is not None and runs is not None and runs > 1:
        parts.append((printed.deviation**2 / runs, runs - 1))
    variance = sum(part for part, _ in parts)
    if variance == 0:
        return WITHIN if gap == 0 else OUTSIDE
    freedom = variance**2 / sum(part**2 / degrees for part, degrees in parts)
    # SciPy's statistics take a second to import, so only a table that needs them does.
    from scipy.stats import t

    return WITHIN if abs(gap) <= t.ppf((1 + LEVEL) / 2, freedom) * variance**0.5 else OUTSIDE


def _shorten(labels: Sequence[str], most: int = 3) -> str:
    more = f" and {len(labels) - most} more" if len(labels) > most else ""
    return "; ".join(labels[:most]) + more


def tables_of(paper: Paper, names: Sequence[str]) -> list[str]:
    """Returns the tables that are named, or all. Raises ShoalError: the paper has no table of a name."""
    if wrong := next((name for name in names if name not in paper.tables), None):
        raise ShoalError(wrong, f"{paper.name} has no such table; it has {', '.join(paper.tables)}")
    return list(names) or list(paper.tables)


def named_in(paper: Paper, tables: Sequence[str], texts: Sequence[str]) -> list[str]:
    """Reads names of blocks, columns and rows from texts, with commas between. Raises ShoalError: one is unknown."""
    names = [name for table in tables_of(paper, tables) for name in known_names(paper.cells(table))]
    names_found = []
    for text in texts:
        names_found += [text] if text in names else [name.strip() for name in text.split(",") if name.strip()]
    if wrong := next((name for name in names_found if name not in names), None):
        raise ShoalError("--only", f"no table has {wrong!r}; there are {', '.join(dict.fromkeys(names))}")
    return names_found


def show_reproduction(paper: Paper, names: Sequence[str], asked: Asked) -> None:
    """Prints for every table its runs, the time to expect, missing data, and what cannot be run; writes nothing."""
    rows, notes, total, left = [], [], 0.0, 0
    without: dict[tuple[Path, ...], list[str]] = {}
    for name in tables_of(paper, names):
        read = paper.tables[name]
        if read.cannot is not None:
            rows.append((name, "", "-", "-", "-"))
            notes.append(f"{name}: no runs: {read.cannot}")
            continue
        runs = TableRuns(paper, name, asked)
        notes += [f"{name}: {note}" for note in runs.notes() if note.startswith("no runs")]
        for group, places in _by_column(runs).items():
            to_go = [at for at in places if not runs.rows[at].figures]
            missing = list(dict.fromkeys(path for at in to_go for path in _missing(runs.plans[at])))
            seconds = 0.0 if not to_go else _seconds(runs, places, to_go, bool(missing))
            state = "-" if seconds is None else span(seconds)
            rows.append((name, group, str(len(places)), str(len(to_go)), "unknown" if missing else state))
            total, left = total + (seconds or 0.0), left + len(to_go)
            if missing:
                without.setdefault(tuple(missing), []).append(f"{name}: {group}")
    for files, groups in without.items():
        notes.append(
            f"not there: {_shorten([*map(str, files)])}; put there what cannot be downloaded: {_shorten(groups)}"
        )
    notes += [CHANGED.format(", ".join(asked.changed))] if asked.changed else []
    unknown = "; of runs whose data is there" if without else ""
    notes.append(f"{left} runs to go, {span(total)} to expect without the methods' own work and preparing{unknown}")
    put(on_screen(TextTable(("table", "cells", "runs", "to go", "time"), tuple(rows), 2, notes=tuple(notes))), end="")


def _missing(plan: RunPlan) -> list[Path]:
    """Returns the published files that a run reads and that are not there."""
    return [path for source in sources(plan.config) for path in missing_files(source)]


def _by_column(runs: TableRuns) -> Mapping[str, list[int]]:
    """Returns places of different runs by block and column; runs among which validation will choose count once."""
    places: dict[str, list[int]] = {}
    counted = set()
    rivals = runs.study.rivals
    for at, plan in enumerate(runs.plans):
        key = rivals.get(at, plan.folder)
        if key in counted:
            continue
        counted.add(key)
        cell = runs.cells[runs.places[at]]
        places.setdefault(", ".join(part for part in (cell.block, cell.column) if part), []).append(at)
    return places


def _seconds(runs: TableRuns, places: Sequence[int], to_go: Sequence[int], missing: bool) -> float | None:
    """Estimates the time of the runs to go from finished ones, or by measuring the first; None without the data."""
    took = [runs.rows[at].figures["seconds.rounds"] for at in places if runs.rows[at].figures]
    if took:
        return len(to_go) * fmean(took)
    return None if missing else len(to_go) * expected(runs.plans[to_go[0]]).time.rounds


def reproduce(paper: Paper, names: Sequence[str], asked: Asked, at_once: int) -> tuple[Path | None, bool]:
    """Runs what is missing of the tables, prints them, and writes a page, Markdown and a CSV of each.

    Returns the page, None if no table has runs, and whether no run failed. Raises ShoalError: a name is wrong, or no
    config of a table can be read.
    """
    chosen = tables_of(paper, names)
    for name in chosen:
        cells_of(paper, name, asked)
    done: list[TableRuns] = []
    earlier: dict[str, TableRuns | str] = {}
    for name in chosen:
        read = paper.tables[name]
        if read.cannot is not None:
            put(f"{name}: {read.title}: no runs: {read.cannot}")
            continue
        runs = TableRuns(paper, name, asked)
        say(f"{runs.title}: {sum(not row.figures for row in runs.rows)} of {len(runs.rows)} runs to go")
        try:
            runs.go(at_once)
        finally:
            done.append(runs)
            write_results(paper, chosen, done, asked, earlier)
        put(on_screen(runs.table()))
    complete = not any(row.error for runs in done for row in runs.rows)
    return write_results(paper, chosen, done, asked, earlier), complete


def write_results(
    paper: Paper,
    names: Sequence[str],
    done: Sequence[TableRuns],
    asked: Asked,
    earlier: dict[str, TableRuns | str],
) -> Path | None:
    """Writes the results so far of the tables to a folder beside the runs; returns the page.

    The page of whole tables has all of the paper. A table of which a CSV is there from before stays: its runs, or why
    they cannot be read, are kept in `earlier`.
    """
    root = next((runs.root for runs in done if runs.root is not None), None)
    if root is None:
        return None
    folder = root / "papers" / asked.folder(paper, names)
    files = {name: folder / f"{asked.file_name(name)}.csv" for name in paper.tables}
    by_name: dict[str, TableRuns | str] = {runs.name: runs for runs in done}
    for name, file in files.items():
        if name not in by_name and name not in earlier and file.exists():
            earlier[name] = _as_before(paper, name, file, asked)
    by_name = {**earlier, **by_name}
    shown = paper.tables if folder.name == paper.name else [name for name in paper.tables if name in {*names, *earlier}]
    heading = f"{paper.title}{asked.title}"
    sections, parts = [], [f"# {heading}", ""]
    for name in shown:
        read = paper.tables[name]
        title = f"{name}: {read.title}{asked.title}"
        runs = by_name.get(name, "not run yet") if read.cannot is None else f"no runs: {read.cannot}"
        if isinstance(runs, str):
            sections.append(Section(title, note=runs))
            parts += [f"## {title}", "", runs, ""]
            continue
        table = runs.table()
        sections.append(Section(title, runs.drawings(), [table]))
        parts += [f"## {title}", "", replace(table, title="").markdown()]
        with replacing(files[name]) as unfinished:
            unfinished.write_text(table.csv())
    with replacing(folder / TABLES) as unfinished:
        unfinished.write_text("\n".join(parts))
    return write_page(folder, Head(heading), sections)


def _as_before(paper: Paper, name: str, file: Path, asked: Asked) -> TableRuns | str:
    """Returns the runs of a table that was written before, with no fewer seeds than it had, or why there are none."""
    try:
        with file.open(newline="") as lines:
            seeds = max((int(row["seeds"]) for row in csv.DictReader(lines) if row["seeds"].isdigit()), default=0)
        least = asked.seeds or paper.tables[name].seeds
        return TableRuns(paper, name, asked if asked.smallest else replace(asked, seeds=max(least, seeds)))
    except (ShoalError, OSError, KeyError, ValueError, csv.Error) as error:
        return f"written before, and cannot be read again: {error}"
