"""Rows of any runs and sweeps on disk."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from shoal.engine.config.config import load_config
from shoal.engine.config.run_identity import flatten
from shoal.engine.records.metrics import METRICS
from shoal.engine.records.run_folder import finished, read_summary
from shoal.engine.studies.groups import Row
from shoal.engine.studies.study import is_seed
from shoal.engine.studies.sweep_folder import figures_of, is_sweep, read_rows
from shoal.storage.errors import ShoalError

# Keys that say where files lie and what is written beside the numbers.
OF_PLACES = ("run.", "ray.", "data.root", "data.store", "data.options.scratch")


def rows_of(paths: Sequence[Path]) -> list[Row]:
    """The runs of sweeps as these have them, single runs by the keys in which their configs differ.

    Raises:
        ShoalError: A path is neither a run nor a sweep, or what lies there cannot be read.
    """
    rows = [row for path in paths if is_sweep(path) for row in read_rows(path)]
    runs = [path for path in paths if not is_sweep(path)]
    for path in runs:
        if not (path / METRICS).exists():
            raise ShoalError(f"{path}: neither a run nor a sweep; give folders that shoal run or shoal sweep wrote")
    configs = [_keys(path) for path in runs]
    names = list(dict.fromkeys(name for config in configs for name in config))
    differ = [name for name in names if len({config.get(name) for config in configs}) > 1]
    if any(name != "name" and not is_seed(name) for name in differ):
        # It says again in words what the others say.
        differ = [name for name in differ if name != "name"]
    for path, config in zip(runs, configs):
        columns = {name: config[name] for name in differ if name in config}
        done = finished(path)
        figures = figures_of(read_summary(path)) if done else {}
        rows.append(Row(columns, figures, str(path), "finished" if done else "waiting"))
    # One that is in two sweeps is one.
    return list({row.run: row for row in rows}.values())


def _keys(run: Path) -> dict[str, str]:
    flat: dict[str, Any] = flatten(load_config(run).plain())
    return {key: str(value) for key, value in flat.items() if not key.startswith(OF_PLACES)}
