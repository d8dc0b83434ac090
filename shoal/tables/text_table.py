"""A table as text, by tabulate: for a terminal, a paper, a page or another program. No cell is ever cut."""

import csv
import html
import io
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tabulate import LATEX_ESCAPE_RULES, tabulate

from shoal.storage.plain_text import plain_text

BEST, SECOND = "*", "†"
# These signs surround a cell that is the best or the second best until tabulate has escaped all cells.
SIGNS = ("\ue000", "\ue001", "\ue002", "\ue003")
# This sign becomes `{}`, which LaTeX prints as nothing, after cells are escaped.
EMPTY = "\ue004"
# A last text is wrapped into no fewer characters.
NARROWEST = 20
# `repr` of a table shows at most so many lines.
SHOWN_LINES = 10
# Without a terminal a table may have any width.
MOST = 1 << 30


@dataclass(frozen=True)
class TextTable:
    """Cells by row and column.

    Attributes:
        heads: Name of every column.
        rows: Cells; all as many as heads.
        keys: Number of leading columns that name the row, aligned left; the others are numbers, aligned right. If all
            are keys, the last one is a text, which is wrapped on a terminal that is too narrow.
        best: Rows and columns of the cells that are marked as the best.
        title: A line above.
        notes: Lines below.
        second: Rows and columns of the cells that are marked as the second best.
        compared: The end of the legend of the marks, which says what they compare.
        across: The name of the key whose values are the heads of the numbers; empty: heads are names themselves.
    """

    heads: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    keys: int
    best: frozenset[tuple[int, int]] = frozenset()
    title: str = ""
    notes: tuple[str, ...] = ()
    second: frozenset[tuple[int, int]] = frozenset()
    compared: str = ""
    across: str = ""

    def __post_init__(self) -> None:
        """Makes all texts plain: names in them come from data and configs."""
        for name in ("heads", "notes"):
            object.__setattr__(self, name, tuple(map(plain_text, getattr(self, name))))
        for name in ("title", "compared", "across"):
            object.__setattr__(self, name, plain_text(getattr(self, name)))
        object.__setattr__(self, "rows", tuple(tuple(map(plain_text, row)) for row in self.rows))

    @property
    def heading(self) -> str:
        """The title, with what columns are."""
        return f"{self.title}; columns: {self.across}" if self.title and self.across else self.title

    def text(self, width: int | None = None) -> str:
        """Writes the table for a terminal; if it is too wide, in blocks of columns, or else in lines of cells."""
        rows = self._mark("", BEST, "", SECOND)
        body = self._wrap(rows, width) or self._blocks(rows, width) or self._list_cells(rows)
        wrap = textwrap.TextWrapper(width or MOST, break_long_words=False, break_on_hyphens=False).wrap
        above, notes = wrap(self.heading), (*self.notes, *self.legend(BEST, SECOND))
        below = [line for note in notes for line in wrap(note)]
        return "\n".join([*above, *(line.rstrip() for line in body), *below]) + "\n"

    def _wrap(self, rows: list[list[str]], width: int | None) -> list[str]:
        """Returns lines of the whole table, whose last column is wrapped if it is a text and the table is too wide.

        Empty: it is too wide, and the last column is of numbers, or less than `NARROWEST` would be left for the text.
        """
        lines = self._tabulate("plain", rows).splitlines()
        over = max(map(len, lines)) - (width or MOST)
        if over <= 0:
            return lines
        last_width = max(len(row[-1]) for row in (self.heads, *rows)) - over
        if self.keys < len(self.heads) or last_width < NARROWEST:
            return []
        return self._tabulate("plain", rows, maxcolwidths=[None] * (self.keys - 1) + [last_width]).splitlines()

    def _blocks(self, rows: list[list[str]], width: int | None) -> list[str]:
        """Returns lines of blocks of columns, one below the other; empty if the keys and one number are too wide."""
        lines: list[str] = []
        first = self.keys
        while first < len(self.heads):
            for end in range(len(self.heads), first, -1):
                shown = [*range(self.keys), *range(first, end)]
                block = self._tabulate("plain", rows, shown).splitlines()
                if max(map(len, block)) <= (width or MOST):
                    break
            else:
                return []
            lines += ([""] if lines else []) + block
            first = end
        return lines

    def markdown(self) -> str:
        """Writes the table in Markdown; the best cells are bold, the second best in italics."""
        rows = self._mark("**", "**", "*", "*")
        text = self._tabulate("pipe", [[cell.replace("|", r"\|") for cell in row] for row in rows])
        below = (*self.notes, *self.legend("bold", "italics"))
        return "\n\n".join([*([self.heading] if self.heading else []), text, *below]) + "\n"

    def latex(self, caption: str = "", label: str = "") -> str:
        """Writes the table in LaTeX, by booktabs; the best cells are bold, the second best underlined.

        With a caption or a label, both in LaTeX, it is in a `table`.
        """
        rows = [[" ".join(cell.split()).replace("--", f"-{EMPTY}-") for cell in row] for row in self._mark(*SIGNS)]
        # LaTeX takes a row that begins with [ or * for an option of the line break before it.
        rows = [[f"{EMPTY}{row[0]}", *row[1:]] if row[0].startswith(("[", "*")) else row for row in rows]
        text = self._between("latex_booktabs", rows, r"\textbf{", "}", r"\underline{", "}")
        text = text.replace(EMPTY, "{}").replace("±", r"$\pm$")
        if self.across:
            first, last = self.keys + 1, len(self.heads)
            escaped = "".join(LATEX_ESCAPE_RULES.get(letter, letter) for letter in self.across)
            spanning = rf"\multicolumn{{{last - first + 1}}}{{c}}{{{escaped}}} \\ \cmidrule(lr){{{first}-{last}}}"
            text = text.replace("\\toprule\n", f"\\toprule\n{'& ' * self.keys}{spanning}\n", 1)
        if caption or label:
            parts = [r"\begin{table}[t]", r"\centering", *([rf"\caption{{{caption}}}"] if caption else [])]
            parts += [*([rf"\label{{{label}}}"] if label else []), text, r"\end{table}"]
            text = "\n".join(parts)
        above = (self.heading, *self.notes, *self.legend("bold", "underlined"))
        return "\n".join([*(f"% {' '.join(line.split())}" for line in above if line), text]) + "\n"

    def html(self) -> str:
        """Writes the table in HTML; the best cells are strong, the second best underlined."""
        return self._between("html", self._mark(*SIGNS), "<strong>", "</strong>", "<u>", "</u>")

    def csv(self) -> str:
        """Writes the table as CSV, without title and notes; the last columns are the marks of columns."""
        out = io.StringIO()
        columns = sorted({column for _, column in self.best | self.second})
        heads = [*self.heads, *(f"{self.heads[column]} mark" for column in columns)]
        rows = [
            [
                *row,
                *("best" if (r, c) in self.best else "second" if (r, c) in self.second else "" for c in columns),
            ]
            for r, row in enumerate(self.rows)
        ]
        csv.writer(out, lineterminator="\n").writerows([heads, *rows])
        return out.getvalue()

    def legend(self, best: str, second: str) -> list[str]:
        """Returns a line that explains the marks, which are shown as `best` and `second`; none without marks."""
        return [f"{best}: best, {second}: second best{self.compared}"] if self.best else []

    def __repr__(self) -> str:
        """Returns the text, or the first lines of a long one."""
        lines = self.text().splitlines()
        shown = lines if len(lines) <= SHOWN_LINES else [*lines[: SHOWN_LINES - 1], f"… {len(lines)} lines in all"]
        return "\n".join(shown)

    def _repr_html_(self) -> str:
        """Returns the whole table for a notebook, with its title and notes."""
        around = [self.title, *self.notes, *self.legend("bold", "underlined")]
        title, *below = (f"<p>{html.escape(line)}</p>" if line else "" for line in around)
        return "\n".join([title, self.html(), *below])

    def _tabulate(self, form: str, rows: list[list[str]], columns: Sequence[int] | None = None, **options: Any) -> str:
        """Writes all columns, or some, by tabulate."""
        shown = range(len(self.heads)) if columns is None else columns
        sides = ["left" if column < self.keys else "right" for column in shown]
        cells, heads = [[row[column] for column in shown] for row in rows], [self.heads[column] for column in shown]
        options |= {"colalign": sides} if rows else {}
        made: str = tabulate(cells, heads, tablefmt=form, disable_numparse=True, **options)
        return made

    def _between(self, form: str, rows: list[list[str]], *marks: str) -> str:
        """Writes the table by tabulate, and replaces the signs by `marks`, which tabulate would have escaped."""
        text = self._tabulate(form, rows)
        for sign, mark in zip(SIGNS, marks):
            text = text.replace(sign, mark)
        return text

    def _mark(self, left: str, right: str, left_second: str, right_second: str) -> list[list[str]]:
        rows = [list(row) for row in self.rows]
        for places, before, after in ((self.best, left, right), (self.second, left_second, right_second)):
            for row, column in places:
                rows[row][column] = f"{before}{rows[row][column]}{after}"
        return rows

    def _list_cells(self, rows: list[list[str]]) -> list[str]:
        lines = []
        for row in rows:
            lines += [f"{head}: {cell.strip()}" for head, cell in zip(self.heads, row) if cell.strip()] + [""]
        return lines[:-1]
