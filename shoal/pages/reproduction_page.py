"""The page of a reproduction: a verdict, tables with the gaps to a paper, figures; and the same as Markdown and CSV."""

import csv
import os
import shlex
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from statistics import fmean, stdev

import numpy as np

from shoal.engine.config.config import SHIPPED
from shoal.pages.figures import MOST_NAMED, Drawing, Point, matrix, over_key, points
from shoal.pages.looks import Look, in_panels
from shoal.pages.page import Head, Section, write_page
from shoal.pages.table_runs import Asked, TableRuns
from shoal.pages.verdicts import Agreement
from shoal.storage.errors import ShoalError
from shoal.storage.files.atomic import replacing
from shoal.study.means import is_share
from shoal.study.plain_names import key_names, score_name
from shoal.tables.papers import Paper

TABLES = "tables.md"
# Cells of so few columns have room for a decimal.
ROOMY = 6


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
    all_runs = [runs for name in shown if isinstance(runs := by_name.get(name), TableRuns)]
    agreements = {runs.name: runs.agreement() for runs in all_runs}
    agreement = sum(agreements.values(), Agreement())
    sections, parts = [], [f"# {heading}", ""]
    for name in shown:
        read = paper.tables[name]
        title = f"{name}: {read.title}{asked.title}"
        runs = by_name.get(name, "not run yet") if read.cannot is None else f"no runs: {read.cannot}"
        if isinstance(runs, str):
            sections.append(Section(f"{name}: {read.title}", note=runs))
            parts += [f"## {title}", "", runs, ""]
            continue
        table, line = runs.table(), agreements[name].line
        # The head of the page has the changed keys, and how many figures of all tables agree, or why none can.
        in_head = {line, *asked.why_apart}
        of_page = replace(table, title="", notes=tuple(note for note in table.notes if note not in in_head))
        note = line if agreements[name] != agreement else ""
        sections.append(Section(f"{name}: {read.title}", _drawings(runs), [of_page], note=note))
        parts += [f"## {title}", "", replace(table, title="").markdown()]
        with replacing(files[name]) as unfinished:
            unfinished.write_text(table.csv())
    with replacing(folder / TABLES) as unfinished:
        unfinished.write_text("\n".join(parts))
    command = _command(paper, [runs.name for runs in all_runs], asked)
    head = Head(heading, *_headline(all_runs, agreement, asked), _facts(paper, all_runs), command)
    return write_page(folder, head, sections)


def _headline(tables: Sequence[TableRuns], agreement: Agreement, asked: Asked) -> tuple[str, str]:
    """Returns how many figures agree with the paper's; of runs that are others, how many there are, and why none can.

    The second text has the words behind the number.
    """
    if asked.compares:
        return agreement.number, agreement.number_is
    have = [bool(runs.values(place)[0]) for runs in tables for place in range(len(runs.cells))]
    return f"{sum(have)} of {len(have)}", "; ".join(["figures have runs", *asked.why_apart])


def _facts(paper: Paper, tables: Sequence[TableRuns]) -> list[tuple[str, str]]:
    rows = [row for runs in tables for row in runs.rows]
    finished = sum(bool(row.figures) for row in rows)
    return [
        ("Tables", f"{len(tables)} of {len(paper.tables)}"),
        ("Figures", f"{sum(len(runs.cells) for runs in tables):,}"),
        ("Runs", f"{finished:,} of {len(rows):,} finished"),
    ]


def _command(paper: Paper, tables: Sequence[str], asked: Asked) -> str:
    """Returns the command that makes the page again."""
    ours = paper.path.is_relative_to(SHIPPED)
    words = ["shoal", "reproduce", paper.name if ours else str(paper.path).removeprefix(f"{Path.cwd()}{os.sep}")]
    with_runs = [name for name, read in paper.tables.items() if read.cannot is None]
    words += [] if list(tables) == with_runs else tables
    words += [word for name in dict.fromkeys(asked.only) for word in ("--only", name)]
    words += ["--seeds", str(asked.seeds)] if asked.seeds is not None else []
    words += ["--smallest"] if asked.smallest else []
    return shlex.join([*words, *asked.overrides])


def _drawings(runs: TableRuns) -> list[Drawing]:
    figures: list[Drawing] = []
    _draw_gaps(figures, runs)
    _draw_beside(figures, runs)
    _draw_over_key(figures, runs)
    return figures


def _draw_gaps(figures: list[Drawing], runs: TableRuns) -> None:
    """Draws the gaps of every block, rows and columns as the paper has them."""
    gaps = runs.gaps()
    most = max([1.0, *map(abs, gaps.values())])
    for block in dict.fromkeys(runs.cells[place].block for place in gaps):
        of_block = {place: gap for place, gap in gaps.items() if runs.cells[place].block == block}
        rows, columns = (
            list(dict.fromkeys(getattr(runs.cells[place], what) for place in of_block)) for what in ("row", "column")
        )
        if max(len(rows), len(columns)) > MOST_NAMED:
            continue
        gap_RC = np.full((len(rows), len(columns)), np.nan)
        for place, gap in of_block.items():
            cell = runs.cells[place]
            gap_RC[rows.index(cell.row), columns.index(cell.column)] = gap
        text = "; ".join(f"{runs.cells[place].label}: {gap:+.1f}" for place, gap in of_block.items())
        title = f"{runs.name}{f', {block}' if block else ''}: ours minus the paper's, in points"
        matrix(
            figures, f"gaps-{runs.name}-{block}".strip("-"), title, {"": gap_RC}, ("", ""), text, rows,
            (-most, most, " points"), columns, int(len(columns) <= ROOMY),
        )  # fmt: skip


def _draw_beside(figures: list[Drawing], runs: TableRuns) -> None:
    """Draws our scores beside the paper's, where runs are others than the paper's, so that a gap would say nothing."""
    looks: list[Look[tuple[float, float | None]]] = []
    for place, cell in enumerate(runs.cells):
        ours = [value / 100 for value in runs.values(place)[0]] if is_share(cell.score) else []
        if ours:
            looks.append(Look(cell.label, 0, 0, (fmean(ours), stdev(ours) if len(ours) > 1 else None)))
        if ours and (printed := cell.printed) is not None:
            spread = None if printed.deviation is None else printed.deviation / 100
            looks.append(Look(f"{cell.label}: the paper's", 1, 0, (printed.value / 100, spread)))
    if looks and not runs.asked.compares:
        title = f"{runs.name}: ours, and the paper's, which are of other runs"
        points(figures, f"beside-{runs.name}", title, looks, score_name(runs.read.score, {}, short=True))


def _draw_over_key(figures: list[Drawing], runs: TableRuns) -> None:
    """Draws our figures, a line for each row, for each block that has values of a numeric key as columns."""
    keys = {key for column in runs.read.columns.values() for key in column.set}
    if len(keys) != 1 or not all(is_share(cell.score) for cell in runs.cells):
        return
    (key,) = keys
    values = [column.set.get(key) for column in runs.read.columns.values()]
    if len(values) < 2 or not all(isinstance(value, int | float) for value in values):
        return
    for block in dict.fromkeys(cell.block for cell in runs.cells):
        lines: dict[str, list[Point]] = {}
        for place, cell in enumerate(runs.cells):
            of_runs = [value / 100 for value in runs.values(place)[0]]
            if cell.block == block and of_runs:
                spread = stdev(of_runs) if len(of_runs) > 1 else 0.0
                lines.setdefault(cell.row, []).append((float(cell.set[key]), fmean(of_runs), spread))
        if any(len(line) > 1 for line in lines.values()):
            figure = "-".join(filter(None, (runs.name, block.lower().replace(" ", "-"))))
            x, y = key_names([key])[key], score_name(runs.read.score, {}, short=True)
            title = f"{score_name(runs.read.score, {})} by {x} {block}".strip() + runs.asked.title
            over_key(figures, figure, title[:1].upper() + title[1:], in_panels(list(lines.items())), x, y)


def _as_before(paper: Paper, name: str, file: Path, asked: Asked) -> TableRuns | str:
    """Returns the runs of a table that was written before, with no fewer seeds than it had, or why there are none."""
    try:
        with file.open(newline="") as lines:
            seeds = max((int(row["seeds"]) for row in csv.DictReader(lines) if row["seeds"].isdigit()), default=0)
        least = asked.seeds or paper.tables[name].seeds
        return TableRuns(paper, name, asked if asked.smallest else replace(asked, seeds=max(least, seeds)))
    except (ShoalError, OSError, KeyError, ValueError, csv.Error) as error:
        return f"written before, and cannot be read again: {error}"
