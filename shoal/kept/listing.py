"""Finds, describes and compares folders of runs, sweeps and stores."""

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import cached_property
from pathlib import Path
from typing import Any

from shoal.engine.config.config import load_config
from shoal.engine.config.names import shown_name
from shoal.engine.config.run_identity import changes_numbers, flatten
from shoal.engine.config.sizes import size
from shoal.engine.records.metrics import METRICS, read_metrics
from shoal.engine.records.run_folder import (
    CONFIG,
    FAILURE,
    finished,
    name_of_parent,
    parent_of,
    read_summary,
    state_of,
)
from shoal.engine.records.summary import NODES, OF_SAMPLES, ONE_MODEL, POOLED, SAMPLED, SOME
from shoal.storage.errors import ShoalError
from shoal.storage.files.disk import LOCK
from shoal.storage.store.manifest import NAME as MANIFEST
from shoal.storage.store.manifest import read_manifest
from shoal.study.groups import Row, short_key, varied_in
from shoal.study.means import MEANS, by_one_mean, figures_by, is_of_sample, is_share, several_clients
from shoal.study.sweep_folder import (
    SWEEP,
    SWEEPS,
    differing,
    is_sweep,
    keys_of,
    read_rows,
    row_of,
    table_of_runs,
)
from shoal.tables.text_table import TextTable

UNITS = (("d", 86400), ("h", 3600), ("min", 60))


@dataclass(frozen=True)
class Kept:
    """A folder that Shoal wrote: a `store`, a `run` or a `sweep`.

    Attributes:
        there: Bytes and time of the last change, for a folder at an address whose copy on this machine is not whole.
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

    @cached_property
    def changed(self) -> float:
        """The time at which its newest file was written, in seconds since 1970."""
        if self.there is not None:
            return self.there[1]
        names = (self.path / name for name in (SWEEP, MANIFEST, METRICS, FAILURE, CONFIG))
        return max((file.stat().st_mtime for file in names if file.exists()), default=self.path.stat().st_mtime)


@dataclass(frozen=True)
class Entry:
    """A row of a list: a folder, its state, and its content in words; `sweep` is the sweep that a run belongs to.

    The `score` of a finished run is its test score at the best validation round, a share of 1, of models `scope`, by
    the mean over clients that the table of its sweep has.
    """

    kept: Kept
    state: str
    what: str
    sweep: Path | None = None
    score: float | None = None
    scope: str | None = None
    mean: str = NODES


def kind_of(path: Path) -> str | None:
    """Returns `store`, `run` or `sweep`; None for any other folder."""
    if is_sweep(path):
        return "sweep"
    if (path / MANIFEST).exists():
        return "store"
    # The lock tells a run's config from a user's own.
    return "run" if all((path / name).exists() for name in (CONFIG, LOCK)) else None


def kept_in(root: Path) -> Iterator[Kept]:
    """Yields folders of Shoal: a folder itself, those in it, and those in its `sweeps` and `stores`; by names."""
    if (kind := kind_of(root)) is not None:
        yield Kept(kind, root)
    for folder in (root, root / SWEEPS, root / "stores"):
        for path in sorted(folder.iterdir()) if folder.is_dir() else ():
            if path.is_dir() and (kind := kind_of(path)) is not None:
                yield Kept(kind, path)


def entries(found: Sequence[Kept]) -> list[Entry]:
    """Lists stores, then runs and sweeps, each by time, the newest last; runs of a sweep below it."""
    of_sweeps: dict[Path, tuple[Path, dict[str, str], str]] = {}
    for sweep in sorted((kept for kept in found if kept.kind == "sweep"), key=lambda kept: kept.changed):
        with suppress(ShoalError):
            rows = read_rows(sweep.path)
            mean = POOLED if several_clients(rows) else NODES
            of_sweeps |= {
                row.path.resolve(): (sweep.path, varied, mean) for row, varied in zip(rows, _varied_columns(rows))
            }
    alone = [kept for kept in found if kept.kind == "run" and kept.path.resolve() not in of_sweeps]
    differ = _differences(alone)

    def entry(kept: Kept) -> Entry:
        sweep, varied, mean = of_sweeps.get(kept.path.resolve(), (None, differ.get(kept.path, {}), NODES))
        try:
            return _entry(kept, mean, sweep if kept.kind == "run" else None, varied)
        except ShoalError as error:
            return Entry(kept, "damaged", str(error))

    listed = list(map(entry, found))
    newest = {item.kept.path: item.kept.changed for item in listed}
    for item in listed:
        if item.sweep in newest:
            newest[item.sweep] = max(newest[item.sweep], item.kept.changed)

    def place(item: Entry) -> tuple[bool, float, Path, bool, float]:
        head = item.sweep if item.sweep in newest else item.kept.path
        return item.kept.kind != "store", newest[head], head, head != item.kept.path, item.kept.changed

    return sorted(listed, key=place)


def make_tables(folders: Sequence[Kept]) -> list[TextTable]:
    """Makes tables of stores, and of runs and sweeps: name, age, size, state, content or result. Rows say of damage."""
    all_of_them = entries(folders)
    if not all_of_them:
        return [TextTable(("name",), (), 1, notes=("no runs, sweeps or stores",))]
    tables = []
    for kinds in (("store",), ("run", "sweep")):
        some = [entry for entry in all_of_them if entry.kept.kind in kinds]
        shown = {entry.kept.path for entry in some}
        rows = tuple(
            ("└ " * (row.sweep in shown) + row.kept.path.name, _age(row.kept), size(row.kept.bytes), _words(row))
            for row in some
        )
        heads = ("store", "age", "size", "what") if kinds == ("store",) else ("run or sweep", "age", "size", "what")
        means = dict.fromkeys(entry.mean for entry in some if entry.score is not None)
        scored = tuple(
            f"scores{' in sweeps over numbers of clients' * (mean == POOLED)}: test, {MEANS[mean]}" for mean in means
        )
        if rows:
            tables.append(TextTable(heads, rows, len(heads), notes=scored))
    return tables


def plain_list(folders: Sequence[Kept]) -> list[dict[str, Any]]:
    """Returns the rows of `make_tables` as plain values."""
    return [
        {
            "kind": entry.kept.kind,
            "path": str(entry.kept.path),
            "changed": datetime.fromtimestamp(entry.kept.changed, UTC).isoformat(timespec="seconds"),
            "bytes": entry.kept.bytes,
            "state": entry.state,
            "what": entry.what,
            "sweep": None if entry.sweep is None else str(entry.sweep),
            "score": entry.score,
            "scope": entry.scope,
        }
        for entry in entries(folders)
    ]


def plain_content(path: Path) -> dict[str, Any]:
    """Reads a folder as plain values: the manifest of a store, state and rounds of a run, or the runs of a sweep.

    Raises ShoalError: it is none of these, or damaged.
    """
    kind = kind_of(path)
    if kind == "sweep":
        return {"kind": kind, "path": str(path), "runs": table_of_runs(read_rows(path)).to_pylist()}
    if kind == "run":
        done = finished(path)
        return {
            "kind": kind,
            "path": str(path),
            "state": "finished" if done else state_of(path),
            "config": load_config(path).plain(),
            "summary": read_summary(path) if done else None,
            "rounds": read_metrics(path),
        }
    manifest = read_manifest(path)
    clients = {name: manifest.clients.count(name).tolist() for name in ("nodes", "entries", "labelled", "items")}
    plain = {name: getattr(manifest, name) for name in ("name", "synthetic", "nodes", "features", "classes", "dtype")}
    made = {"identity": manifest.identity, "quality": manifest.quality, "clients": clients}
    splits = {name: split.counts.tolist() for name, split in manifest.splits.items()}
    return {"kind": "store", "path": str(path), **plain, **made, "splits": splits, "hops": list(manifest.hops)}


def _differences(runs: Sequence[Kept]) -> dict[Path, dict[str, str]]:
    """Returns, by run, the values in which runs of one name differ."""
    named: dict[str, dict[Path, dict[str, str]]] = {}
    for kept in runs:
        with suppress(ShoalError):
            keys = keys_of(kept.path)
            named.setdefault(keys["name"], {})[kept.path] = keys
    return {
        path: varied for of_name in named.values() for path, varied in zip(of_name, differing(list(of_name.values())))
    }


def _varied_columns(rows: Sequence[Row]) -> list[dict[str, str]]:
    keys = varied_in(rows)
    return [{key: value for key, value in row.columns.items() if key in keys} for row in rows]


def _entry(each: Kept, mean: str, sweep: Path | None, varied: Mapping[str, str]) -> Entry:
    path = each.path
    if each.kind == "store":
        manifest = read_manifest(path)
        what = f"{manifest.name}, {len(manifest.clients):,} clients, {manifest.nodes:,} nodes"
        return Entry(each, "finished", what + (" (synthetic)" if manifest.synthetic else ""))
    if each.kind == "sweep":
        rows = read_rows(path)
        states = [row.state for row in rows]
        done, failed = sum(state in ("finished", "not chosen") for state in states), states.count("failed")
        state = "finished" if done == len(states) else f"{done} of {len(states)}"
        varied = {key: ",".join(map(shown_name, values)) for key, values in varied_in(rows).items()}
        return Entry(each, state + (f", {failed} failed" if failed else ""), f"sweep of {_join_values(varied)}")
    keys = keys_of(path)
    what = _join_values({key: value for key, value in varied.items() if key not in ("algorithm", "algorithm.name")})
    if sweep is None:
        graph = keys["data.dataset"] if keys["data.name"] == "None" else keys["data.name"]
        head = f"{shown_name(keys['algorithm.name'])} on {graph}, {keys['partition.clients']} clients"
    else:
        head = shown_name(keys["algorithm.name"])
    parent = parent_of(path)
    fork = f"fork of {name_of_parent(parent)} after round {parent['round']}" if parent else ""
    what = ", ".join(part for part in (head, what, fork) if part)
    if not finished(path):
        return Entry(each, state_of(path), what, sweep)
    figures = figures_by(path, mean)
    of_server = read_summary(path).get(ONE_MODEL) == SOME
    scopes = ("global", "deployed", "trained") if of_server else ("deployed", "trained", "global")
    scope = next((scope for scope in scopes if f"{scope}.best.test" in figures), None)
    return Entry(each, "finished", what, sweep, None if scope is None else figures[f"{scope}.best.test"], scope, mean)


def _join_values(varied: Mapping[str, str]) -> str:
    return ", ".join(f"{short_key(key, varied)} {shown_name(value)}" for key, value in varied.items())


def _words(each: Entry) -> str:
    """Joins content, and state or result, to one text."""
    if each.score is not None:
        return f"{each.what}: {100 * each.score:.2f} % {each.scope}"
    return each.what if each.state == "finished" else f"{each.what}: {each.state}"


def _age(kept: Kept) -> str:
    """Returns the time since its newest file was written, in words."""
    seconds = max(time.time() - kept.changed, 0)
    unit, length = next((pair for pair in UNITS if seconds >= pair[1]), ("s", 1))
    return f"{seconds / length:.0f} {unit}"


# A comparison shows these figures first.
SHOWN = ("best.val", "best.test", "final.test", "round", "round_median", "per_client_round", "peak_memory_bytes")


def compare(left: Path, right: Path) -> list[TextTable]:
    """Compares two runs in tables: keys, inputs and environment, and figures; without what is equal."""
    names = (left.name, right.name)
    table = _differing("config", names, *(flatten(load_config(run).plain()) for run in (left, right)))
    rows = tuple((*row, "yes" if changes_numbers(row[0]) else "no") for row in table.rows)
    heads, notes = (*table.heads, "affects results"), (*table.notes, _parting(left, right))
    tables = [replace(table, heads=heads, rows=rows, keys=table.keys + 1, notes=notes)]
    if not (finished(left) and finished(right)):
        missing = ", ".join(run.name for run in (left, right) if not finished(run))
        return [*tables, TextTable(("results",), (), 1, notes=(f"not finished: {missing}",))]
    summaries = [read_summary(run) for run in (left, right)]
    for part in ("inputs", "environment"):
        tables.append(_differing(part, names, *(flatten(summary.get(part, {})) for summary in summaries)))
    results, mean = by_one_mean([row_of({}, run) for run in (left, right)])
    return [*tables, _figures(names, mean, *(row.figures for row in results))]


# Lines of metrics may differ in these keys between equal runs: durations, places, and digests of the rest of a line.
NOT_NUMBERS = ("seconds", "memory", "hosts", "retries", "digests")


def _parting(left: Path, right: Path) -> str:
    """Returns a line with the first round in which two runs differ, and in which numbers."""
    logged = [read_metrics(run) for run in (left, right)]
    for line, other_line in zip(*logged):
        keys = [
            k for k in dict.fromkeys([*line, *other_line]) if k not in NOT_NUMBERS and line.get(k) != other_line.get(k)
        ]
        if keys:
            return f"rounds: equal up to round {line['round'] - 1}; in the next {', '.join(keys)} differ"
    return f"rounds: equal up to round {min(map(len, logged))}"


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
            marks = [SAMPLED * (is_share(figure) and is_of_sample(figure, figures)) for figures in (left, right)]
            rows.append((figure, f"{a:.4g}{marks[0]}", f"{b:.4g}{marks[1]}", f"{b - a:+.4g}"))
    notes = [f"shares in %; scores: {MEANS[mean]}" if rows else "results: equal"]
    notes += [OF_SAMPLES] * any(SAMPLED in cell for row in rows for cell in row)
    return TextTable(("results", *names, "difference"), tuple(rows), 1, notes=tuple(notes))
