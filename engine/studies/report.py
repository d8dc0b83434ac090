"""A report of runs and sweeps: one page that needs nothing else, and its figures as SVG and PNG."""

import shlex
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from statistics import fmean, stdev

import numpy as np
import yaml

from shoal.engine.config.config import load_config
from shoal.engine.config.config_text import MOST_BYTES
from shoal.engine.config.sections import EVALUATED
from shoal.engine.config.sizes import size
from shoal.engine.preparing.identity import store_or_overlay
from shoal.engine.records.run_folder import CONFIG, read_summary
from shoal.engine.records.summary import PARTS, scopes_apart
from shoal.engine.studies import figures as drawings
from shoal.engine.studies.figures import (
    Drawing,
    client_accuracies,
    curve_of,
    name_of,
    numeric,
    recorded_mixing,
    recorded_prototypes,
)
from shoal.engine.studies.groups import Group, Row, grouped, varied
from shoal.engine.studies.means import MEANS, SCOPES, by_one_mean
from shoal.engine.studies.page import Section, write_page
from shoal.engine.studies.scaling import CLIENTS, HOSTS, REPEAT, ideal, scaling_groups, scaling_table
from shoal.engine.studies.study_table import Layout, table_of
from shoal.engine.studies.sweep_folder import is_sweep, rows_of, title_of
from shoal.engine.studies.text_table import TextTable
from shoal.storage.errors import ShoalError
from shoal.storage.files.reading import read_text
from shoal.storage.store.manifest import NAME, read_manifest

# A reader cannot tell more lines apart.
MOST_CURVES = 12
MIB = 1 << 20


def report(paths: Sequence[Path], out: Path | None) -> Path:
    """Writes the report of runs and sweeps to a folder, by default `report` in the first of them; gives the page."""
    read = [row for row in rows_of(paths) if row.state != "not chosen"]
    rows, mean = by_one_mean(read)
    groups = [group for group in grouped(rows) if any(row.figures for row in group.rows)]
    if not groups:
        raise ShoalError("no run is finished; continue them with shoal run or shoal sweep")
    folder = out or paths[0] / "report"
    title = title_of(paths[0]) if is_sweep(paths[0]) else ", ".join(path.name for path in paths[:3])
    keys = varied(groups)
    named = {name_of(group, keys): group for group in groups}
    waiting, more = sum(not row.figures for row in rows), len(named) - MOST_CURVES
    missing = f"{waiting} of {len(rows)} runs are not finished and not shown" if waiting else ""
    of_curves = [f"scores: {MEANS[mean]}"]
    if more > 0:
        of_curves.append(f"curves of the first {MOST_CURVES} combinations; {more} more are in the tables")
    if any(figure.endswith(f".{EVALUATED}") for row in rows for figure in row.figures):
        of_curves.append("rounds before the last: of samples of clients (evaluation.clients)")
    results = table_of(read, Layout())
    results = replace(results, notes=(*results.notes, *_apart(named)))
    sections = [
        Section("Results", tables=[results], note=missing),
        Section("Scaling", drawings=_scaling(scaling_groups(rows), keys), tables=_scaling_table(rows)),
        Section("Accuracy", drawings=[*_by_key(groups, keys), *_curves(named, mean)], note="; ".join(of_curves)),
        Section("Clients", drawings=_clients(named)),
        Section("What the server mixed, and prototypes", drawings=_records(named)),
        Section("Time and memory", drawings=_costs(named)),
        _how(paths, named),
    ]
    return write_page(folder, title, [s for s in sections if s.drawings or s.tables or s.texts])


def _finished(group: Group) -> list[Path]:
    return [row.path for row in group.rows if row.figures]


def _apart(named: dict[str, Group]) -> list[str]:
    """A line for every reason why `deployed` and `global` differ, of the first run of each combination."""
    found: dict[str, list[str]] = {}
    for name, group in named.items():
        first = _finished(group)[0]
        points, why = scopes_apart(read_summary(first), load_config(first))
        if why:
            found.setdefault(why, []).append(f"{points:.1f} points" + (f" in {name}" if len(named) > 1 else ""))
    return [f"deployed and global are apart, {', '.join(these)}: {why}" for why, these in found.items()]


def _scopes(named: dict[str, Group]) -> list[str]:
    known = {figure.partition(".")[0] for group in named.values() for row in group.rows for figure in row.figures}
    return [scope for scope in SCOPES if scope in known]


def _curves(named: dict[str, Group], mean: str) -> list[Drawing]:
    found: list[Drawing] = []
    few = dict(list(named.items())[:MOST_CURVES])
    for scope in _scopes(named):
        for part in ("test", "val"):
            made = [curve_of(name, _finished(group), scope, part, mean) for name, group in few.items()]
            several = [curve for curve in made if curve is not None]
            if several:
                for x in ("round",) if part == "val" else ("round", "bytes", "seconds"):
                    if x != "bytes" or any(curve.x[x][-1] > 0 for curve in several):
                        drawings.curves(found, several, scope, part, x)
    return found


def _by_key(groups: Sequence[Group], keys: Sequence[str]) -> list[Drawing]:
    """A figure over each key whose values are numbers, participation for one."""
    found: list[Drawing] = []
    scopes = _scopes({str(number): group for number, group in enumerate(groups)})
    for key in keys:
        with_key = [group for group in groups if group.columns.get(key)]
        values = numeric([group.columns[key] for group in with_key])
        if values is None or len(values) < 2:
            continue
        others = [other for other in keys if other != key]
        for scope in scopes:
            figure = f"{scope}.best.test"
            lines: dict[str, list[tuple[float, float, float]]] = {}
            for value, group in sorted(zip(values, with_key), key=lambda pair: pair[0]):
                if of_runs := group.values(figure):
                    deviation = stdev(of_runs) if len(of_runs) > 1 else 0.0
                    lines.setdefault(name_of(group, others), []).append((value, fmean(of_runs), deviation))
            if any(len(line) > 1 for line in lines.values()):
                drawings.over_key(found, key, lines, figure)
    return found


def _scaling_table(rows: Sequence[Row]) -> list[TextTable]:
    return [scaling_table(rows)] if all(REPEAT in row.columns for row in rows) else []


def _scaling(groups: Sequence[Group], keys: Sequence[str]) -> list[Drawing]:
    """Seconds of a round over clients and hosts, and the ideal."""
    found: list[Drawing] = []
    for key in (CLIENTS, HOSTS):
        if key not in keys:
            continue
        # What grows along with a key or names it again tells no lines apart.
        others = [other for other in keys if other not in (key, "name") and not other.startswith("data.options.")]
        by_line: dict[str, list[Group]] = {}
        for group in groups:
            if numeric([group.columns.get(key, ""), "-1"]) is not None:
                by_line.setdefault(name_of(group, others), []).append(group)
        lines = {name: ideal(several, key) for name, several in by_line.items() if len(several) > 1}
        if lines:
            drawings.against_ideal(found, key, lines)
    return found


def _clients(named: dict[str, Group]) -> list[Drawing]:
    found: list[Drawing] = []
    for scope in ("trained", "deployed"):
        of_group = {
            name: np.concatenate([client_accuracies(run, scope) for run in _finished(group)])
            for name, group in named.items()
        }
        scored = {name: accuracies for name, accuracies in of_group.items() if len(accuracies)}
        if scored:
            drawings.boxes(found, scored, scope)
    first = _finished(next(iter(named.values())))[0]
    counts_BC = _labels_of_clients(first)
    if counts_BC is not None:
        drawings.labels(found, counts_BC)
    return found


def _records(named: dict[str, Group]) -> list[Drawing]:
    """Of the first run of each of the first combinations that kept records."""
    found: list[Drawing] = []
    for name, group in list(named.items())[:MOST_CURVES]:
        run = _finished(group)[0]
        if mixing := recorded_mixing(run):
            drawings.mixing(found, name, mixing)
        if (last := recorded_prototypes(run)) is not None:
            drawings.prototypes(found, name, *last)
    return found


def _labels_of_clients(run: Path) -> np.ndarray | None:
    """Labelled items by client and class, int64 `[B, C]`; None where the store of a run is gone."""
    config = load_config(run)
    path = store_or_overlay(config)
    if not (path / NAME).exists():
        return None
    return read_manifest(path).clients.columns["classes"]


def _costs(named: dict[str, Group]) -> list[Drawing]:
    found: list[Drawing] = []
    # Means over the runs, those of hosts summed over hosts.
    parts = {
        name: {part: fmean(group.values(f"seconds.{part}") or [0.0]) for part in PARTS} for name, group in named.items()
    }
    hosts = {name: {k: v for k, v in of.items() if k in ("train", "evaluate", "upload")} for name, of in parts.items()}
    server = {name: {k: v for k, v in of.items() if k in ("aggregate", "transfer")} for name, of in parts.items()}
    drawings.bars(found, "seconds-of-hosts", "work of the hosts in all rounds", "seconds, summed over hosts", hosts)
    drawings.bars(found, "seconds-of-server", "work of the server in all rounds", "seconds", server)
    # Of the first run of each combination.
    at_work = {
        f"{name}, host {host}": {"busy": busy, "idle": group.values("seconds.rounds")[0] - busy}
        for name, group in named.items()
        for host, busy in read_summary(_finished(group)[0]).get("busy_seconds", {}).items()
    }
    if at_work:
        least_first = dict(sorted(at_work.items(), key=lambda host: host[1]["busy"]))
        drawings.bars(found, "busy-hosts", "hosts at work in all rounds, the least busy first", "seconds", least_first)
    memory = {
        name: {"all processes": fmean(group.values("peak_memory_bytes") or [0.0]) / MIB}
        for name, group in named.items()
    }
    drawings.bars(found, "memory", "peak memory of all processes", "MiB", memory)
    return found


def _how(paths: Sequence[Path], named: dict[str, Group]) -> Section:
    """Configs, environment, and the commands to repeat it."""
    first = _finished(next(iter(named.values())))[0]
    summary = read_summary(first)
    commands = [f"shoal run {shlex.quote(str(run))}" for group in named.values() for run in _finished(group)]
    traffic = summary["bytes"]
    facts = TextTable(
        ("", "first run"),
        (
            ("dataset", summary["dataset"] + (" (synthetic)" if summary["synthetic"] else "")),
            ("clients", str(summary["clients"])),
            ("rounds", str(summary["rounds"])),
            ("visits left out", str(summary.get("left_out", {}).get("visits", 0))),
            ("sent", f"{size(traffic['up'])} up, {size(traffic['down'])} down"),
            *((key, str(value)) for key, value in summary["environment"].items()),
        ),
        2,
    )
    texts = [
        (f"config of {first.name}", read_text(first / CONFIG, MOST_BYTES)),
        ("commands that run the same configs again", "\n".join(commands)),
    ]
    if is_sweep(paths[0]):
        texts.append(("axes of the sweep", yaml.safe_dump({"axes": title_of(paths[0])})))
    return Section("How it was run", tables=[facts], texts=texts)
