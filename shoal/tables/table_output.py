"""Tables of studies on the screen and in files, with what was chosen in them."""

import csv
import io
import re
import shutil
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

from shoal.engine.config.sections import current_name
from shoal.engine.screen.output import put
from shoal.storage.errors import ShoalError
from shoal.storage.files.atomic import output, replacing
from shoal.study.groups import Row, Statistic, group_runs, label_of, varied_in
from shoal.study.main_score import MAIN, MainScore
from shoal.study.means import Mean
from shoal.study.plain_names import label_pairs
from shoal.study.sweep_folder import is_sweep, read_rows, rows_of, sweep_of, title_of
from shoal.tables.study_table import Layout, Ties, long_table_of, table_of
from shoal.tables.text_table import TextTable

Format = Literal["terminal", "markdown", "latex", "html", "csv"]
ENDINGS: dict[str, Format] = {".md": "markdown", ".tex": "latex", ".html": "html", ".csv": "csv"}
# Cells with leading zeros are no numbers.
NUMBER = re.compile(r"-?(0|[1-9]\d*)(\.\d+)?(e[+-]?\d+)?")


def layout_of(
    figures: Sequence[str], rows: str | None, columns: str | None, statistic: Statistic, against: str,
    mean: Mean | None, ties: Ties, not_worse: float | None, wide: bool, labels: Sequence[str],
) -> Layout:  # fmt: skip
    """Makes a layout from the options of a command line."""
    if not_worse is not None and not 0 < not_worse < 1:
        raise ShoalError("--not-worse", f"must be a level between 0 and 1, as 0.05, found {not_worse:g}")
    if wide and figures:
        raise ShoalError("--wide, --figure", "--wide names its figures; leave one of them out")
    keys = tuple((rows or "").split(",")) if rows else ()
    return Layout(
        tuple(map(current_name, figures)),
        keys,
        columns,
        statistic,
        against,
        mean,
        ties,
        not_worse,
        wide,
        label_pairs(labels),
    )


def chosen_by(paths: Sequence[Path]) -> tuple[str, ...]:
    """Returns a line for every sweep of which validation chose a key's value, which says by which score."""
    lines = []
    for path in filter(is_sweep, paths):
        study = sweep_of(path)
        if key := study.get("choose"):
            groups = group_runs([row for row in read_rows(path) if row.figures])
            by = study["choose_by"]
            main = MainScore(groups)
            scopes = sorted({main.scope(group) for group in groups}) if by == MAIN else [by]
            lines.append(f"{key} is chosen by {' and '.join(scopes)} validation, over {study['choose_seeds']} seeds")
    return tuple(dict.fromkeys(lines))


def show_rows(rows: Sequence[Row], layout: Layout, title: str = "") -> None:
    """Prints the table of runs as wide as the terminal, or whole if there is none, and below it the failed runs."""
    put(on_screen(table_of(rows, layout, title)), end="")
    for row in rows:
        if row.error:
            put(f"{row.state}: {label_of(row, list(varied_in(rows)))}: {row.error}")


def show_sweep(folder: Path) -> None:
    """Prints every run of a sweep with its state and its folder, and the table of finished runs."""
    rows = read_rows(folder)
    keys = list(dict.fromkeys(key for row in rows for key in row.columns))
    runs = [(*(row.columns.get(key, "") for key in keys), row.state, row.run) for row in rows]
    put(on_screen(TextTable((*keys, "state", "run"), tuple(runs), len(keys) + 2, title=title_of(folder))))
    show_rows(rows, Layout(notes=chosen_by([folder])))


def write_table(
    paths: Sequence[Path], layout: Layout, form: Format | None, out: Path | None, caption: str = "", label: str = "",
    silent: bool = False,
) -> None:  # fmt: skip
    """Writes the table of runs and sweeps to a file, and says so, unless `silent`, or prints it.

    Without a form that of the file's ending is taken, or that of the terminal.
    """
    if form is None:
        form = "terminal" if out is None else ENDINGS.get(out.suffix.lower(), "terminal")
    if label and form != "latex":
        raise ShoalError("--latex-label", f"is for --format latex, found {form}; change that, or leave it out")
    rows = rows_of(paths)
    layout = replace(layout, notes=(*layout.notes, *chosen_by(paths)))
    if form == "terminal" and out is None:
        show_rows(rows, layout, caption)
        return
    if form == "csv":
        text = long_table_of(rows, layout).csv()
    elif form == "latex":
        text = table_of(rows, layout).latex(caption, label)
    else:
        table = table_of(rows, layout, caption)
        text = {"terminal": table.text, "markdown": table.markdown, "html": table.html}[form]()
    if out is None:
        put(text, end="")
        return
    with replacing(output(out)) as unfinished:
        unfinished.write_text(text)
    if not silent:
        put(f"written: {out}")


def plain_rows(text: str) -> list[dict[str, Any]]:
    """Reads the rows of a CSV by its heads: numbers as numbers, nothing as None."""
    return [{head: _plain(cell) for head, cell in row.items()} for row in csv.DictReader(io.StringIO(text))]


def _plain(cell: str) -> int | float | str | None:
    if NUMBER.fullmatch(cell):
        return int(cell) if cell.lstrip("-").isdecimal() else float(cell)
    return cell or None


def on_screen(table: TextTable) -> str:
    """Returns the text of a table, as wide as the terminal, or whole if there is none."""
    return table.text(shutil.get_terminal_size().columns if sys.stdout.isatty() else None)
