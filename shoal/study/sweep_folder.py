"""The folder of a sweep with its tables for other programs, and the rows of any runs and sweeps."""

import json
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet
import yaml

from shoal.engine.config.config import Config, usual
from shoal.engine.config.config_text import LOADER, require_as_kept, with_new_keys
from shoal.engine.config.effects import without_effect
from shoal.engine.config.run_identity import fingerprint_of, flatten
from shoal.engine.records.metrics import METRICS
from shoal.engine.records.run_folder import CONFIG, failure_of, finished, read_summary, runs_here
from shoal.engine.records.summary import ONE_MODEL
from shoal.engine.screen.progress import say
from shoal.storage.errors import BusyError, ShoalError
from shoal.storage.files.atomic import cannot_write, replacing
from shoal.storage.files.checksummed_json import sealed, unsealed
from shoal.storage.files.disk import LOCK, locked
from shoal.storage.files.names import place_in
from shoal.storage.files.reading import read_bytes
from shoal.storage.options.types import path_fault
from shoal.study.groups import Row
from shoal.study.means import by_one_mean, figures_of
from shoal.study.study import Study, is_seed

SWEEP, RUNS, SWEEPS = "sweep.json", "runs", "sweeps"
LONGEST_TITLE = 160
# Values of keys that match these patterns are numbers or truth values.
OF_KEYS = {
    r"-?(0|[1-9]\d*)": pa.int64(),
    r"[-+]?(\d+\.?\d*|\.\d+)([eE][-+]?\d+)?": pa.float64(),
    "true|false": pa.bool_(),
}
TABLES = ("table.csv", "table.parquet", "table.json")
SEARCH, FORECAST = "search.json", "forecast.json"
# These paths below a sweep are written here, by a search or by a forecast; `LINKS` are those of links.
WRITTEN = (rf"({SWEEP}|{SEARCH}|{FORECAST}|{'|'.join(TABLES)})".replace(".", r"\."),)
LINKS = (rf"{RUNS}/[^/]+",)


def root_of(config: Config) -> Path:
    """Returns the local folder of a config's runs, which also has its sweeps; for an address, one in the cache."""
    return runs_here(config)


@contextmanager
def lock_study(folder: Path) -> Iterator[None]:
    """Holds the lock of the folder of a study. Raises BusyError: another process is at work on it."""
    busy = BusyError(folder, "another process is at work on this study; wait for it, the same command then goes on")
    new = [place for place in (folder, *folder.parents) if not place.exists()]
    with locked(folder, "run.root", busy):
        try:
            yield
        finally:
            # A study that was refused must leave no folder.
            with suppress(OSError):
                if new and [path.name for path in folder.iterdir()] == [LOCK]:
                    (folder / LOCK).unlink()
                    for place in new:
                        place.rmdir()


def write_sweep(folder: Path, study: Study, rows: Sequence[Row]) -> None:
    """Writes the state of a sweep, and the tables of its runs: one row each, in the order of the study.

    `runs` gets a link to the folder of every run, named by its values, which TensorBoard shows, too. Columns of the
    tables are the keys that vary, `state`, `error`, `run`, `mean`, by which accuracies with short names are averaged
    over clients (see `by_one_mean`), and all figures, which are empty where a run is not finished.
    """
    plain = {
        "config": str(Path(study.config).expanduser().resolve()),
        "axes": list(study.axes),
        "choose": study.choose,
        "choose_seeds": study.choose_seeds,
        "choose_by": study.choose_by,
        "search": list(study.search),
        "fork_at": study.fork_at,
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
    _link(place_in(folder, RUNS), rows)


def table_of_runs(rows: Sequence[Row]) -> pa.Table:
    """Makes the table of a sweep, with the columns of `write_sweep`; keys are int64, float64, bool, or else text."""
    rows, mean = by_one_mean(rows)
    keys = dict.fromkeys(key for row in rows for key in row.columns)
    of_rows = {"state": [r.state for r in rows], "error": [r.error for r in rows], "run": [r.run for r in rows]}
    columns = {key: _parse_values([row.columns.get(key) for row in rows]) for key in keys}
    columns |= {name: pa.array(texts, pa.string()) for name, texts in {**of_rows, "mean": [mean] * len(rows)}.items()}
    # A figure with the name of a key that varies, such as `rounds`, would be a second column of that name.
    for name in dict.fromkeys(key for row in rows for key in row.figures if key not in columns):
        columns[name] = pa.array([row.figures.get(name) for row in rows], pa.float64())
    return pa.table(columns)


def _parse_values(texts: Sequence[str | None]) -> pa.Array:
    """Parses values of a key as numbers or truth values if all are; a run without the key has null."""
    given = [text for text in texts if text is not None]
    for form, kind in OF_KEYS.items():
        if all(re.fullmatch(form, text) for text in given):
            # A whole number that int64 cannot hold becomes a float64.
            with suppress(pa.ArrowInvalid):
                return pa.array(texts, pa.string()).cast(kind)
    return pa.array(texts, pa.string())


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
    """Returns the values of a run of a sweep as the name of a file: `train.lr=0.1,seed=0`."""
    title = ",".join(f"{key}={value}" for key, value in columns.items())
    plain = re.sub(r"[^\w.,=+@ \[\]{}:-]", "_", title)
    if plain == title and len(plain.encode()) <= LONGEST_TITLE:
        return plain
    return f"{plain.encode()[:LONGEST_TITLE].decode(errors='ignore')}-{fingerprint_of(dict(columns))}"


def is_sweep(folder: Path) -> bool:
    """Returns whether a folder is that of a sweep."""
    return (folder / SWEEP).exists()


def read_rows(folder: Path) -> list[Row]:
    """Reads the runs of a sweep as they are now: one that was finished since counts as finished."""
    runs = sweep_of(folder)["runs"]
    return [row_of(run["columns"], Path(run["run"]), run["state"], run["error"]) for run in runs]


def title_of(folder: Path) -> str:
    """Returns the axes of a sweep in a line."""
    return f"{Path(sweep_of(folder)['config']).stem}: {'  '.join(sweep_of(folder)['axes'])}"


def sweep_of(folder: Path) -> dict[str, Any]:
    """Reads the study of a sweep and its `runs`, in the form of `write_sweep`."""
    path = folder / SWEEP
    try:
        study = unsealed(read_bytes(path))
        _require_texts([study["config"], *study["axes"]])
        for run in study["runs"]:
            _require_texts([run["run"], run["state"], run["error"], *run["columns"], *run["columns"].values()])
            if fault := path_fault(run["run"]):
                raise ValueError(f"a run: {fault}")
        return study
    except OSError as error:
        raise ShoalError(path, f"cannot be read: {error.strerror}") from error
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ShoalError(path, f"damaged ({error}); the same shoal sweep writes it again") from None


def _require_texts(values: Sequence[object]) -> None:
    """Raises ValueError: one is no text."""
    for value in values:
        if not isinstance(value, str):
            raise ValueError(f"{value!r} where a text is")


def row_of(columns: dict[str, str], path: Path, state: str = "waiting", error: str = "") -> Row:
    """Makes the row of a run as it is now: a finished one with its figures, another one in the state that is given."""
    if finished(path):
        state = state if state == "not chosen" else "finished"
        summary = read_summary(path)
        return Row(columns, figures_of(summary), str(path), state, one_model=summary.get(ONE_MODEL, ""))
    return Row(columns, {}, str(path), "waiting" if state == "finished" else state, error)


# These keys say where data and records lie, and change no numbers.
OF_PLACES = ("run.", "ray.", "data.root", "data.store", "data.cache", "data.options.scratch")


def rows_of(paths: Sequence[Path]) -> list[Row]:
    """Reads rows: a single sweep has its own columns; other runs have the keys in which their configs differ.

    A run without a round is left out, with a line.
    """
    if len(paths) == 1 and is_sweep(paths[0]):
        return read_rows(paths[0])
    rows_found = []
    for path in paths:
        if is_sweep(path):
            rows_found += read_rows(path)
        elif (path / METRICS).exists():
            rows_found.append(row_of({}, path))
        elif (path / CONFIG).exists():
            say(f"{path}: {'failed' if failure_of(path) else 'stopped'} before its first round; left out")
        elif len(paths) == 1 or path.name != SWEEPS:
            inside = (
                f"{path}/*, the runs in it"
                if any(path.glob(f"*/{CONFIG}"))
                else "folders that shoal run or shoal sweep wrote"
            )
            raise ShoalError(path, f"neither a run nor a sweep; give {inside}")
    # A run that is in two sweeps counts once.
    rows = list({row.path.resolve(): row for row in rows_found}.values())
    begun = [row for row in rows if (row.path / CONFIG).exists()]
    every = differing([keys_of(row.path) for row in begun])
    # Runs with equal keys are no repetitions but read other files; their folders tell them apart.
    columns_of = {
        row.run: columns | ({"run": row.run} if every.count(columns) > 1 else {}) for row, columns in zip(begun, every)
    }
    return [replace(row, columns=columns_of.get(row.run, row.columns)) for row in rows]


def differing(configs: Sequence[Mapping[str, str]]) -> list[dict[str, str]]:
    """Returns, for each config, its keys with an effect in which any two differ; the name only if no other key does."""
    with_idle = [(config, without_effect(config)) for config in configs]
    names = list(dict.fromkeys(name for config in configs for name in config))
    differ = [name for name in names if len({config.get(name) for config, idle in with_idle if name not in idle}) > 1]
    if any(name != "name" and not is_seed(name) for name in differ):
        # The name repeats the other keys in words.
        differ = [name for name in differ if name != "name"]
    return [{name: config[name] for name in differ if name in config.keys() - idle} for config, idle in with_idle]


def keys_of(run: Path) -> dict[str, str]:
    """Reads the keys of a run's config as texts, without places; code that it keeps is named in its folder.

    Raises ShoalError: the config is not as the run wrote it. Values are not checked again, which takes a while.
    """
    require_as_kept(run / CONFIG)
    plain = with_new_keys(yaml.load(read_bytes(run / CONFIG), LOADER))
    # Keys that did not exist when the run was made have their defaults.
    several = isinstance(plain.get("model"), list)
    keys = {key: value for key, value in flatten(usual().plain()).items() if not (several and key.startswith("model."))}
    keys |= flatten(plain)
    return {key: str(value) for key, value in keys.items() if not key.startswith(OF_PLACES)}
