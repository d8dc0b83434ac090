"""Prepare, run and sweep, from a program."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import yaml

from shoal.configs import Source, load_config, plain
from shoal.engine.config.config import Config
from shoal.engine.config.run_identity import fingerprint_of
from shoal.engine.runs import run as run_command
from shoal.engine.runs.plan import RunPlan
from shoal.kept_run import Run
from shoal.storage.files.atomic import replacing


@dataclass(frozen=True)
class Sweep:
    """The runs of a grid.

    Attributes:
        path: Folder of the sweep: its tables, and links to its runs; `shoal report` makes a page of it.
        table: A row a run, in the order of the axes: the keys that vary (text), `state` (`finished` or `failed`),
            `error`, `run` (its folder), and every number of its summary (float64), as `deployed.best.test`, a share.
            `mean` is the mean over clients of all such scores: `nodes`, or `rows` where numbers of clients differ.
        complete: Whether all runs are finished.
    """

    path: Path
    table: pa.Table
    complete: bool

    @property
    def runs(self) -> list[Run]:
        """The runs that are finished, in the order of the table."""
        rows = self.table.select(["state", "run"]).to_pylist()
        return [Run(row["run"]) for row in rows if row["state"] == "finished"]


def prepare(config: Source) -> Path:
    """Makes the store of a config: partition, shards, splits, hops. Interrupted, it resumes; a second one does nothing.

    Returns:
        Folder of the store; of one at an address, a folder with its manifests.

    Raises:
        ShoalError: Bad input, or the store cannot be written.
    """
    return RunPlan.of(load_config(config), trains=False).prepare().path


def run(config: Source, *, resume: bool = False, fresh: bool = False) -> Run:
    """Runs a config to its end; prepares its store first if needed. A run that is finished is not run again.

    Args:
        config: The run; with `engine.backend` `local` all of it happens in this process, without Ray.
        resume: Go on with an unfinished run from its newest checkpoint, or with one that had fewer `rounds`.
        fresh: Start over, whatever the run folder holds.

    Raises:
        ShoalError: Bad input, or a failure that a resume can go on from.
        KeyboardInterrupt: The user stopped it; a checkpoint is written.
    """
    return Run(run_command.run(load_config(config), resume=resume, fresh=fresh))


def sweep(config: Source, axes: Mapping[str, Sequence[Any]], *, at_once: int = 1) -> Sweep:
    """Runs a grid on warm hosts; finished runs are skipped, unfinished ones resumed, a failed one is a row.

    Args:
        config: The config that all runs share.
        axes: Values by dotted key, all combinations of which are run: `{"train.lr": [0.1, 0.01], "seed": [0, 1, 2]}`.
        at_once: Runs at a time, each in a separate process and on separate hosts; one: in this process.

    Raises:
        ShoalError: Names, options or values of any run are wrong, or two runs are the same.
        KeyboardInterrupt: The user stopped it; the same sweep continues.
    """
    from shoal.engine.studies import sweep as sweep_command
    from shoal.engine.studies.study import Study, axis_text
    from shoal.engine.studies.sweep_folder import table_of_runs

    texts = tuple(f"{key}={axis_text(plain(list(values)))}" for key, values in axes.items())
    going = sweep_command.Sweep(Study(str(_file_of(config)), texts), at_once)
    complete = going.go()
    return Sweep(going.folder, table_of_runs(going.rows), complete)


def _file_of(config: Source) -> Path:
    """A file with the config, written to the folder of sweeps if there is none."""
    if not isinstance(config, Mapping | Config):
        return Path(config)
    from shoal.engine.studies.sweep_folder import root_of

    resolved = load_config(config)
    keys = resolved.plain()
    path = root_of(resolved) / "sweeps" / f"{resolved.name}-{fingerprint_of(keys)}.yaml"
    with replacing(path) as unfinished:
        unfinished.write_text(yaml.safe_dump(keys, sort_keys=False))
    return path
