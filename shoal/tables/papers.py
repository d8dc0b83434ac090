"""Tables and figures of papers: the figures that a paper prints, and the runs that reproduce them.

`configs/papers/` has a file for each paper; a user's own file has the same form, which `shoal init paper` writes.
"""

import json
import os
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, Literal

import yaml
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError

from shoal.engine.config.config import SHIPPED, Config, load_config, require_names
from shoal.engine.config.config_text import MOST_BYTES, require_small
from shoal.engine.config.run_identity import fingerprint_of, flatten
from shoal.engine.config.sections import current_name
from shoal.storage.errors import ShoalError
from shoal.storage.files.reading import read_text
from shoal.storage.options.types import message_of, quoted
from shoal.study.means import Mean
from shoal.study.study import Choose, Scope, Selected, Selection

PAPERS = SHIPPED / "papers"
LOCAL = "Local"
# Tables name the forms of a method so; the value of `algorithm.form` is the key.
FORMS = {"paper": "as written", "code": "as its code", "recommended": "recommended"}
NONE = "-"
# Beside blocks, columns and rows, repetitions and the smallest look set keys of runs. An error names the way out.
REPETITION, SMALLEST = "every repetition", "--smallest"
WAYS_OUT = {REPETITION: "--seeds says how many there are", SMALLEST: "leave one of the two out"}
Keys = dict[str, Any]
Form = Literal["paper", "code", "recommended"]


class _Choose(Choose):
    """A choice by validation of the models that the paper scores, which clients deploy."""

    by: Annotated[Scope, BeforeValidator(current_name)] = "deployed"


class _Part(BaseModel):
    """A block, column or row of a table: keys of the config, and what else is said of its cells.

    `needs` is as of a table.
    """

    model_config = ConfigDict(extra="forbid")
    set: Keys = {}
    score: str | None = None
    cannot: str | None = None
    needs: str | None = None


class _Column(_Part):
    """`blocks` are those that it is in, by default all."""

    blocks: list[str] | None = None


class _Row(_Column):
    """`forms` makes a row for each form of its method, with keys of its own where they are a mapping; `of` names the
    paper's row; `columns` are as `blocks`.

    `smallest` are keys of the smallest look alone, such as fewer rounds of a method's own.
    """

    smallest: Keys = {}
    forms: list[Form] | dict[Form, Keys] = []
    of: str | None = None
    columns: list[str] | None = None


class PaperTable(BaseModel):
    """A table or figure of a paper, as its file has it.

    Attributes:
        title: A line that says what it shows.
        config: The config of all cells, beside the file; that of the paper if it is not set.
        set: Keys that all cells share. Those of a block, a column, a row are laid over it, in this order.
        score: The figure of a summary that is compared with the paper; a block, column or row can have its own.
        mean: The mean over clients of a score.
        runs: Repetitions that the paper's deviations are over.
        seeds: Repetitions here.
        choose: The key whose value validation chooses; a row has its values as a list.
        blocks, columns, rows: The parts that vary, by name.
        paper: The paper's figures by row, or by block and row: `80.7±0.4 71.2 -`, one for each column.
        control: Add the row `Local` if there is none.
        needs: A variable of the environment that names a folder, as `${NAME}` in `set`; without it there are no runs.
        smallest: Keys of the smallest look alone.
        note: A text on differences from the paper, or on what it leaves open.
        cannot: Why there are no runs of it.
    """

    model_config = ConfigDict(extra="forbid")
    title: str
    config: str | None = None
    set: Keys = {}
    score: str = "deployed.best.test"
    mean: Mean = "nodes"
    runs: int | None = None
    seeds: Annotated[int, Field(ge=1)] = 3
    choose: _Choose | None = None
    blocks: dict[str, _Part] = {"": _Part()}
    columns: dict[str, _Column] = {"": _Column()}
    rows: dict[str, _Row] = {}
    paper: dict[str, str | dict[str, str]] = {}
    control: bool = True
    smallest: Keys = {}
    needs: str | None = None
    note: str = ""
    cannot: str | None = None

    @cached_property
    def whole_rows(self) -> dict[str, _Row]:
        """Every row: `Local` first, and a row for each form of a method."""
        rows = {}
        if self.control and self.rows and not any(row.set.get("algorithm") == "local" for row in self.rows.values()):
            rows[LOCAL] = _Row(set={"algorithm": "local"})
        for name, row in self.rows.items():
            method = row.set.get("algorithm")
            options = {"name": method} if isinstance(method, str) else dict(method or {})
            for form in row.forms:
                of_form = row.forms[form] if isinstance(row.forms, dict) else {}
                keys = {**row.set, **of_form, "algorithm": {**options, "form": form}}
                rows[f"{name}, {FORMS[form]}"] = row.model_copy(update={"set": keys, "of": row.of or name})
            if not row.forms:
                rows[name] = row
        return rows


class _Paper(BaseModel):
    model_config = ConfigDict(extra="forbid")
    title: str
    config: str | None = None
    tables: Annotated[dict[str, PaperTable], Field(min_length=1)]


@dataclass(frozen=True)
class Printed:
    """A figure of a paper, its deviation where it has one, and both as the paper prints them."""

    value: float
    deviation: float | None
    text: str = ""

    @classmethod
    def of(cls, text: str) -> "Printed | None":
        """Reads `80.7±0.4` or `80.7`; None for `-`. Raises ValueError: it has another form."""
        if text == NONE:
            return None
        value, _, deviation = text.partition("±")
        return cls(float(value), float(deviation) if deviation else None, text.replace("±", " ± "))


@dataclass(frozen=True)
class PaperCell:
    """A figure to reproduce: its place, the keys of its runs, the score that is compared, and why there are no runs.

    `set_by` has the keys that make it this cell, and what sets each: its block, column or row, or the smallest look.
    """

    block: str
    column: str
    row: str
    set: Mapping[str, Any]
    score: str
    printed: Printed | None
    cannot: str | None
    smallest: Mapping[str, Any]
    set_by: Mapping[str, str] = field(default_factory=dict)

    @property
    def place(self) -> dict[str, str]:
        """The names of block, column and row, of those that it has."""
        named = {"block": self.block, "column": self.column, "row": self.row}
        return {what: name for what, name in named.items() if name}

    @property
    def label(self) -> str:
        """The names of its place, in a line."""
        return ", ".join(self.place.values())


@dataclass(frozen=True)
class Paper:
    """A paper's tables and figures; `name` is that of its file, at `path`."""

    name: str
    path: Path
    title: str
    tables: Mapping[str, PaperTable]

    def cells(self, table: str) -> list[PaperCell]:
        """Returns all cells of a table, block by block, column by column."""
        read = self.tables[table]
        return [
            cell
            for block in read.blocks
            for column in read.columns
            for row in read.whole_rows
            if (cell := _cell(read, block, column, row)) is not None
        ]

    def config_of(self, table: str) -> Path:
        """Returns the config of a table. Raises ShoalError: the file names none."""
        named = self.tables[table].config
        if named is None:
            raise ShoalError(self.path, f"tables.{table}.config", "not set, nor is config; name a config, as cora.yaml")
        return self.path.parent / named


def _cell(table: PaperTable, block: str, column: str, row: str) -> PaperCell | None:
    of_column, of_row = table.columns[column], table.whole_rows[row]
    within = ((block, of_column.blocks), (block, of_row.blocks), (column, of_row.columns))
    if any(names is not None and name not in names for name, names in within):
        return None
    parts = (table.blocks[block], of_column, of_row)
    named = zip(("block", "column", "row"), (block, column, row), parts)
    set_by = {key: f"{what} {name}" for what, name, part in named for key in part.set}
    keys = {**table.set, **{key: value for part in parts for key, value in part.set.items()}}
    return PaperCell(
        block,
        column,
        row,
        keys,
        next((part.score for part in reversed(parts) if part.score), table.score),
        read_figures(table, block, of_row.of or row).get(column),
        next((reason for part in parts if (reason := part.cannot or _lacks(part.needs, table.note))), table.cannot),
        {**table.smallest, **of_row.smallest},
        set_by,
    )


def read_figures(table: PaperTable, block: str, row: str) -> dict[str, Printed]:
    """Returns the paper's figures of a row, by column."""
    of_block = table.paper.get(block)
    text = (of_block if isinstance(of_block, dict) else table.paper).get(row, "")
    values = text.split() if isinstance(text, str) else []
    return {column: value for column, word in zip(table.columns, values) if (value := Printed.of(word)) is not None}


@dataclass(frozen=True)
class PaperStudy(Selected):
    """The runs of some cells of a table as a sweep: a selection for every cell, value to choose from, and seed.

    `typed` are the overrides of the user, which go over the keys of all cells.
    """

    typed: tuple[str, ...] = ()

    @cached_property
    def configs(self) -> list[Config]:
        """The config of every selection. A ShoalError names the cell, too."""
        return [self.config_of(selection) for selection in self.selections]

    def config_of(self, selection: Selection) -> Config:
        """Reads the config of one selection; raises as `configs`."""
        try:
            config = load_config(self.config, selection.overrides, source="", typed=self.typed)
            require_names(config)
        except ShoalError as error:
            cell = ", ".join(name for key, name in selection.columns.items() if key != "seed")
            raise ShoalError(cell, error.line, detail=error.detail) from error
        return config

    @property
    def command(self) -> str:
        """The words for continuing the sweep, which `shoal reproduce` makes."""
        return "the same shoal reproduce"

    def folder(self, root: Path, name: str) -> Path:
        """Returns the folder of the sweep, named after paper and table, and after the cells."""
        cells = [sorted({*selection.overrides}) for selection in self.selections]
        return root / "sweeps" / f"{'-'.join(self.axes)}-{fingerprint_of({'cells': cells})}"


def study_of(
    paper: Paper, table: str, cells: Sequence[PaperCell], seeds: int | None = None, overrides: Sequence[str] = ()
) -> PaperStudy:
    """Makes the study of some cells; `seeds` replaces the number of the table, `overrides` go over all keys."""
    read = paper.tables[table]
    choose = read.choose
    selections: dict[tuple[str, ...], Selection] = {}
    for seed in range(seeds or read.seeds):
        for cell in cells:
            key = choose.key if choose is not None and isinstance(cell.set.get(choose.key), list) else None
            for value in cell.set[key] if key is not None else (None,):
                keys = {"name": paper.name, **cell.set, "seed": seed, **({} if key is None else {key: value})}
                # A whole method or model comes before its single options, which it would overwrite.
                ordered = sorted(keys, key=lambda name: name.count("."))
                columns = {**cell.place, **({} if key is None else {key: str(value)}), "seed": str(seed)}
                given = tuple(f"{name}={_text(keys[name])}" for name in ordered)
                # Cells that show several figures of one run share it.
                selections.setdefault((*given, *overrides), Selection(columns, (*given, *overrides)))
    chosen = {} if choose is None else {"choose": choose.key, "choose_seeds": choose.seeds, "choose_by": choose.by}
    runs = tuple(selections.values())
    return PaperStudy(str(paper.config_of(table)), (paper.name, table), selections=runs, typed=(*overrides,), **chosen)  # type: ignore[arg-type]


def _text(value: Any) -> str:
    return os.path.expandvars(value) if isinstance(value, str) else json.dumps(value)


def some_of(cells: Sequence[PaperCell], names: Collection[str]) -> list[PaperCell]:
    """Returns the cells in the blocks, columns and rows that are named; all blocks if no block is named, and so on.

    A row's name includes its forms: `FedGTA` means `FedGTA, as written`, too. `Local` stays beside other rows that have
    runs. A table without any of the names has no such cells.
    """
    wanted = set(names)
    kept = list(cells) if wanted & set(known_names(cells)) else []
    for names_of in (lambda c: {c.block}, lambda c: {c.column}):
        available: set[str] = set().union(*(names_of(cell) for cell in cells))
        if here := wanted & available:
            kept = [cell for cell in kept if names_of(cell) & here]
    rows = [cell for cell in kept if _row_names(cell) & wanted]
    if not wanted & set().union(*map(_row_names, cells)):
        return kept
    compared = {(cell.block, cell.column) for cell in rows if cell.cannot is None}
    return [cell for cell in kept if cell in rows or (cell.row == LOCAL and (cell.block, cell.column) in compared)]


def _row_names(cell: PaperCell) -> set[str]:
    return {cell.row, cell.row.partition(", ")[0]}


def require_free(paper: Paper, table: str, cells: Sequence[PaperCell], overrides: Sequence[str]) -> None:
    """Raises ShoalError: an override sets what makes a cell the one of its name, or the seed of a repetition."""
    for text in overrides:
        key, value = text.partition("=")[::2]
        for cell in cells:
            for name, by in {"seed": REPETITION, **cell.set_by}.items():
                leaves = flatten({name: cell.set.get(name)})
                if any(_meet(key, leaf, leaves[leaf]) for leaf in leaves):
                    way_out = WAYS_OUT.get(by, "write a table of your own for it, as shoal init paper does")
                    reason = f"cannot be {quoted(value)}, as {by} sets {name}; {way_out}"
                    raise ShoalError(paper.path, f"tables.{table}", key, reason)


def _meet(key: str, leaf: str, value: Any) -> bool:
    """Returns whether an override changes a key that has a value; a text is the name of a method or model alone."""
    below = key == f"{leaf}.name" if isinstance(value, str) else key.startswith(f"{leaf}.")
    return key == leaf or leaf.startswith(f"{key}.") or below


def known_names(cells: Sequence[PaperCell]) -> list[str]:
    """Returns names of blocks, columns and rows, and of rows in all their forms."""
    return list(dict.fromkeys(name for cell in cells for name in (*cell.place.values(), cell.row.partition(", ")[0])))


def smallest_of(cells: Sequence[PaperCell]) -> list[PaperCell]:
    """Returns the cells of the first block and first column that has runs, three rounds each."""
    possible = [cell for cell in cells if cell.cannot is None]
    if not possible:
        return list(cells)
    first = [c for c in possible if (c.block, c.column) == (possible[0].block, possible[0].column)]
    return [_smallest(cell) for cell in first]


def _smallest(cell: PaperCell) -> PaperCell:
    keys = {**cell.smallest, "rounds": 3, "evaluation.every": 1}
    return replace(cell, set={**cell.set, **keys}, set_by={**cell.set_by, **dict.fromkeys(keys, SMALLEST)})


def paper_names() -> list[str]:
    """Returns names of the papers that come with the package."""
    return sorted(path.stem for path in PAPERS.glob("*.yaml"))


def read_paper(name: str) -> Paper:
    """Reads a paper by its name, or from a user's file. Raises ShoalError: something is missing or wrong, by name."""
    path = Path(name) if name.endswith((".yaml", ".yml")) else PAPERS / f"{name.lower()}.yaml"
    if not path.is_file():
        raise ShoalError(name, f"no such paper; there are {', '.join(paper_names())}, or give a file of that form")
    try:
        text = read_text(path, MOST_BYTES)
        require_small(text)
        file = _Paper.model_validate(yaml.safe_load(text))
    except ValidationError as error:
        first = error.errors()[0]
        key = ".".join(str(part) for part in first["loc"])
        raise ShoalError(path, key, f"{message_of(error)}, found {quoted(first.get('input'))}") from None
    except (OSError, ValueError, RecursionError, yaml.YAMLError) as error:
        raise ShoalError(path, f"cannot be read: {' '.join(str(error).split())}") from None
    tables = {key: _check_table(path, key, table, file.config) for key, table in file.tables.items()}
    return Paper(path.stem, path, file.title, tables)


def _check_table(path: Path, name: str, table: PaperTable, config: str | None) -> PaperTable:
    """Completes a table with config and `cannot`. Raises ShoalError: figures do not fit blocks, columns and rows."""
    within = [(f"columns.{key}.blocks", column.blocks, [*table.blocks]) for key, column in table.columns.items()]
    within += [(f"rows.{key}.blocks", row.blocks, [*table.blocks]) for key, row in table.rows.items()]
    within += [(f"rows.{key}.columns", row.columns, [*table.columns]) for key, row in table.rows.items()]
    for where, names, allowed in within:
        if wrong := next((given for given in names or () if given not in allowed), None):
            reason = f"expected some of {', '.join(allowed)}, got {quoted(wrong)}"
            raise ShoalError(path, f"tables.{name}.{where}", reason)
    rows = {row.of or key for key, row in table.whole_rows.items()}
    for block, row, values in _printed_rows(table):
        if not table.rows:
            break
        where = f"{block}.{row}" if block else row
        if block and block not in table.blocks:
            raise ShoalError(path, f"tables.{name}.paper.{where}", f"expected a block, {', '.join(table.blocks)}")
        if row not in rows:
            raise ShoalError(path, f"tables.{name}.paper.{where}", f"expected a row, {', '.join(sorted(rows))}")
        words = values.split()
        if len(words) != len(table.columns):
            raise ShoalError(
                path, f"tables.{name}.paper.{where}", f"expected {len(table.columns)} figures, got {len(words)}"
            )
        for word in words:
            try:
                Printed.of(word)
            except ValueError:
                raise ShoalError(
                    path, f"tables.{name}.paper.{where}", f"expected 80.7, 80.7±0.4 or -, got {quoted(word)}"
                ) from None
    if not table.rows and table.cannot is None:
        raise ShoalError(path, f"tables.{name}", "has neither rows nor cannot, which says why")
    cannot = table.cannot or _lacks(table.needs, table.note)
    return table.model_copy(update={"config": table.config or config, "cannot": cannot})


def _lacks(variable: str | None, note: str) -> str | None:
    """Says that a variable of the environment is not set, and what it names; None where none is lacking."""
    if variable is None or os.environ.get(variable):
        return None
    return f"the variable {variable} is not set; set it to the folder: {note}"


def _printed_rows(table: PaperTable) -> Iterator[tuple[str, str, str]]:
    for key, value in table.paper.items():
        if isinstance(value, str):
            yield "", key, value
        else:
            for row, text in value.items():
                yield key, row, text
