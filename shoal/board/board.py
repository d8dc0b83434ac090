"""The board itself: `board.json` for programs, and the page that shows it, methods by settings."""

import json
import shlex
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from shoal.board.entries import SHOWN, BoardRun, Entry
from shoal.engine.records.outputs import PAGE
from shoal.pages.page import Head, Section, write_page
from shoal.storage.errors import ShoalError
from shoal.storage.files.atomic import replacing
from shoal.storage.files.checksummed_json import sealed, unsealed
from shoal.storage.files.reading import read_bytes
from shoal.study.groups import short_key
from shoal.tables.study_table import Place, mark_best
from shoal.tables.text_table import TextTable

BOARD, FORMAT = "board.json", 1
# The keys of a budget, and what stands for none, in words.
WORDS = {"train.epochs": "epochs", "train.batch_size": "batches of", "evaluation.every": "evaluated every"}
VALUES = {"None": "all rows"}
# A cell with another budget than most has this mark.
UNLIKE = "‡"


@dataclass(frozen=True)
class Board:
    """Entries of methods in settings; `title` is what the page is called."""

    title: str
    entries: tuple[Entry, ...]

    @property
    def settings(self) -> list[dict[str, str]]:
        """All settings, in the order of their first entries."""
        return [json.loads(text) for text in dict.fromkeys(json.dumps(entry.setting) for entry in self.entries)]

    def names_of_settings(self) -> list[str]:
        """Returns a short name of every setting: the values in which they differ, else the graph."""
        settings = self.settings
        keys = list(dict.fromkeys(key for setting in settings for key in setting))
        varied = [key for key in keys if len({setting.get(key) for setting in settings}) > 1]
        # Options of a dataset or a partition follow from its name, where that alone tells settings apart.
        for few in (["data.dataset"], [key for key in varied if key in SHOWN], varied):
            if len({tuple(setting.get(key) for key in few) for setting in settings}) == len(settings):
                varied = few
                break
        named = varied or ["data.dataset"]
        return [
            ", ".join(
                setting[key] if key == "data.dataset" else f"{short_key(key, named)} {setting[key]}"
                for key in named
                if key in setting
            )
            for setting in settings
        ]

    def rows(self) -> dict[str, list[Entry]]:
        """Returns the entries of every row: of a method, or, where a setting has several of it, of their options."""
        rows: dict[str, list[Entry]] = {}
        for entry in self.entries:
            of_method = [other for other in self.entries if other.method == entry.method]
            several = len({json.dumps(other.setting) for other in of_method}) < len(of_method)
            differ = {k for other in of_method for k in {**other.options, **other.budget}} if several else set()
            texts = [{**other.options, **other.budget} for other in of_method]
            varied = sorted(key for key in differ if len({text.get(key) for text in texts}) > 1)
            given = {**entry.options, **entry.budget}
            options = ", ".join(f"{short_key(key, varied)} {given[key]}" for key in varied if key in given)
            rows.setdefault(f"{entry.label} ({options})" if options else entry.label, []).append(entry)
        return rows

    def table(self) -> TextTable:
        """Makes the table of scores with their intervals; the best of equal budgets is marked in each setting."""
        settings, names = self.settings, self.names_of_settings()
        shown, notes = list[tuple[str, ...]](), list[str]()
        ranked: dict[int, dict[Place, float]] = {}
        for number, (label, entries) in enumerate(self.rows().items()):
            cells = ["-"] * len(settings)
            for entry in entries:
                column = settings.index(entry.setting)
                cells[column] = format_score(entry.score, entry.interval) + (UNLIKE if entry.unlike else "")
                if entry.unlike:
                    notes.append(f"{UNLIKE} not ranked: {label}, {names[column]}: {entry.unlike}")
                else:
                    ranked.setdefault(column, {})[number, column + 1] = entry.score
            shown.append((label, *cells))
        marks = [mark_best(of_column, _equal, lambda *_: False) for of_column in ranked.values()]
        best, second = (frozenset(place for pair in marks for place in pair[at]) for at in (0, 1))
        figures = sorted({f"{entry.figure}.{entry.mean}" for entry in self.entries})
        notes.insert(0, f"{', '.join(figures)} in %, mean over seeds ± half its 95 % interval by Student's t")
        return TextTable(("method", *names), tuple(shown), 1, best, self.title, tuple(notes), second)

    def table_of_settings(self) -> TextTable:
        """Makes a table of the settings and their usual budgets."""
        rows = []
        for name, setting in zip(self.names_of_settings(), self.settings):
            budget = next(entry.budget for entry in self.entries if entry.setting == setting and not entry.unlike)
            of_budget = ", ".join(f"{WORDS.get(key, key)} {VALUES.get(value, value)}" for key, value in budget.items())
            rows.append((name, *(setting.get(key, "-") for key in SHOWN), of_budget))
        return TextTable(
            ("setting", "graph", "partition", "clients", "model", "participation", "budget"), tuple(rows), 7
        )

    def table_of_runs(self) -> TextTable:
        """Makes a table of all runs with their digests."""
        names = dict(zip(map(json.dumps, self.settings), self.names_of_settings()))
        rows = [
            (
                entry.label, names[json.dumps(entry.setting)], run.seeds.get("seed", "-"), format_score(run.score),
                str(run.round), run.config, run.store, run.uploads,
            )
            for entry in self.entries
            for run in entry.runs
        ]  # fmt: skip
        return TextTable(("method", "setting", "seed", "score", "round", "config", "store", "uploads"), tuple(rows), 8)


def _equal(a: float, b: float) -> bool:
    return format_score(a) == format_score(b)


def format_score(score: float, interval: float | None = None) -> str:
    """Formats a score in %, with its interval if it has one."""
    return f"{100 * score:.2f}" + ("" if interval is None else f" ± {100 * interval:.2f}")


def write_board(board: Board, folder: Path) -> Path:
    """Writes `board.json` and the page of it; returns the page. Raises ShoalError: one cannot be written."""
    page = _write_page(board, folder)
    plain = {"format": FORMAT, "title": board.title, "entries": [asdict(entry) for entry in board.entries]}
    with replacing(folder / BOARD) as unfinished:
        unfinished.write_text(sealed(plain, indent=1))
    return page


def _write_page(board: Board, folder: Path) -> Path:
    runs = sum(len(entry.runs) for entry in board.entries)
    facts = [("Methods", str(len(board.rows()))), ("Settings", str(len(board.settings))), ("Runs", f"{runs:,}")]
    command = f"shoal verify {shlex.quote(folder.name)} --visits 20"
    sections = [
        Section("", tables=[replace(board.table(), title="")], leads=True),
        Section("Settings and budgets", tables=[board.table_of_settings()]),
        Section("Runs and digests", tables=[board.table_of_runs()], folded=True),
    ]
    return write_page(folder, Head(board.title, facts=facts, command=command), sections)


def page_is_of(board: Board, folder: Path, scratch: Path) -> bool:
    """Returns whether the page in a folder is the one that this Shoal writes of a board; `scratch` is a new folder."""
    place = scratch / folder.name
    written = _write_page(board, place)
    return read_bytes(written) == read_bytes(folder / PAGE)


def read_board(folder: Path) -> tuple[Board, str]:
    """Reads a board, and what is wrong with its seal; empty: nothing. Raises ShoalError: it is damaged."""
    path = folder / BOARD
    try:
        text = read_bytes(path)
        try:
            plain, fault = unsealed(text), ""
        except ValueError as error:
            plain, fault = json.loads(text), f"{path}: {error}"
        if plain["format"] != FORMAT:
            raise ValueError(f"format {plain['format']}, this Shoal reads {FORMAT}")
        entries = tuple(_entry_of(entry) for entry in plain["entries"])
        return Board(str(plain["title"]), entries), fault
    except OSError as error:
        raise ShoalError(path, f"cannot be read: {error.strerror}; shoal board makes one") from error
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise ShoalError(path, f"damaged ({error}); shoal board makes it again") from None


def _entry_of(plain: dict[str, Any]) -> Entry:
    runs = tuple(BoardRun(**run) for run in plain["runs"])
    for table in ("options", "setting", "budget"):
        if not all(isinstance(text, str) for pair in plain[table].items() for text in pair):
            raise ValueError(f"{table} of an entry has a value that is no text")
    texts = [plain["method"], plain["figure"], plain["mean"], plain["unlike"]]
    texts += [text for run in runs for text in (run.run, run.config, run.store, run.uploads)]
    numbers = [plain["score"], *(run.score for run in runs)]
    if not runs or not all(isinstance(text, str) for text in texts) or len(plain["figure"].split(".")) != 3:
        raise ValueError("an entry without runs, or with a value that is no text")
    if not all(isinstance(number, float | int) for number in numbers):
        raise ValueError("a score that is no number")
    return Entry(**{**plain, "runs": runs})


def folder_of(paths: Sequence[Path]) -> Path:
    """Returns the folder of a board by default: `board` in the folder of runs, beside a run, or beside sweeps."""
    first = paths[0]
    if (first / "config.yaml").exists():
        return first.parent / "board"
    return first.parent.parent / "board" if first.parent.name == "sweeps" else first / "board"
