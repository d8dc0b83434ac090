"""A table as text for a terminal, a paper or another program, which never cuts what stands in a cell."""

import csv
import io
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

GAP = "  "
INDENT = "    "
BEST = "*"


@dataclass(frozen=True)
class TextTable:
    """Cells by row and column.

    Attributes:
        heads: Name of every column.
        rows: Cells; all as many as heads.
        keys: So many columns in front say which row it is; the others are numbers, which stand to the right. Where all
            are keys, the last one is a text, which goes below its row where it does not fit beside it.
        best: Rows and columns of the cells that are marked.
        title: A line above; empty: none.
        notes: Lines below.
    """

    heads: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    keys: int
    best: frozenset[tuple[int, int]] = frozenset()
    title: str = ""
    notes: tuple[str, ...] = ()

    def text(self, width: int | None = None) -> str:
        """For a terminal. What does not fit a width comes in blocks of columns below one another, each with the keys.

        Where not even the keys and one number fit, every row is a list of its cells. Texts break at words.
        """
        cells = [self.heads, *(self._marked(place) for place in range(len(self.rows)))]
        widths = [max(len(row[column]) for row in cells) for column in range(len(self.heads))]
        blocks = self._blocks(widths, width)
        lines = [self.title] if self.title else []
        if width is not None and self.keys == len(self.heads) and _total(range(self.keys), widths) > width:
            lines += self._below(cells, widths, width)
        elif blocks is None:
            lines += self._listed(cells)
        else:
            for number, columns in enumerate(blocks):
                lines += [""] if number else []
                lines += [self._aligned(row, columns, widths) for row in cells]
        return "\n".join([*lines, *self.notes]) + "\n"

    def markdown(self) -> str:
        """For a page, marked cells bold."""
        kinds = ["---" if column < self.keys else "---:" for column in range(len(self.heads))]
        lines = [self.heads, kinds, *(self._bold(place, "**", "**") for place in range(len(self.rows)))]
        text = "\n".join(f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in line)} |" for line in lines)
        return "\n\n".join([*([self.title] if self.title else []), text, *self.notes]) + "\n"

    def latex(self) -> str:
        """For a paper: a tabular of the package booktabs, marked cells bold."""
        kinds = "l" * self.keys + "r" * (len(self.heads) - self.keys)
        rows = [self._bold(place, "\\textbf{", "}") for place in range(len(self.rows))]
        body = [" & ".join(_latex(cell) for cell in row) + r" \\" for row in (self.heads, *rows)]
        lines = [rf"\begin{{tabular}}{{{kinds}}}", r"\toprule", body[0], r"\midrule", *body[1:], r"\bottomrule"]
        notes = [f"% {line}" for line in ([self.title] if self.title else []) + list(self.notes)]
        return "\n".join([*notes, *lines, r"\end{tabular}"]) + "\n"

    def csv(self) -> str:
        """For another program, without marks, title and notes."""
        out = io.StringIO()
        csv.writer(out, lineterminator="\n").writerows([self.heads, *self.rows])
        return out.getvalue()

    def _marked(self, place: int) -> tuple[str, ...]:
        """A row whose best cells have a mark, and the others of a column with one have room for it."""
        columns = {column for _, column in self.best}
        return tuple(
            cell + (BEST if (place, column) in self.best else " " if column in columns else "")
            for column, cell in enumerate(self.rows[place])
        )

    def _bold(self, place: int, left: str, right: str) -> tuple[str, ...]:
        row = enumerate(self.rows[place])
        return tuple(f"{left}{cell}{right}" if (place, column) in self.best else cell for column, cell in row)

    def _blocks(self, widths: Sequence[int], width: int | None) -> list[list[int]] | None:
        """Columns of every block; None where a row has to be listed."""
        keys, numbers = list(range(self.keys)), list(range(self.keys, len(self.heads)))
        blocks = [[*keys]]
        for column in numbers:
            blocks[-1].append(column)
            if width is not None and _total(blocks[-1], widths) > width:
                if len(blocks[-1]) == self.keys + 1:
                    return None
                blocks[-1].pop()
                blocks.append([*keys, column])
                if _total(blocks[-1], widths) > width:
                    return None
        return blocks

    def _aligned(self, row: Sequence[str], columns: Sequence[int], widths: Sequence[int]) -> str:
        cells = [
            row[column].ljust(widths[column]) if column < self.keys else row[column].rjust(widths[column])
            for column in columns
        ]
        return GAP.join(cells).rstrip()

    def _below(self, cells: Sequence[Sequence[str]], widths: Sequence[int], width: int) -> list[str]:
        """Every row with its last cell on lines of its own; a list of cells where the others do not fit either."""
        others = range(self.keys - 1)
        if _total(others, widths) > width:
            return [line for text in self._listed(cells) for line in _broken(text, width) or [""]]
        lines = []
        for row in cells:
            lines += [self._aligned(row, others, widths), *_broken(row[-1], width, INDENT)]
        return lines

    def _listed(self, cells: Sequence[Sequence[str]]) -> list[str]:
        lines = []
        for row in cells[1:]:
            lines += [f"{head}: {cell.strip()}" for head, cell in zip(self.heads, row) if cell.strip()] + [""]
        return lines[:-1]


def _broken(text: str, width: int, indent: str = "") -> list[str]:
    """Lines of a text; a word that is longer than a line is not broken."""
    return textwrap.wrap(
        text, width, initial_indent=indent, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False
    )


def _total(columns: Sequence[int], widths: Sequence[int]) -> int:
    return sum(widths[column] for column in columns) + len(GAP) * sum(1 for _ in pairwise(columns))


LATEX = {"\\": r"\textbackslash{}", "&": r"\&", "%": r"\%", "_": r"\_", "#": r"\#", "$": r"\$", "±": r"$\pm$"}
BOLD = "\\textbf{"


def _latex(cell: str) -> str:
    """Text as LaTeX prints it; what makes it bold stays."""
    if cell.startswith(BOLD) and cell.endswith("}"):
        return f"{BOLD}{_latex(cell[len(BOLD) : -1])}}}"
    return "".join(LATEX.get(letter, letter) for letter in cell)
