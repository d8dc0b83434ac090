"""Finds, describes and compares folders of runs, sweeps and stores."""

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from shoal.engine.config.config import load_config
from shoal.engine.config.run_identity import changes_numbers, flatten
from shoal.engine.config.sizes import size
from shoal.engine.records.metrics import METRICS
from shoal.engine.records.run_folder import CONFIG, finished, read_summary, started
from shoal.engine.records.summary import NODES, OF_SAMPLES, POOLED, SAMPLED
from shoal.engine.studies.groups import Row
from shoal.engine.studies.means import MEANS, by_one_mean, figures_by, is_of_sample, is_share, several_clients
from shoal.engine.studies.sweep_folder import SWEEP, is_sweep, read_rows, row_of, title_of
from shoal.engine.studies.text_table import TextTable
from shoal.storage.errors import ShoalError
from shoal.storage.files.disk import LOCK
from shoal.storage.store.manifest import NAME as MANIFEST
from shoal.storage.store.manifest import read_manifest

UNITS = (("d", 86400), ("h", 3600), ("min", 60))


@dataclass(frozen=True)
class Kept:
    """A folder that Shoal wrote: a `store`, a `run` or a `sweep`.

    Attributes:
        there: Bytes and time of the last change of one at an address, whose copy on this machine has not all of it.
    """

    kind: str
    path: Path
    there: tuple[int, float] | None = None

    @property
    def bytes(self) -> int:
        """Size of all files in it, without those that links lead to."""
        if self.there is not None:
            return self.there[0]
        return sum(file.lstat().st_size for file in self.path.rglob("*") if file.is_file() and not file.is_symlink())


def kind_of(path: Path) -> str | None:
    """`store`, `run` or `sweep`; None of a folder that is none of these."""
    if is_sweep(path):
        return "sweep"
    if (path / MANIFEST).exists():
        return "store"
    # The lock tells a run's config from a user's own.
    return "run" if all((path / name).exists() for name in (CONFIG, LOCK)) else None


def kept_in(root: Path) -> Iterator[Kept]:
    """Folders of Shoal in a folder, and in its `sweeps` and `stores`; in the order of names."""
    for folder in (root, root / "sweeps", root / "stores"):
        for path in sorted(folder.iterdir()) if folder.is_dir() else ():
            kind = kind_of(path) if path.is_dir() else None
            if kind is not None:
                yield Kept(kind, path)


def listed(found: list[Kept]) -> TextTable:
    """A row for each folder: kind, name, age, size, state, and content or result. Damage is in the row."""
    mean = POOLED if several_clients(list(_finished_runs(found))) else NODES
    rows = [(each.kind, each.path.name, _age(each), size(each.bytes), *_state(each, mean)) for each in found]
    heads = ("kind", "name", "age", "size", "state", "what")
    scored = (f"scores: {MEANS[mean]}",) if any(each.kind == "run" for each in found) else ()
    return TextTable(heads, tuple(rows), len(heads), notes=scored if rows else ("no runs, sweeps or stores",))


def _finished_runs(found: Sequence[Kept]) -> Iterator[Row]:
    for each in found:
        with suppress(ShoalError):
            if each.kind == "run":
                yield row_of({}, each.path)


def _state(each: Kept, mean: str) -> tuple[str, str]:
    try:
        if each.kind == "run":
            return _of_run(each.path, mean)
        if each.kind == "store":
            manifest = read_manifest(each.path)
            return "finished", f"{manifest.name}, {len(manifest.clients)} clients, {manifest.nodes:,} nodes"
        states = [row.state in ("finished", "not chosen") for row in read_rows(each.path)]
        state = "finished" if all(states) else f"{sum(states)} of {len(states)}"
        return state, title_of(each.path)
    except ShoalError as error:
        return "damaged", str(error)


def _of_run(path: Path, mean: str) -> tuple[str, str]:
    config = load_config(path)
    graph = config.data.name or config.data.dataset
    what = f"{config.algorithm.name} on {graph}, {config.partition.clients} clients, seed {config.seed}"
    if not finished(path):
        return ("unfinished" if started(path) else "not begun"), what
    figures = figures_by(path, mean)
    scope = next((scope for scope in ("deployed", "trained", "global") if f"{scope}.best.test" in figures), None)
    reached = "" if scope is None else f": {100 * figures[f'{scope}.best.test']:.2f} % {scope}"
    return "finished", what + reached


def _age(each: Kept) -> str:
    """Time since its newest file was written."""
    path = each.path
    names = (path / name for name in (SWEEP, MANIFEST, METRICS, CONFIG))
    newest = max((file.stat().st_mtime for file in names if file.exists()), default=path.stat().st_mtime)
    seconds = max(time.time() - (newest if each.there is None else each.there[1]), 0)
    unit, length = next((each for each in UNITS if seconds >= each[1]), ("s", 1))
    return f"{seconds / length:.0f} {unit}"


# Of the figures, those that a person asks for first.
SHOWN = ("best.val", "best.test", "last.test", "round", "round_median", "per_client_round", "peak_memory_bytes")


def compare(left: Path, right: Path) -> list[TextTable]:
    """Tables of what differs, one for keys, one for inputs and environment, one for figures; without what is equal."""
    names = (left.name, right.name)
    table = _differing("config", names, *(flatten(load_config(run).plain()) for run in (left, right)))
    rows = tuple((*row, "yes" if changes_numbers(row[0]) else "no") for row in table.rows)
    tables = [replace(table, heads=(*table.heads, "changes numbers"), rows=rows, keys=table.keys + 1)]
    if not (finished(left) and finished(right)):
        missing = ", ".join(run.name for run in (left, right) if not finished(run))
        return [*tables, TextTable(("results",), (), 1, notes=(f"not finished: {missing}",))]
    summaries = [read_summary(run) for run in (left, right)]
    for part in ("inputs", "environment"):
        tables.append(_differing(part, names, *(flatten(summary.get(part, {})) for summary in summaries)))
    results, mean = by_one_mean([row_of({}, run) for run in (left, right)])
    return [*tables, _figures(names, mean, *(row.figures for row in results))]


Names = tuple[str, str]


def _differing(what: str, names: Names, left: Mapping[str, Any], right: Mapping[str, Any]) -> TextTable:
    keys = [key for key in dict.fromkeys([*left, *right]) if left.get(key) != right.get(key)]
    rows = tuple((key, str(left.get(key, "-")), str(right.get(key, "-"))) for key in keys)
    return TextTable((what, *names), rows, 3, notes=() if rows else (f"{what}: equal",))


def _figures(names: Names, mean: str, left: Mapping[str, float], right: Mapping[str, float]) -> TextTable:
    rows = []
    for figure in (figure for figure in left if figure in right and figure.endswith(SHOWN)):
        factor = 100 if is_share(figure) else 1
        a, b = factor * left[figure], factor * right[figure]
        if a != b:
            marks = [SAMPLED * (is_share(figure) and is_of_sample(figure, of)) for of in (left, right)]
            rows.append((figure, f"{a:.4g}{marks[0]}", f"{b:.4g}{marks[1]}", f"{b - a:+.4g}"))
    notes = [f"shares in %; scores: {MEANS[mean]}" if rows else "results: equal"]
    notes += [OF_SAMPLES] * any(SAMPLED in cell for row in rows for cell in row)
    return TextTable(("results", *names, "difference"), tuple(rows), 1, notes=tuple(notes))
