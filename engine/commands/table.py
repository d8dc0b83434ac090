"""A table of runs and sweeps: for the terminal, a paper, or another program."""

import shutil
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from engine.studies.groups import Row
from engine.studies.read_runs import rows_of
from engine.studies.study_table import Layout, table_of
from engine.studies.sweep_folder import read_rows, title_of
from engine.studies.text_table import TextTable
from storage.atomic import replacing
from storage.errors import ShoalError

Format = Literal["terminal", "markdown", "latex", "csv"]


def layout_of(
    figures: Sequence[str], rows: str | None, columns: str | None, statistic: Literal["mean", "median"], against: str
) -> Layout:
    """A layout from the options of a command line.

    Raises:
        ShoalError: `against` has no values.
    """
    pairs = [part.partition("=") for part in against.split(",") if part]
    if wrong := next((key for key, equals, _ in pairs if not equals), None):
        raise ShoalError(f"--against {wrong}: has the form key=value, as in train.lr=0.1")
    named = tuple((key, value) for key, _, value in pairs)
    return Layout(tuple(figures), tuple((rows or "").split(",")) if rows else (), columns, statistic, named)


def show_rows(rows: Sequence[Row], layout: Layout, title: str = "") -> None:
    """The table of runs on the terminal, or as wide as it is where there is none; below it what failed."""
    print(on_screen(table_of(rows, layout, title)), end="")
    for row in rows:
        if row.error:
            print(f"failed: {', '.join(f'{key} {value}' for key, value in row.columns.items())}: {row.error}")


def show_sweep(folder: Path) -> None:
    """Every run of a sweep with its state and its folder, and the table of what is finished.

    Raises:
        ShoalError: Something cannot be read.
    """
    rows = read_rows(folder)
    keys = list(dict.fromkeys(key for row in rows for key in row.columns))
    runs = [(*(row.columns.get(key, "") for key in keys), row.state, row.run) for row in rows]
    print(on_screen(TextTable((*keys, "state", "run"), tuple(runs), len(keys) + 2, title=title_of(folder))))
    show_rows(rows, Layout())


def write_table(paths: Sequence[Path], layout: Layout, form: Format, out: Path | None) -> None:
    """Writes the table of runs and sweeps to a file, or prints it.

    Raises:
        ShoalError: Something cannot be read or written, or the layout names what is not there.
    """
    rows = rows_of(paths)
    if form == "terminal" and out is None:
        show_rows(rows, layout)
        return
    table = table_of(rows, layout)
    text = {"terminal": table.text, "markdown": table.markdown, "latex": table.latex, "csv": table.csv}[form]()
    if out is None:
        print(text, end="")
        return
    with replacing(out) as unfinished:
        unfinished.write_text(text)
    print(f"written: {out}")


def on_screen(table: TextTable) -> str:
    """A table for the terminal, or as wide as it is where there is none."""
    return table.text(shutil.get_terminal_size().columns if sys.stdout.isatty() else None)
