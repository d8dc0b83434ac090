"""The folder of a sweep with its tables for other programs, and the rows of any runs and sweeps."""

import json
import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet

from shoal.engine.config.config import load_config
from shoal.engine.config.run_identity import fingerprint_of, flatten
from shoal.engine.records.metrics import METRICS, numbers_of
from shoal.engine.records.run_folder import finished, read_summary
from shoal.engine.records.summary import chosen
from shoal.engine.studies.groups import Row
from shoal.engine.studies.study import Study, is_seed
from shoal.storage.errors import ShoalError
from shoal.storage.files.atomic import cannot_write, replacing
from shoal.storage.files.checksummed_json import sealed, unsealed
from shoal.storage.files.reading import read_bytes

SCOPES = ("trained", "served", "global", "domains")
MOMENTS = ("best", "last")
PARTS = ("val", "test")


def figures_of(summary: Mapping[str, Any]) -> dict[str, float]:
    """Every number of a summary under its dotted name.

    What stands for a part of a scope has a short name, too: `served.best.test` is the metric of the run at the best
    validation round, and `served.best.round` that round.
    """
    found = {name: float(value) for name, value in numbers_of(summary).items()}
    for scope, numbers in summary["scopes"].items():
        for moment in MOMENTS:
            for part in PARTS:
                table = (numbers[moment] or {}).get(part)
                value = None if table is None else chosen(table, scope)
                if value is not None:
                    found[f"{scope}.{moment}.{part}"] = value
    return found


def is_share(figure: str) -> bool:
    """Whether a figure is a share, shown in %: all numbers of scopes are, but the rounds and classes among them."""
    scope, _, rest = figure.partition(".")
    return scope in SCOPES and not rest.endswith(("round", "constant_class"))


SWEEP, RUNS = "sweep.json", "runs"
LONGEST_TITLE = 160
TABLES = ("table.csv", "table.parquet", "table.json")


def write_sweep(folder: Path, study: Study, rows: Sequence[Row]) -> None:
    """Writes the state of a sweep, and the tables of its runs: one row each, in the order of the study.

    `runs` gets a link to the folder of every run, named by its values, which TensorBoard shows, too. Columns of the
    tables are the keys that vary, `state`, `error`, `run`, and all figures, which are empty where a run is not
    finished.
    """
    plain = {
        "config": str(Path(study.config).expanduser().resolve()),
        "axes": list(study.axes),
        "choose": study.choose,
        "choose_seeds": study.choose_seeds,
        "choose_by": study.choose_by,
        "runs": [{"columns": r.columns, "run": r.run, "state": r.state, "error": r.error} for r in rows],
    }
    with replacing(folder / SWEEP) as unfinished:
        unfinished.write_text(sealed(plain, indent=1))
    table = table_of_runs(rows)
    csv, parquet, plain_json = (folder / name for name in TABLES)
    with replacing(csv) as unfinished:
        pa.csv.write_csv(table, unfinished)
    with replacing(parquet) as unfinished:
        pa.parquet.write_table(table, unfinished)
    with replacing(plain_json) as unfinished:
        unfinished.write_text(json.dumps(table.to_pylist(), indent=1, allow_nan=False) + "\n")
    _link(folder / RUNS, rows)


def table_of_runs(rows: Sequence[Row]) -> pa.Table:
    """The runs of a sweep, with the columns that `write_sweep` names."""
    text = [*dict.fromkeys(key for row in rows for key in row.columns), "state", "error", "run"]
    # A key that varies, `rounds` for one, is no figure again.
    numbers = dict.fromkeys(key for row in rows for key in row.figures if key not in text)
    schema = pa.schema([*((name, pa.string()) for name in text), *((name, pa.float64()) for name in numbers)])
    own = ({**row.figures, **row.columns, "state": row.state, "error": row.error, "run": row.run} for row in rows)
    return pa.Table.from_pylist(list(own), schema)


def _link(folder: Path, rows: Sequence[Row]) -> None:
    try:
        folder.mkdir(exist_ok=True)
        for row in rows:
            link = folder / run_title(row.columns)
            if not link.is_symlink():
                link.symlink_to(os.path.relpath(row.path.resolve(), folder.resolve()))
    except OSError as error:
        raise cannot_write(folder, error) from error


def run_title(columns: Mapping[str, str]) -> str:
    """The values of a run of a sweep as the name of a file: `train.lr=0.1,seed=0`."""
    title = ",".join(f"{key}={value}" for key, value in columns.items())
    plain = re.sub(r"[^\w.,=+@ \[\]{}:-]", "_", title)
    if plain == title and len(plain.encode()) <= LONGEST_TITLE:
        return plain
    return f"{plain.encode()[:LONGEST_TITLE].decode(errors='ignore')}-{fingerprint_of(dict(columns))}"


def is_sweep(folder: Path) -> bool:
    """Whether a folder is one of a sweep."""
    return (folder / SWEEP).exists()


def read_rows(folder: Path) -> list[Row]:
    """The runs of a sweep as they are now: one that was finished since counts as finished."""
    runs = _read(folder)["runs"]
    return [row_of(run["columns"], Path(run["run"]), run["state"], run["error"]) for run in runs]


def title_of(folder: Path) -> str:
    """The axes of a sweep in a line."""
    return f"{Path(_read(folder)['config']).stem}: {'  '.join(_read(folder)['axes'])}"


def _read(folder: Path) -> dict[str, Any]:
    path = folder / SWEEP
    try:
        return unsealed(read_bytes(path))
    except OSError as error:
        raise ShoalError(path, f"cannot be read: {error.strerror}") from error
    except ValueError as error:
        raise ShoalError(path, f"damaged ({error}); the same shoal sweep writes it again") from None


def row_of(columns: dict[str, str], path: Path, state: str = "waiting", error: str = "") -> Row:
    """A run as it is now: a finished one with its figures, another one in the state that is known of it."""
    if finished(path):
        state = state if state == "not chosen" else "finished"
        return Row(columns, figures_of(read_summary(path)), str(path), state)
    return Row(columns, {}, str(path), "waiting" if state == "finished" else state, error)


# Keys of places and of records, which change no numbers.
OF_PLACES = ("run.", "ray.", "data.root", "data.store", "data.options.scratch")


def rows_of(paths: Sequence[Path]) -> list[Row]:
    """The runs of sweeps as these have them, single runs by the keys in which their configs differ."""
    rows = [row for path in paths if is_sweep(path) for row in read_rows(path)]
    runs = [path for path in paths if not is_sweep(path)]
    for path in runs:
        if not (path / METRICS).exists():
            raise ShoalError(path, "neither a run nor a sweep; give folders that shoal run or shoal sweep wrote")
    flat = [flatten(load_config(path).plain()) for path in runs]
    configs = [{key: str(value) for key, value in keys.items() if not key.startswith(OF_PLACES)} for keys in flat]
    names = list(dict.fromkeys(name for config in configs for name in config))
    differ = [name for name in names if len({config.get(name) for config in configs}) > 1]
    if any(name != "name" and not is_seed(name) for name in differ):
        # The name repeats the other keys in words.
        differ = [name for name in differ if name != "name"]
    for path, config in zip(runs, configs):
        rows.append(row_of({name: config[name] for name in differ if name in config}, path))
    # One that is in two sweeps is one.
    return list({row.run: row for row in rows}.values())
