"""Entries of a board: methods in settings, each with its budget, its score over seeds, and digests of its runs."""

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import fmean
from typing import Any

import xxhash

from shoal.algorithms.methods.registry.names import display_name
from shoal.engine.config.config import load_config
from shoal.engine.config.effects import without_effect
from shoal.engine.config.run_identity import changes_numbers, identity_keys
from shoal.engine.records import inputs
from shoal.engine.records.client_scores import read_digests_by_round
from shoal.engine.records.metrics import read_metrics
from shoal.engine.records.run_folder import finished, parent_of, read_summary
from shoal.engine.records.summary import NODES, POOLED, best_round, chosen
from shoal.engine.screen.progress import say
from shoal.storage.errors import ShoalError
from shoal.study.groups import Row, group_runs, interval_95
from shoal.study.main_score import MainScore
from shoal.study.means import several_clients
from shoal.study.study import is_seed
from shoal.study.sweep_folder import is_sweep, keys_of, read_rows, row_of

# What entries of one setting must share to be ranked, beside how many options were tried.
BUDGET = ("rounds", "train.epochs", "train.batch_size", "evaluation.every")
TRIED = "options tried"
# These sections say how a method trains; all other keys that change numbers are the setting.
OF_METHOD = ("algorithm", "train")
NAME = "algorithm.name"
STORES = (inputs.STORE, inputs.GRAPHS, inputs.TRAINING)
# Tables show these keys of every setting.
SHOWN = ("data.dataset", "partition.method", "partition.clients", "model.name", "participation.ratio")


@dataclass(frozen=True)
class BoardRun:
    """A run of an entry: its folder, seeds, and digests of its config, its stores, and all its uploads.

    `score` is that of the entry, a share or in the unit of the metric, of `round`.
    """

    run: str
    seeds: dict[str, str]
    config: str
    store: str
    uploads: str
    score: float
    round: int


@dataclass(frozen=True)
class Entry:
    """A method in a setting, over seeds.

    Attributes:
        options: Keys of the method and its training, with their values.
        setting: All other keys that change numbers, but seeds.
        budget: Values of `BUDGET`, and how many combinations of options were tried.
        figure, mean: The score by its name, and the mean over clients.
        unlike: How its budget differs from that of most entries of the setting; it is then not ranked.
        score, interval: Mean over runs, and half its 95 % interval by Student's t; None of one run.
    """

    method: str
    options: dict[str, str]
    setting: dict[str, str]
    budget: dict[str, str]
    figure: str
    mean: str
    score: float
    interval: float | None
    runs: tuple[BoardRun, ...]
    unlike: str = ""

    @property
    def label(self) -> str:
        """The method as its paper writes it."""
        return display_name(self.method)


@dataclass
class RunKeys:
    """The keys of a run by what they say, as texts."""

    options: dict[str, str] = field(default_factory=dict)
    setting: dict[str, str] = field(default_factory=dict)
    budget: dict[str, str] = field(default_factory=dict)
    seeds: dict[str, str] = field(default_factory=dict)

    @classmethod
    def of(cls, run: Path) -> "RunKeys":
        texts, keys = keys_of(run), cls()
        for key, value in texts.items():
            if is_seed(key):
                keys.seeds[key] = value
            elif key in BUDGET:
                keys.budget[key] = value
            elif changes_numbers(key) and key not in without_effect(texts):
                of_method = key.partition(".")[0] in OF_METHOD
                (keys.options if of_method else keys.setting)[key] = value
        return keys


def read_entries(folders: Sequence[Path]) -> list[Entry]:
    """Reads the entries of finished runs, in runs, sweeps, and folders of such; says which runs are left out, and why.

    Raises ShoalError: no run is left, or the records of one are damaged.
    """
    rows = [row for folder in folders for row in _rows_in(folder)]
    rows = list({row.path.resolve(): row for row in rows}.values())
    kept: list[tuple[Row, RunKeys]] = []
    tried: dict[str, set[str]] = {}
    for row in rows:
        if not finished(row.path):
            say(f"{row.path}: not finished; left out")
            continue
        keys = RunKeys.of(row.path)
        tried.setdefault(_text([keys.setting, keys.budget, keys.options[NAME]]), set()).add(_text(keys.options))
        if row.state == "not chosen":
            continue
        if why := _cannot(row.path):
            say(f"{row.path}: {why}; left out")
        else:
            kept.append((row, keys))
    if not kept:
        raise ShoalError(folders[0], "no finished run for a board; `shoal run CONFIG run.keep_digests=true` makes one")
    by_setting: dict[str, list[tuple[Row, RunKeys]]] = {}
    for row, keys in kept:
        by_setting.setdefault(_text(keys.setting), []).append((row, keys))
    entries = []
    for of_setting in by_setting.values():
        entries += _mark_budgets(_entries_of(of_setting, tried))
    return entries


def _rows_in(folder: Path) -> list[Row]:
    """Returns the runs of a run, a sweep, or a folder of runs and sweeps."""
    if is_sweep(folder):
        return read_rows(folder)
    if (folder / "config.yaml").exists():
        return [row_of({}, folder)]
    if not folder.is_dir():
        raise ShoalError(folder, "no such folder; give runs, sweeps, or a folder of them, as runs")
    sweeps = [row for place in sorted(folder.glob("sweeps/*")) if is_sweep(place) for row in read_rows(place)]
    alone = [row_of({}, place) for place in sorted(folder.iterdir()) if (place / "config.yaml").exists()]
    return [*sweeps, *alone]


def _cannot(run: Path) -> str:
    """Returns the reason why a finished run cannot be made again and compared; empty: it can."""
    if parent_of(run) is not None:
        return "a fork, whose first rounds have another config"
    config, lines = load_config(run), read_metrics(run)
    if len(lines) < config.rounds and not (config.plain()["callbacks"] and "stopped" in read_summary(run)):
        return f"{len(lines)} of {config.rounds} rounds, and no callback that ended it"
    if not read_digests_by_round(run):
        return "no digests of uploads; `shoal run RUN run.keep_digests=true --fresh` keeps them"
    return ""


def _entries_of(of_setting: Sequence[tuple[Row, RunKeys]], tried: Mapping[str, set[str]]) -> list[Entry]:
    """Makes the entries of one setting."""
    by_run = {row.run: keys for row, keys in of_setting}
    named = [replace(row, columns={**keys.options, **keys.budget, **keys.seeds}) for row, keys in of_setting]
    mean = POOLED if several_clients(named) else NODES
    groups, entries = group_runs(named), []
    main = MainScore(groups)
    for group in groups:
        keys, figure = by_run[group.rows[0].run], main.figure(group)
        runs = [run_record(row.path, by_run[row.run].seeds, figure, mean) for row in group.rows]
        if len({_text(run.seeds) for run in runs}) < len(runs):
            raise ShoalError(group.rows[0].path, "two runs have equal keys and seeds, and read other files; give one")
        count = len(tried[_text([keys.setting, keys.budget, keys.options[NAME]])])
        scores = [run.score for run in runs]
        entries.append(
            Entry(
                keys.options[NAME], keys.options, keys.setting, {**keys.budget, TRIED: str(count)}, figure, mean,
                *summed_up(scores), tuple(runs),
            )
        )  # fmt: skip
    return entries


def summed_up(scores: Sequence[float]) -> tuple[float, float | None]:
    """Returns the mean over runs, and half its 95 % interval; None of one run, or of equal scores."""
    return fmean(scores), interval_95(scores)


def _mark_budgets(entries: Sequence[Entry]) -> list[Entry]:
    """Says of each entry of a setting how its budget differs from that of most of them, of equals the first."""
    budgets = [_text(entry.budget) for entry in entries]
    usual = entries[budgets.index(max(dict.fromkeys(budgets), key=budgets.count))].budget
    return [
        replace(entry, unlike=", ".join(f"{k} {v}, not {usual[k]}" for k, v in entry.budget.items() if v != usual[k]))
        for entry in entries
    ]


def run_record(run: Path, seeds: Mapping[str, str], figure: str, mean: str) -> BoardRun:
    """Reads what a board has of a run. Raises ShoalError: its records are damaged, or its summary is of others."""
    summary, lines = read_summary(run), read_metrics(run)
    score, number = score_of(lines, figure, mean)
    scope, moment, part = figure.split(".")
    kept = summary["scopes"].get(scope, {}).get(moment) or {}
    # A summary has the best round by the mean over nodes alone.
    if mean == NODES and (kept.get("round"), part in kept and chosen(kept[part], scope)) != (
        number,
        score,
    ):
        raise ShoalError(run, "summary.json", f"its {figure} is not that of metrics.jsonl")
    return BoardRun(
        str(run.resolve()), dict(seeds), digest_of_config(run), digest_of_inputs(summary["inputs"]),
        digest_of_uploads(run), score, number,
    )  # fmt: skip


def score_of(lines: Sequence[dict[str, Any]], figure: str, mean: str) -> tuple[float, int]:
    """Returns a score of rounds, and its round; NaN and 0 where no round has it."""
    scope, moment, part = figure.split(".")
    scored = [line for line in lines if part in line.get("scopes", {}).get(scope, {})]
    line = best_round(scored, scope, mean) if moment == "best" else scored[-1] if scored else None
    value = None if line is None else chosen(line["scopes"][scope][part], scope, mean)
    return (float("nan"), 0) if line is None or value is None else (value, int(line["round"]))


def digest_of_config(run: Path) -> str:
    """Computes 16 hexadecimal digits of the keys of a run that change numbers, and of the files that these name."""
    config = load_config(run)
    # Files count by their content, wherever they are.
    keys = {**identity_keys(config.plain()), **inputs.contents(config)}
    return hashlib.sha256(_text(keys).encode()).hexdigest()[:16]


def digest_of_inputs(read: Mapping[str, str]) -> str:
    """Computes 16 hexadecimal digits of the contents of the prepared stores that a run read."""
    stores = {name: digest for name, digest in read.items() if name.startswith(STORES)}
    return hashlib.sha256(_text(stores).encode()).hexdigest()[:16]


def digest_of_uploads(run: Path) -> str:
    """Computes the XXH3-128 of round, phase, client and digest of all uploads that a run recorded, in their order."""
    hasher = xxhash.xxh3_128()
    for number, uploads in read_digests_by_round(run).items():
        for phase, client, digest in uploads:
            hasher.update(f"{number} {phase} {client} {digest}\n".encode())
    return hasher.hexdigest()


def _text(value: Any) -> str:
    return json.dumps(value, sort_keys=True, default=str)
