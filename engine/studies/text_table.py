"""A table as text, by tabulate: for a terminal, a paper, a page or another program. No cell is ever cut."""

import csv
import io
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tabulate import tabulate

BEST = "*"
# Enclose a marked cell until tabulate has escaped all cells.
OPEN, CLOSE, EMPTY = "\ue000", "\ue001", "\ue002"
# A last text is wrapped into no fewer characters.
NARROWEST = 20
# As wide as a table may be where there is no terminal.
MOST = 1 << 30


@dataclass(frozen=True)
class TextTable:
    """Cells by row and column.

    Attributes:
        heads: Name of every column.
        rows: Cells; all as many as heads.
        keys: Number of leading columns that name the row, aligned left; the others are numbers, aligned right. Where
            all are keys, the last one is a text, which is wrapped where the terminal is too narrow.
        best: Rows and columns of the marked cells.
        title: A line above, `notes` lines below.
    """

    heads: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    keys: int
    best: frozenset[tuple[int, int]] = frozenset()
    title: str = ""
    notes: tuple[str, ...] = ()

    def text(self, width: int | None = None) -> str:
        """For a terminal. A table that is too wide is split into blocks of columns, or else into lines of cells."""
        rows = self._marked("", BEST)
        body = self._wrapped(rows, width) or self._blocks(rows, width) or self._listed(rows)
        title = [self.title] if self.title else []
        return "\n".join([*title, *(line.rstrip() for line in body), *self.notes]) + "\n"

    def _wrapped(self, rows: list[list[str]], width: int | None) -> list[str]:
        """Lines of the whole table, its last text wrapped; empty where it is too wide nevertheless."""
        lines = self._made("plain", rows).splitlines()
        over = max(map(len, lines)) - (width or MOST)
        if over <= 0:
            return lines
        room = max(len(row[-1]) for row in (self.heads, *rows)) - over
        if self.keys < len(self.heads) or room < NARROWEST:
            return []
        return self._made("plain", rows, maxcolwidths=[None] * (self.keys - 1) + [room]).splitlines()

    def _blocks(self, rows: list[list[str]], width: int | None) -> list[str]:
        """Lines of blocks below one another; empty where the keys and one number are too wide."""
        lines: list[str] = []
        first = self.keys
        while first < len(self.heads):
            for end in range(len(self.heads), first, -1):
                shown = [*range(self.keys), *range(first, end)]
                block = self._made("plain", rows, shown).splitlines()
                if max(map(len, block)) <= (width or MOST):
                    break
            else:
                return []
            lines += ([""] if lines else []) + block
            first = end
        return lines

    def markdown(self) -> str:
        """For a page; marked cells are bold."""
        text = self._made("pipe", [[cell.replace("|", r"\|") for cell in row] for row in self._marked("**", "**")])
        return "\n\n".join([*([self.title] if self.title else []), text, *self.notes]) + "\n"

    def latex(self) -> str:
        """For a paper: a tabular of the package booktabs; marked cells are bold."""
        rows = [
            [" ".join(cell.split()).replace("--", f"-{EMPTY}-") for cell in row] for row in self._marked(OPEN, CLOSE)
        ]
        # A row that begins so would be an option of the line break before it.
        rows = [[f"{EMPTY}{row[0]}", *row[1:]] if row[0].startswith(("[", "*")) else row for row in rows]
        text = self._made("latex_booktabs", rows).replace(EMPTY, "{}")
        text = text.replace(OPEN, r"\textbf{").replace(CLOSE, "}").replace("±", r"$\pm$")
        return "\n".join([*(f"% {' '.join(line.split())}" for line in (self.title, *self.notes) if line), text]) + "\n"

    def html(self) -> str:
        """For a report; marked cells are strong."""
        return self._made("html", self._marked(OPEN, CLOSE)).replace(OPEN, "<strong>").replace(CLOSE, "</strong>")

    def csv(self) -> str:
        """For another program, without marks, title and notes."""
        out = io.StringIO()
        csv.writer(out, lineterminator="\n").writerows([self.heads, *self.rows])
        return out.getvalue()

    def _made(self, form: str, rows: list[list[str]], columns: Sequence[int] | None = None, **options: Any) -> str:
        """By tabulate, all columns or some."""
        shown = range(len(self.heads)) if columns is None else columns
        sides = ["left" if column < self.keys else "right" for column in shown]
        cells, heads = [[row[column] for column in shown] for row in rows], [self.heads[column] for column in shown]
        options |= {"colalign": sides} if rows else {}
        made: str = tabulate(cells, heads, tablefmt=form, disable_numparse=True, **options)
        return made

    def _marked(self, left: str, right: str) -> list[list[str]]:
        return [
            [f"{left}{cell}{right}" if (place, column) in self.best else cell for column, cell in enumerate(row)]
            for place, row in enumerate(self.rows)
        ]

    def _listed(self, rows: list[list[str]]) -> list[str]:
        lines = []
        for row in rows:
            lines += [f"{head}: {cell.strip()}" for head, cell in zip(self.heads, row) if cell.strip()] + [""]
        return lines[:-1]
