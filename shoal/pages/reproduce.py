"""Reproduces tables of a paper: plans, runs what is missing, and sets ours beside the paper's figures."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean

from shoal.engine.screen.output import put
from shoal.engine.screen.progress import say
from shoal.pages.reproduction_page import write_results
from shoal.pages.table_plans import TablePlans
from shoal.pages.table_runs import CHANGED, Asked, TableRuns, cells_of, shorten_labels
from shoal.storage.errors import ShoalError
from shoal.sweeps.sweep_view import span
from shoal.tables.papers import Paper, known_names
from shoal.tables.table_output import on_screen
from shoal.tables.text_table import TextTable


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
    """Prints for every table its runs, the time to expect, missing data, and what cannot be run; writes nothing.

    A table is printed as soon as it is planned. A run that is in several tables is planned once.
    """
    plans, total, left = TablePlans(), 0.0, 0
    without: dict[tuple[Path, ...], list[str]] = {}
    for name in tables_of(paper, names):
        read, rows, notes = paper.tables[name], list[tuple[str, ...]](), list[str]()
        if read.cannot is not None:
            rows.append((name, "", "-", "-", "-"))
            notes.append(f"no runs: {read.cannot}")
        else:
            runs = TableRuns(paper, name, asked, plans)
            notes += [note for note in runs.notes() if note.startswith("no runs")]
            for group, places in _by_column(runs).items():
                to_go = [at for at in places if not runs.rows[at].figures]
                missing = list(dict.fromkeys(path for at in to_go for path in plans.missing(runs.plans[at])))
                seconds = 0.0 if not to_go else _seconds(plans, runs, places, to_go, bool(missing))
                state = "-" if seconds is None else span(seconds)
                rows.append((name, group, str(len(places)), str(len(to_go)), "unknown" if missing else state))
                total, left = total + (seconds or 0.0), left + len(to_go)
                if missing:
                    without.setdefault(tuple(missing), []).append(f"{name}: {group}")
        heads = ("table", "cells", "runs", "to go", "time")
        put(on_screen(TextTable(heads, tuple(rows), 2, notes=tuple(notes))), end="")
    for files, groups in without.items():
        paths, cells = shorten_labels([*map(str, files)]), shorten_labels(groups)
        put(f"not there: {paths}; put there what cannot be downloaded: {cells}")
    if asked.changed:
        put(CHANGED.format(", ".join(asked.changed)))
    unknown = "; of runs whose data is there" if without else ""
    put(f"{left} runs to go, {span(total)} to expect without the methods' own work and preparing{unknown}")


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


def _seconds(
    plans: TablePlans, runs: TableRuns, places: Sequence[int], to_go: Sequence[int], missing: bool
) -> float | None:
    """Estimates the time of the runs to go from finished ones, or by measuring the first; None without the data."""
    took = [runs.rows[at].figures["seconds.rounds"] for at in places if runs.rows[at].figures]
    if took:
        return len(to_go) * fmean(took)
    return None if missing else len(to_go) * plans.seconds(runs.plans[to_go[0]])


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
