"""Sweeps, tables, pages, scaling and comparisons of runs, from a program."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import Any, Literal, cast, get_args

import pyarrow as pa
import yaml

from shoal.configs import Source, load_config, plain
from shoal.engine.config.config import Config, sections
from shoal.engine.config.overrides import word_key
from shoal.engine.config.run_identity import fingerprint_of
from shoal.engine.config.sections import current_name
from shoal.kept_run import Run
from shoal.storage.errors import ShoalError
from shoal.storage.files.atomic import replacing
from shoal.storage.options.types import is_address, one_of
from shoal.study.means import Mean
from shoal.study.study import Scope, Study, axis_text
from shoal.study.sweep_folder import read_rows, root_of, rows_of, table_of_runs
from shoal.tables.study_table import Ties, table_of
from shoal.tables.table_output import layout_of
from shoal.tables.text_table import TextTable

NOTHING: Mapping[str, str] = {}
# The key of a section that stands before its options, where the class of these has no other.
NAME = "name"


@dataclass(frozen=True, repr=False)
class Sweep:
    """The runs of a grid.

    Attributes:
        path: Folder of the sweep: its tables, and links to its runs.
        table: A row a run, in the order of the axes: the keys that vary (int64, float64, bool, or text where a value is
            none of these), `state` (`finished`, `failed` or `not chosen`), `error`, `run` (its folder), and every
            number of its summary (float64), as `deployed.best.test`, a share. `mean` is the mean over clients of all
            such scores: `nodes`, or `rows` where numbers of clients differ.
        complete: Whether all runs are finished.
    """

    path: Path
    table: pa.Table
    complete: bool

    def __repr__(self) -> str:
        states = self.table["state"].to_pylist()
        return f"Sweep({str(self.path)!r}, {states.count('finished')} of {len(states)} runs are finished)"

    def _repr_html_(self) -> str:
        return table(self)._repr_html_()

    @property
    def runs(self) -> list[Run]:
        """The runs that are finished, in the order of the table."""
        rows = self.table.select(["state", "run"]).to_pylist()
        return [Run(row["run"]) for row in rows if row["state"] == "finished"]

    @property
    def search(self) -> TextTable:
        """Reads a search: trials, rounds, and the options that validation chose, by combination of the axes."""
        from shoal.sweeps.searching import read_chosen

        if (table := read_chosen(self.path)) is None:
            raise ShoalError(self.path, "the sweep is no search; call shoal.sweep with search='optuna'")
        return table

    @property
    def scaling(self) -> TextTable:
        """Seconds of a round, speed-up, efficiency, parts, memory and bytes, by numbers of clients and hosts."""
        from shoal.scaling.scaling import scaling_table

        return scaling_table(read_rows(self.path))


# A run or a sweep, or its folder or address.
OneOfRuns = str | PathLike[str] | Run | Sweep
Runs = OneOfRuns | Sequence[OneOfRuns]


def sweep(
    config: Source,
    axes: Mapping[str, Sequence[Any] | Any] = NOTHING,
    *,
    at_once: int = 1,
    choose: str | None = None,
    choose_seeds: int = 2,
    choose_by: str = "main",
    fork_at: int | None = None,
    search: Literal["optuna"] | None = None,
    space: Mapping[str, Sequence[Any] | str] | str | PathLike[str] = NOTHING,
    trials: int = 64,
    rounds_budget: int | None = None,
    sampler: str = "tpe",
    prune: str = "none",
    **overrides: Any,
) -> Sweep:
    """Runs a grid, or a search, on warm hosts; finished runs are skipped, unfinished resumed, a failed one is a row.

    Args:
        config: The config that all runs share, as `load_config` takes it, and so its `overrides`.
        axes: Values by dotted key, all combinations of which are run: `{"train.lr": [0.1, 0.01], "seeds": 3}`. A text
            is an axis as `shoal sweep` takes it: `{"algorithm": "fedgta{eps:0.5,0.9},fedavg"}`. A name with options
            is a dict: `{"algorithm": ["fedavg", {"name": "fedgta", "eps": 0.5}]}`.
        at_once: Runs at a time, each in a separate process and on separate hosts; one: in this process.
        choose: A key of the axes whose value validation chooses: all values run with the first `choose_seeds` seeds,
            and that with the highest mean validation of the scope `choose_by` (`trained`, `deployed`, `global`,
            `domains`, or `main`: `deployed`, but `global` for methods with one model where some clients miss rounds)
            with the others. With several methods each has a value of its own.
        fork_at: Rounds that combinations share: trained once a seed, by the config; each combination is a fork of them.
        search: `optuna` draws options from `space` for each combination of the axes; `choose_seeds` seeds of a search
            of its own judge them, and the runs of the sweep are those of the best with the seeds of the axes.
        space: By key a range, as `"0:1"`, `"1:8"` or `"0.001:0.1:log"`, or a list of values; or a YAML file of that.
        trials: Draws, at most, and `rounds_budget` rounds over all trials and seeds, for each combination.
        sampler: `tpe`, `cma`, `random` or `grid`.
        prune: `halving`, `hyperband` or `median` stop trials early; `none`.

    Raises:
        ShoalError: Names, options or values of any run are wrong, two runs are the same, or every trial failed.
        KeyboardInterrupt: The user stopped it; the same sweep continues.
    """
    from shoal.past.forked_sweep import sweep_of
    from shoal.sweeps.searching import SearchOptions

    scope = cast(Scope, one_of("choose_by", current_name(choose_by), *get_args(Scope)))
    file, drawn = str(_file_of(config, overrides)), _texts(space) if isinstance(space, Mapping) else (str(space),)
    study = Study(file, _texts(axes), choose, choose_seeds, scope, fork_at=fork_at, source="axes")
    return _gone(sweep_of(study, at_once, search, SearchOptions(drawn, trials, rounds_budget, sampler, prune)))


def scale(
    config: Source,
    *,
    clients: Sequence[int] = (),
    hosts: Sequence[int] = (),
    weak: bool = False,
    graph: Sequence[float] = (),
    repeat: int = 1,
    warmup: int = 1,
    link: str = "10Gbit",
    **overrides: Any,
) -> Sweep:
    """Runs a config with several numbers of clients and hosts, as `shoal scale`, and gives the sweep.

    Args:
        config: The config, as `load_config` takes it, and so its `overrides`.
        clients: Numbers of clients; empty: that of the config.
        hosts: Numbers of hosts, with `engine.backend: ray`; empty: that of the config.
        weak: The graph grows with the clients (`sbm` and synthetic twins).
        graph: Nodes of `sbm`, or scales of a synthetic twin; empty: that of the config.
        repeat: How often each combination runs.
        warmup: First rounds that tables leave out.
        link: Speed of the server's link, for the number of hosts that are of use.

    Returns:
        The sweep; its `scaling` is the table of seconds, speed-up, memory and bytes.

    Raises:
        ShoalError: As `sweep`, or nothing grows, or the dataset cannot grow.
    """
    from shoal.scaling.scaling import scaling_sweep

    of_clients, of_hosts, of_graph = (",".join(map(str, several)) for several in (clients, hosts, graph))
    study = str(_file_of(config, overrides))
    return _gone(scaling_sweep(study, (), of_clients, of_hosts, weak, of_graph, repeat, warmup, link))


def table(
    runs: Runs,
    *,
    figures: Sequence[str] = (),
    rows: Sequence[str] = (),
    columns: str | None = None,
    statistic: Literal["mean", "median"] = "mean",
    against: str | Mapping[str, Any] = "",
    mean: Mean | None = None,
    ties: Ties = "shown",
    not_worse: float | None = None,
    wide: bool = False,
    labels: Mapping[str, str] = NOTHING,
) -> TextTable:
    """A table of any runs, as `shoal table`: those that differ in seeds alone share a cell, the best two are marked.

    Args:
        runs: A run, a sweep, or several, each as `Run`, `Sweep` or its folder.
        figures: Numbers of summaries; empty: `deployed.best.test`, methods by row, settings by column.
        rows: Keys that name a row; empty: all that vary.
        columns: A key whose values are the columns.
        statistic: Mean ± sample standard deviation, or median with both quartiles, over seeds.
        against: Values that name the runs to compare with by a paired t-test over seeds: `{"algorithm": "fedavg"}`.
        mean: The mean over clients of scores: `nodes`, `rows` or `clients`; None: as the table says.
        ties: What shares a mark: numbers equal as `shown`, or `exact`ly.
        not_worse: Level, between 0 and 1: what the paired test does not find worse is marked with the best.
        wide: Scores and costs of all scopes.
        labels: What values, keys and figures are called, as in `{"mine.py:X": "Ours"}`.

    Returns:
        The table; its `text`, `markdown`, `latex`, `html` and `csv` give it in these forms.

    Raises:
        ShoalError: A folder is none of a run or a sweep, or names, keys or values are wrong.
    """
    one_of("statistic", statistic, "mean", "median")
    one_of("ties", ties, *get_args(Ties))
    if mean is not None:
        one_of("mean", mean, *get_args(Mean))
    pairs = against if isinstance(against, str) else ",".join(f"{key}={value}" for key, value in against.items())
    layout = layout_of(
        figures=figures,
        rows=",".join(rows) or None,
        columns=columns,
        statistic=statistic,
        against=pairs,
        mean=mean,
        ties=ties,
        not_worse=not_worse,
        wide=wide,
        labels=[f"{name}={shown}" for name, shown in labels.items()],
    )
    return table_of(rows_of(_paths(runs)), layout)


def report(runs: Runs, out: str | PathLike[str] | None = None, pdf: bool = False) -> Path:
    """Writes the page of runs and sweeps, as `shoal report`, and its figures beside it; gives the page.

    Args:
        runs: A run, a sweep, or several, each as `Run`, `Sweep` or its folder.
        out: Folder to write; None: `report` in the folder of the first.
        pdf: Write the figures as PDF, too, not as SVG and PNG alone.

    Raises:
        ShoalError: No run is finished, or a folder is none of a run or a sweep.
    """
    from shoal.engine.records.outputs import KINDS, USUAL_KINDS
    from shoal.pages import report as report_command

    return report_command.report(_paths(runs), None if out is None else Path(out), kinds=KINDS if pdf else USUAL_KINDS)


def compare(left: str | PathLike[str] | Run, right: str | PathLike[str] | Run) -> list[TextTable]:
    """Compares two runs, each a `Run` or its folder, and lists what differs.

    Returns:
        Tables of keys of the config, inputs, environment and results; of unfinished runs the first one, and which run
        is not finished.

    Raises:
        ShoalError: A folder is none of a run.
    """
    from shoal.kept import listing

    first, second = (run if isinstance(run, Run) else Run(run) for run in (left, right))
    return listing.compare(first.path, second.path)


def _gone(command: Any) -> Sweep:
    """A sweep that has come to its end."""
    complete = command.go()
    return Sweep(command.folder, table_of_runs(command.rows), complete)


def _texts(axes: Mapping[str, Any]) -> tuple[str, ...]:
    """Axes, or keys of a space, as a command line has them."""
    words = {key: word_key(section) or NAME for key, section in sections().items()}
    return tuple(f"{key}={axis_text(_several(values, words.get(key, NAME)))}" for key, values in axes.items())


def _several(values: Any, word: str) -> Any:
    """Values of an axis: a text or a number as it is, others as a list, in which a name with options is a text."""
    if isinstance(values, str | int | float):
        return values
    return [_with_options(value, word) if isinstance(value, dict) else value for value in plain(list(values))]


def _with_options(value: dict[str, Any], word: str) -> str:
    """`fedgta{eps:0.5}` of `{"name": "fedgta", "eps": 0.5}`, where `name` is the word of the section."""
    options = ",".join(f"{key}:{axis_text(option)}" for key, option in value.items() if key != word)
    return f"{value.get(word, '')}{{{options}}}"


def _paths(runs: Runs) -> list[Path]:
    """Lists folders of one or several runs and sweeps; of a run at an address, that of its copy."""
    several = [runs] if isinstance(runs, str | PathLike | Run | Sweep) else runs
    opened = [Run(source) if isinstance(source, str) and is_address(source) else source for source in several]
    return [source.path if isinstance(source, Run | Sweep) else Path(source) for source in opened]


def _file_of(config: Source, overrides: Mapping[str, Any]) -> Path:
    """A file with the config, written to the folder of sweeps if there is none."""
    if not overrides and not isinstance(config, Mapping | Config):
        return Path(config)
    resolved = load_config(config, **overrides)
    keys = resolved.plain()
    path = root_of(resolved) / "sweeps" / f"{resolved.name}-{fingerprint_of(keys)}.yaml"
    with replacing(path) as unfinished:
        unfinished.write_text(yaml.safe_dump(keys, sort_keys=False))
    return path
