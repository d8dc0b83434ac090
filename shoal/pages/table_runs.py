"""The runs of a table of a paper: what is missing, our figures beside the paper's, and how many agree."""

import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean, stdev

from yaml import YAMLError, safe_load

from shoal.engine.config.run_identity import changes_numbers, fingerprint_of, flatten
from shoal.engine.records.run_folder import finished
from shoal.engine.runs.plan import RunPlan
from shoal.pages.table_plans import TablePlans
from shoal.pages.verdicts import NOISE, UNLIKE, Agreement, items_and_weights, verdict
from shoal.storage.errors import ShoalError
from shoal.study.groups import Row
from shoal.study.means import MEANS, figures_by, is_share, validation_by
from shoal.study.study import Selection
from shoal.study.sweep_folder import root_of, row_of
from shoal.sweeps.sweep import Sweep, store_keys
from shoal.tables.papers import (
    LOCAL,
    Paper,
    PaperCell,
    Printed,
    require_free,
    smallest_of,
    some_of,
    study_of,
)
from shoal.tables.study_table import Place, mark_best
from shoal.tables.text_table import TextTable

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
    def why_apart(self) -> list[str]:
        """Returns the reasons why runs are others than those of the paper; none where they are the same."""
        return [SMALLEST] * self.smallest + [CHANGED.format(", ".join(self.changed))] * bool(self.changed)

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

    def __init__(self, paper: Paper, name: str, asked: Asked, plans: TablePlans | None = None) -> None:
        """Reads the configs of all runs; starts and writes nothing. Raises ShoalError if no config is right.

        `plans` are those that it shares with other tables of the paper.
        """
        planned = plans or TablePlans()
        self.paper, self.name, self.read, self.asked = paper, name, paper.tables[name], asked
        self.title = f"{name}: {self.read.title}{asked.title}"
        self.cells = cells_of(paper, name, asked)
        self.why_not = {cell.label: cell.cannot for cell in self.cells if cell.cannot is not None}
        self._values: dict[int, tuple[list[float], str]] = {}
        self._seeds = 1 if asked.smallest else asked.seeds or self.read.seeds
        runs: list[tuple[int, Selection, RunPlan, Row]] = []
        faults: dict[str, ShoalError] = {}
        for place, cell in enumerate(self.cells):
            if cell.cannot is not None:
                continue
            study = study_of(paper, name, [cell], self._seeds, asked.overrides)
            try:
                of_cell = planned.of(study)
                rows = [row_of(choice.columns, plan.folder) for choice, plan in zip(study.choices, of_cell)]
            except ShoalError as error:
                faults[cell.label] = error
                continue
            runs += zip([place] * len(rows), study.choices, of_cell, rows)
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
        self.study = replace(study_of(paper, name, [], self._seeds, asked.overrides), selections=selections)

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
                self._values.clear()
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
        if place not in self._values:
            self._values[place] = self._read_values(place)
        return self._values[place]

    def _read_values(self, place: int) -> tuple[list[float], str]:
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
        shares: dict[tuple[object, ...], dict[Place, float]] = {}
        of_cells = self._compared()
        local = {of_cells[at]: self.values(at)[0] for at, cell in enumerate(self.cells) if cell.row == LOCAL}
        for place, cell in enumerate(self.cells):
            values, chosen = self.values(place)
            of_local = local.get(of_cells[place], [])
            name = f"{cell.row} ({chosen})" if chosen else cell.row
            printed = cell.printed if self.asked.compares else None
            judged = verdict(values, printed, self.read.runs, is_share(cell.score))
            numbers = (_format(values), _gap(values, printed), judged)
            over = f"{fmean(values) - fmean(of_local):+.2f}" if values and of_local and cell.row != LOCAL else "-"
            if values and is_share(cell.score):
                shares.setdefault(of_cells[place], {})[len(rows), OURS] = fmean(values)
            text = "-" if cell.printed is None else cell.printed.text
            rows.append((cell.block, cell.column, name, text, *numbers, over, str(len(values) or "-")))
        heads = ("block", "column", "row", "paper", "ours", "gap", "noise", "over Local", "seeds")
        # The names of blocks and columns are left out if no row has one.
        shown = [at for at in range(len(heads)) if at > 1 or any(row[at] for row in rows)]
        # Blocks and columns have other data or models, so that the best is marked in each of them, of the same items.
        both = [
            mark_best(of_column, lambda *two: len({f"{number:.2f}" for number in two}) == 1, lambda *_: False)
            for of_column in shares.values()
        ]
        best, second = (frozenset((r, shown.index(c)) for pair in both for r, c in pair[at]) for at in (0, 1))
        with_runs = [of_cells[place] for place in range(len(self.cells)) if self.values(place)[0]]
        apart = len({*with_runs}) > len({of_cell[:2] for of_cell in with_runs})
        notes = (self.agreement().line, *self.notes(), UNLIKE if apart else "")
        return TextTable(
            tuple(heads[at] for at in shown), tuple(tuple(row[at] for at in shown) for row in rows),
            shown.index(3), best, self.title, tuple(filter(None, notes)), second,
        )  # fmt: skip

    def _compared(self) -> list[tuple[object, ...]]:
        """Returns what cells share whose scores are compared: block, column, and the items and weights of the score."""
        clients = {at: row.figures["clients"] for at, row in zip(self.places, self.rows) if "clients" in row.figures}
        return [
            (cell.block, cell.column, *items_and_weights(cell.score, self.read.mean, clients.get(place, 0)))
            for place, cell in enumerate(self.cells)
        ]

    def gaps(self) -> dict[int, float]:
        """Returns our figures minus the paper's, in points, by the places of cells whose scores are shares."""
        gaps = {}
        for place, cell in enumerate(self.cells):
            if self.asked.compares and cell.printed is not None and is_share(cell.score):
                values, _ = self.values(place)
                if values:
                    gaps[place] = fmean(values) - cell.printed.value
        return gaps

    def agreement(self) -> Agreement:
        """Returns how our figures agree with the paper's; of none where other runs than the paper's are asked for."""
        gaps = self.gaps()
        verdicts = [verdict(self.values(at)[0], self.cells[at].printed, self.read.runs) for at in gaps]
        printed = sum(cell.printed is not None and is_share(cell.score) for cell in self.cells)
        return Agreement(tuple(gaps.values()), tuple(verdicts), printed - len(gaps) if self.asked.compares else 0)

    def notes(self) -> list[str]:
        """Returns notes that say what is compared, what the table leaves open, and why cells have no runs."""
        scores = ", ".join(dict.fromkeys(cell.score for cell in self.cells))
        notes = [f"ours: {scores}, mean ± sample standard deviation; scores: {MEANS[self.read.mean]}"]
        notes += [NOISE] if self.asked.compares else []
        notes += self.asked.why_apart
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
        return [*notes, *(f"no runs: {shorten_labels(labels)}: {reason}" for reason, labels in reasons.items())]


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


def shorten_labels(labels: Sequence[str], most: int = 3) -> str:
    """Returns the first labels in a line, and how many more there are."""
    more = f" and {len(labels) - most} more" if len(labels) > most else ""
    return "; ".join(labels[:most]) + more
