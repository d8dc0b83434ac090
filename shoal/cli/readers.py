"""Readers of runs that are over, by name or from a user's file, and what commands show of their readings."""

from collections.abc import Mapping, Sequence
from dataclasses import is_dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import typer

from shoal.engine.screen.output import put, put_json
from shoal.engine.sections.section import load
from shoal.features.features import FEATURES
from shoal.storage.errors import ShoalError
from shoal.storage.options.types import is_own
from shoal.storage.suggestions import did_you_mean

if TYPE_CHECKING:
    from shoal.past.reader import Reader, Reading
    from shoal.storage.user_code.user_code import UserCode

# By name where the class of each lies; most load what trains, which takes seconds.
OF_THE_PAST = {"ledger": "shoal.past.ledger:LedgerReader", "replay": "shoal.past.replay:ReplayReader"}
OF_FEATURES = {name: place for feature in FEATURES for name, place in feature.readers.items()}
READERS = dict(sorted({**OF_THE_PAST, **OF_FEATURES}.items()))
KEY = "READER"


def read_run(name: str, options: Mapping[str, Any], run: Path) -> "Reading":
    """Reads a run by a reader of ours, or by a user's `my_file.py:Mine`.

    Raises ShoalError: there is no such reader, an option is wrong, or the reader raises it; errors of a user's code
    name its file and line.
    """
    from shoal.past.reader import Reading
    from shoal.past.rewind import PastRun
    from shoal.storage.user_code.option_fields import field_values, require_all
    from shoal.tables.text_table import TextTable

    cls, code = _load(name)
    values = field_values(cls, options, "--", cls.__name__, code.place if code else name)
    require_all(cls, values, "--")
    if code is None:
        return Reading.of(cls(**values).read(PastRun(run)))
    with code.at_work(KEY):
        result = cls(**values).read(PastRun(run))
    if not isinstance(result, TextTable | Reading):
        raise code.fault(KEY, f"read() gives {type(result).__name__}, expected a shoal.TextTable or shoal.Reading")
    return Reading.of(result)


def show_reading(reading: "Reading", out: Path | None = None, below: str = "", as_json: bool = False) -> None:
    """Shows tables and lines, or as JSON the rows that `--out` writes: a CSV file, or a folder of them.

    Raises ShoalError: `out` is a file where a folder is needed. Raises typer.Exit: what was made again is not what the
    run recorded; the status is 1.
    """
    from shoal.tables.table_output import on_screen, plain_rows

    if out is not None:
        _write(reading.csv, out)
    if as_json:
        csv = reading.csv
        rows = plain_rows(csv) if isinstance(csv, str) else {name: plain_rows(text) for name, text in csv.items()}
        put_json({"rows": rows, "verdict": reading.verdict, "as_recorded": reading.as_recorded})
    else:
        put("\n".join(map(on_screen, reading.tables)), end="")
        for line in (reading.verdict, below, "" if out is None else f"written: {out}"):
            if line:
                put(line)
    if not reading.as_recorded:
        raise typer.Exit(1)


def options_in(words: Sequence[str]) -> dict[str, Any]:
    """Reads `--name value` and `--name=value` as options with values as YAML reads them. Raises ShoalError."""
    from shoal.engine.config.overrides import override_of

    options, rest = dict[str, Any](), [*words]
    while rest:
        name, equals, text = rest.pop(0).partition("=")
        if not name.startswith("--"):
            raise ShoalError(name, "expected an option of the reader, as --name value")
        if not equals and not rest:
            raise ShoalError(name, "needs a value, as --name value; of a truth value true or false")
        key = name.removeprefix("--").replace("-", "_")
        options[key] = override_of(f"{key}={text if equals else rest.pop(0)}")[2]
    return options


def _load(name: str) -> "tuple[type[Reader], UserCode | None]":
    """Returns the class of a reader, and the text of a user's own. Raises ShoalError: there is none."""
    from shoal.storage.user_code.user_code import read_user_code

    if name in READERS:
        return cast("type[Reader]", load(READERS[name])), None
    if not is_own(name):
        names = f"{', '.join(READERS)}, or my_file.py:MyReader"
        raise ShoalError(KEY, f"{did_you_mean(name, READERS)}{name!r} is unknown; there are {names}")
    code = read_user_code(KEY, name)
    cls = code.load()
    if not isinstance(cls, type) or not is_dataclass(cls) or not callable(getattr(cls, "read", None)):
        raise code.fault(KEY, f"{name.rpartition(':')[2]} is no reader; write a dataclass with def read(self, past)")
    return cast("type[Reader]", cls), code


def _write(csv: str | Mapping[str, str], out: Path) -> None:
    from shoal.storage.files.atomic import output, replacing

    if isinstance(csv, str):
        with replacing(output(out)) as unfinished:
            unfinished.write_text(csv)
        return
    if out.suffix.lower() == ".csv" or out.is_file():
        raise ShoalError(out, f"expected a folder, for {', '.join(f'{name}.csv' for name in csv)}")
    out.mkdir(parents=True, exist_ok=True)
    for name, text in csv.items():
        (out / f"{name}.csv").write_text(text)
