"""Tables for people."""

import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
from rich.table import Column

from shoal.algorithms.methods.registry.names import TO_COMPARE
from shoal.engine.config.config import Config, load_config
from shoal.engine.config.names import shown_name
from shoal.engine.config.sections import ACCURACY, BOTH, DOMAINS, EVALUATED, SCORING
from shoal.engine.config.sizes import size
from shoal.engine.records.metrics import METRICS, read_metrics
from shoal.engine.records.run_folder import finished, read_summary
from shoal.engine.records.summary import (
    DISTINCT,
    DONE,
    OF_SAMPLES,
    OF_SOME,
    ONE_MODEL,
    PARTS,
    SAMPLED,
    SOME,
    chosen,
    describe_distinct,
    metric_of,
    metrics_in,
    name_metric,
    name_with_unit,
    scopes_apart,
    unit_of,
    weighting_of,
)
from shoal.engine.records.untrained import UNTRAINED, describe_untrained
from shoal.engine.screen.head import shown_path
from shoal.engine.screen.output import Console, Table
from shoal.engine.sections.sections import SECTIONS, describe_store
from shoal.storage.options.masking import masks
from shoal.storage.options.target_names import CLASSIFICATION
from shoal.storage.options.types import is_own
from shoal.storage.store.manifest import Manifest
from shoal.storage.store.store import TRAINING

# Tables are at least so wide, and wider without a terminal.
NARROWEST = 80 if Console().is_terminal else 100
# At most so many names of classes, and of features, are shown.
SHOWN_CLASSES, SHOWN_FEATURES = 20, 5
# So many clients that lose most of their edges are shown, and pairs of classes that most cut edges join.
WORST_CLIENTS, MOST_PAIRS = 3, 5
SKEW = "mean total variation distance to all labels"
# A task predicts these items.
ITEMS = {"node": "node", "edge": "pair", "graph": "graph"}
# A terminal that is too narrow wraps a table, which loses nothing; rich would cut it.
console = Console(width=None if Console().width >= NARROWEST else NARROWEST)


def show_run(run: Path, details: bool = False) -> None:
    """Prints the table that a finished run ends with; with `details` spreads over clients, and the seconds of parts."""
    summary = read_summary(run)
    config = load_config(run)
    of_run = f"{title_of_run(summary, config)}; "
    for number, metric in enumerate(metrics_of(summary["scopes"])):
        _line(f"{'' if number else of_run}test {name_with_unit(metric)}")
        console.print(score_table(summary["scopes"], metric, ITEMS[config.task], details))
    if any(map(_mark, (numbers[moment] for numbers in summary["scopes"].values() for moment in ("final", "best")))):
        _line(OF_SAMPLES)
    if shared := describe_distinct(summary.get(DISTINCT, {}), ITEMS[config.task]):
        _line(shared)
    if few := describe_untrained(summary.get(UNTRAINED, {}), ITEMS[config.task]):
        _line(few)
    points, why = scopes_apart(summary, config)
    if why:
        _line(f"deployed and global are apart, {points:.1f} points: {why}")
    elif summary.get(ONE_MODEL) == SOME:
        _line(OF_SOME)
    if DOMAINS in summary["scopes"]:
        console.print(domain_table(summary["scopes"][DOMAINS]))
    traffic, seconds = summary["bytes"], summary["seconds"]
    kernels = f"; {short(ready)} s to compile kernels" if (ready := seconds.get("kernels", 0.0)) >= 0.05 else ""
    _line(f"{short(seconds['round_median'])} s per round (median), {short(seconds['rounds'])} s in total{kernels}")
    both_ways = ", ".join(f"{short_size(traffic[f'{way}_per_client_round'])} {way}" for way in ("up", "down"))
    _line(f"per client and round: {both_ways}")
    if "exchange" in traffic:
        _line(f"hops over edges between clients: {size(traffic['exchange'])} of sums sent once, before round 1")
    held = ", ".join(f"{process} {short_size(count)}" for process, count in summary["resident_bytes"].items())
    _line(f"peak memory {short_size(summary['peak_memory_bytes'])} ({held} with shared pages)")
    if details:
        _show_costs(summary)
    # Older summaries have no such count.
    if (left_out := summary.get("left_out", {})).get("visits"):
        _line(
            f"left out: {left_out['visits']} visits of {left_out['clients']} clients, which failed "
            f"(engine.on_client_error: skip); why is in {METRICS}"
        )
    if (sums := summary.get("secure", {})).get("skipped"):
        _line(
            f"hidden sums: {sums['skipped']} of {sums['rounds']} rounds had too few answers and changed nothing "
            f"(secure.threshold); how many is in {METRICS}"
        )
    _show_done(summary, run)
    _line(f"folder: {shown_path(run)}", whole=True)


def _show_done(summary: Mapping[str, Any], run: Path) -> None:
    """Prints what was done to a run, each with the command that shows more; a feature that is gone has none."""
    folder = shlex.quote(str(shown_path(run)))
    more = {section.feature: section.command_for_more(folder) for section in SECTIONS}
    for feature, lines in summary.get(DONE, {}).items():
        for subject, text in lines.items():
            _line(f"{subject}: {text}" + (f"; more: {more[feature]}" if feature in more else ""), whole=True)


def _show_costs(summary: Mapping[str, Any]) -> None:
    """Prints bytes in all, and the seconds of every part of the rounds."""
    traffic, scalars, seconds = summary["bytes"], summary["scalars"], summary["seconds"]
    numbers = ", ".join(f"{scalars[f'{way}_per_client_round']:,.0f} {way}" for way in ("up", "down"))
    _line(f"numbers per client and round: {numbers}; in total {size(traffic['up'])} up, {size(traffic['down'])} down")
    # Summaries of earlier versions count scoring to the server's aggregating.
    spent = {part: f"{short(seconds[part])} s" for part in PARTS if part in seconds}
    scoring = f", {spent[SCORING]} scoring" if SCORING in spent else " and scoring"
    _line(
        f"hosts: {spent['train']} training, {spent['evaluate']} evaluating, {spent['upload']} preparing uploads; "
        f"server: {spent['aggregate']} aggregating{scoring}, {spent['transfer']} sending and receiving, "
        f"{spent['wait']} waiting"
        + (f"; {short(seconds['checkpoint'])} s writing checkpoints" if "checkpoint" in seconds else "")
    )
    if busy := summary.get("busy_seconds"):
        shares = [100 * spent / max(seconds["rounds"], 1e-9) for spent in busy.values()]
        _line(f"hosts worked {fmean(shares):.0f} % of the rounds' seconds, the least busy one {min(shares):.0f} %")
    if summary["retries"]:
        _line(f"{summary['retries']} times a cell was lost with its host")


def show_next(config: Config, run: Path | str) -> None:
    """Prints where the page of a run is, or how to write it, and what to compare the run with."""
    folder = shlex.quote(str(run if isinstance(run, str) else shown_path(run)))
    page = None if isinstance(run, str) else run / "report" / "index.html"
    lines = [f"shoal report {folder}"]
    if page is not None and page.exists():
        lines = []
        _line(f"page: {shown_path(page)}", whole=True)
    if len(config.models()) == 1 and not isinstance(run, str):
        method = config.algorithm
        names = dict.fromkeys([*TO_COMPARE, *([] if method.options or is_own(method.name) else [method.name])])
        lines.append(f"shoal sweep {folder} algorithm={','.join(names)} seeds=3")
    for number, line in enumerate(lines or [f"shoal export {folder}"]):
        _line(f"{'      ' if number else 'next: '}{line}", whole=True)


def show_store(place: object, manifest: Manifest) -> None:
    """Prints the content of a store, and the quality of its partition; `place` is its folder or address."""
    kind = " (synthetic)" if manifest.synthetic else ""
    weighted = ", weighted" if manifest.weighted else ""
    hidden = "" if manifest.pairs is None else " for training, those held out not counted"
    table = Table("", Column(overflow="fold"), title=f"store {place}", show_header=False)
    quality = manifest.quality
    clients = manifest.clients
    entries, nodes, labelled, items = (clients.count(name) for name in ("entries", "nodes", "labelled", "items"))
    dataset = manifest.identity.get("dataset", {})
    density = "dense"
    if manifest.layout == "sparse":
        density = f"sparse, {100 * manifest.feature_values / max(1, nodes.sum() * manifest.features):.1f} % stored"
    graphs = held = ""
    if manifest.item_name != "node":
        graphs = f"{manifest.items:,} {manifest.item_name}s, "
        held = f"{min(items):,} to {max(items):,} {manifest.item_name}s and "
    classes, of_classes = (clients.columns["classes"] > 0).sum(1), manifest.target == CLASSIFICATION
    names = [f"{number} {name}" for number, name in enumerate(manifest.label_names or ())]
    rows = {
        "dataset": f"{manifest.name}{kind}: {graphs}{manifest.nodes:,} nodes, {manifest.features} features "
        f"({manifest.dtype}, {density}), {manifest.outputs}",
        "partition": _join_pairs(manifest.identity["partition"]),
        "clients": f"{len(nodes)}, of {held}{min(nodes):,} to {max(nodes):,} nodes "
        f"(largest over mean {quality['balance']:.3f})",
        **({"shared nodes": _shared(quality["shared"])} if "shared" in quality else {}),
        "edges kept": f"{entries.sum() // 2:,} undirected{weighted}{hidden}; cut {100 * quality['cut_fraction']:.1f} %",
        "labels": f"{labelled.sum():,} labelled {manifest.item_name}s, "
        f"{min(labelled):,} to {max(labelled):,} a client"
        + (f"; classes a client {min(classes)} to {max(classes)}" if of_classes else ""),
        **({"label skew": f"{quality['label_skew']:.3f} ({SKEW})"} if of_classes else {}),
        **({"features": abridge(manifest.feature_names)} if manifest.feature_names else {}),
        **({"edge features": _edge_features(manifest)} if manifest.edge_features else {}),
        **({"features": f"made: {_join_pairs(made)}"} if (made := dataset.get("made_features")) else {}),
        **({"classes" if of_classes else "targets": abridge(names, SHOWN_CLASSES)} if names else {}),
        "splits": ", ".join(
            f"{name} ({' / '.join(f'{part:,}' for part in split.counts.sum(0))}"
            + ("" if split.distinct is None else f"; different {' / '.join(f'{part:,}' for part in split.distinct)}")
            + ")"
            for name, split in manifest.splits.items()
        ),
        **({"inductive": "these are the training nodes of clients"} if TRAINING in manifest.identity else {}),
        **({"masked": lacking} if (lacking := masks(manifest.identity.get("sparsity", {}))) else {}),
        **describe_store(manifest.identity),
        "hops": ", ".join(manifest.hops) or "none",
        **{f"cross edges {name}": _cross_edges(manifest, name) for name in manifest.boundaries},
        "size": size(clients.files.total) + " of shards",
    }
    for name, text in rows.items():
        table.add_row(name, text)
    console.print(table)


def _shared(nodes: Mapping[str, int]) -> str:
    return ", ".join(f"{count:,} {who}" for who, count in nodes.items()) + "; edges kept count at each client"


def _edge_features(manifest: Manifest) -> str:
    """Says how many features edges have, and what they are called."""
    names = f": {abridge(manifest.edge_names)}" if manifest.edge_names else ""
    return f"{manifest.edge_features}{names}"


def _cross_edges(manifest: Manifest, name: str) -> str:
    record = manifest.boundaries[name]
    edges, sums, of_one, labelled, same = record.counts.sum(0).tolist()
    if not edges:
        return "none is kept: hops run over clients' own edges"
    cut = record.counts[:, 0]
    shares = cut / np.maximum(cut + manifest.clients.count("entries"), 1)
    worst = np.argsort(-shares, kind="stable")[:WORST_CLIENTS]
    most = ", ".join(f"{100 * shares[client]:.1f} % of client {client}'s" for client in worst)
    of_class = f", {100 * same / labelled:.1f} % of those with labels join nodes of one class" if labelled else ""
    # If more than one neighbour is required, an edge may be kept for one of its ends alone.
    kept = f"{edges // 2:,} undirected" if name.split("-")[2] == "min1" else f"{edges:,} directed"
    return (
        f"{kept}, {min(cut):,} to {max(cut):,} a client{of_class}; of the edges of hops {most}; "
        f"{sums:,} sums a hop ({size(record.hop_bytes(manifest.features))}), {of_one:,} of one neighbour"
    )


def show_class_pairs(pairs: Mapping[str, tuple[np.ndarray, np.ndarray]]) -> None:
    """Prints which classes edges join inside clients and between them; by boundary the entries `[C, C]`."""
    for name, (inside, between) in pairs.items():
        table = _numbers(f"edges {name} by classes of their ends (%)", ["classes"], ("between clients", "inside"))
        both = [_shares_of_pairs(entries) for entries in (between, inside)]
        first, other = np.triu_indices(len(between), 1)
        table.add_row("of one class", *(_percent(float(np.trace(shares))) for shares in both))
        for pair in np.argsort(-both[0][first, other], kind="stable")[:MOST_PAIRS]:
            ends = int(first[pair]), int(other[pair])
            table.add_row(f"{ends[0]} and {ends[1]}", *(_percent(float(shares[ends])) for shares in both))
        console.print(table)


def _shares_of_pairs(entries: np.ndarray) -> np.ndarray:
    """Returns shares of all edges; a pair of classes in either order counts above the diagonal."""
    pairs = np.triu(entries) + np.tril(entries, -1).T
    return pairs / max(int(entries.sum()), 1)


def _join_pairs(options: Mapping[str, Any]) -> str:
    return ", ".join(f"{key} {value}" for key, value in options.items())


def abridge(names: Sequence[str], most: int = SHOWN_FEATURES) -> str:
    """Returns the first `most` names, and the last of them all."""
    shown = ", ".join(names[:most])
    return shown if len(names) <= most else f"{shown}, … {names[-1]}"


def show_rounds(run: Path, last: int = 10) -> None:
    """Prints the newest rounds of a run, finished or not."""
    lines = read_metrics(run)
    parts = [part for line in lines for scope in line.get("scopes", {}).values() for part in scope.values()]
    metric = name_metric(metric_of(parts[-1] if parts else {}))
    scopes = ["trained", "deployed", *(["global"] if any("global" in line.get("scopes", {}) for line in lines) else [])]
    heads = ("round", "cohort", "loss", *scopes, "seconds", "up", "down")
    state = "" if finished(run) else ", not finished"
    _line(f"{shown_path(run)}: {len(lines)} rounds logged{state}; validation {metric} in %", whole=True)
    table = _numbers("", [], heads)
    for line in lines[-last:]:
        scored = {scope: line.get("scopes", {}).get(scope, {}).get("val") for scope in scopes}
        values = [None if numbers is None else chosen(numbers, scope) for scope, numbers in scored.items()]
        table.add_row(
            str(line["round"]),
            str(len(line["cohort"])),
            "-" if line["loss"] is None else f"{line['loss']:.4f}",
            *(_percent(value) + _mark(line) * (value is not None) for value in values),
            f"{line['seconds']['round']:.3f}",
            size(line["bytes_up"]),
            size(line["bytes_down"]),
        )
    console.print(table)
    if any(map(_mark, lines[-last:])):
        _line(OF_SAMPLES)


# Columns of the table of domains, each with the name of a rate and that of its mean over domains.
RATES = {
    "accuracy": ("accuracy", "clients"),
    "F1": ("f1", "f1_clients"),
    "balanced": ("balanced", "balanced"),
    "AUC": ("auc", "auc"),
    "majority": ("majority", "majority"),
}


def domain_table(scope: Mapping[str, Any]) -> Table:
    """Makes a table of domains, their mean, and the best constant class: at the best round, the last, the last five."""
    table = _numbers("the server's model on the whole graph of every domain (%)", ["test", "domain"], list(RATES))
    best, last, five = scope["best"], scope["final"], scope["last_five"]
    rounds = five["rounds"]
    blocks = [
        (f"at best @{best['round']}" if best else "", (best or {}).get("test")),
        (f"final @{last['round']}", last.get("test")),
        (f"{BOTH}, mean of {len(rounds)}", five if rounds else None),
    ]
    for label, numbers in blocks:
        if numbers is None:
            continue
        for place, (name, rates) in enumerate(numbers[DOMAINS].items()):
            table.add_row(label if place == 0 else "", name, *(_percent(rates[rate]) for rate, _ in RATES.values()))
        table.add_row("", "mean", *(_percent(numbers[mean]) for _, mean in RATES.values()))
        table.add_row("", f"constant {numbers['constant_class']}", _percent(numbers["constant"]))
    return table


def metrics_of(scopes: Mapping[str, Any]) -> list[str]:
    """Returns the metrics of a summary's scopes: the one that chooses rounds, then the others beside accuracy."""
    parts = [part for scope in scopes.values() for part in scope["final"].values() if isinstance(part, dict)]
    first = [metric_of(part) for part in parts[:1]] or [ACCURACY]
    return list(dict.fromkeys((*first, *(metric for part in parts for metric in metrics_in(part)))))


# Columns of the table of scores, with names of weightings: of the final round, and more with details.
FINAL = {"per test {item}": "rows", "per client": "clients"}
SPREAD = {"F1": "f1", "min": "min", "median": "median", "max": "max"}


def score_table(scopes: Mapping[str, Any], metric: str, item: str = "node", details: bool = False) -> Table:
    """Makes a table with a row a scope of a summary: test scores by a metric; with `details` those over clients."""
    accuracy = metric == ACCURACY
    columns = {**FINAL, **(SPREAD if details else {})}
    if not accuracy:
        columns = {head: name for head, name in columns.items() if name != "f1"}
    heads = ["final", "at best validation", *(head.format(item=item) for head in columns), *["ranked"] * (not accuracy)]
    if details:
        # Shorter heads leave room for all columns on a terminal of 80.
        heads[1:4] = ["at best val", f"test {item}", "client"]
    table = _numbers("", ["model"], heads)
    shown = _percent if unit_of(metric) else _four_digits
    for scope, numbers in scopes.items():
        last, best = numbers["final"].get("test"), (numbers["best"] or {}).get("test")
        if last is None or (scope == DOMAINS and accuracy):
            continue
        marks, mean = {moment: _mark(numbers[moment]) for moment in ("final", "best")}, weighting_of(scope)
        held = last if accuracy else last[metric]
        at_best = "-"
        if best is not None:
            value = (best if accuracy else best[metric])[mean]
            at_best = f"{shown(value)}{marks['best']} @{numbers['best']['round']}"
        rest = [shown(held[name]) for name in columns.values()] + ([] if accuracy else [str(held["ranked"])])
        table.add_row(scope, shown(held[mean]) + marks["final"], at_best, *rest)
    return table


def _numbers(title: str, names: Sequence[str], numbers: Sequence[str]) -> Table:
    """Makes a table that stays readable on a terminal of 80 columns: names, then numbers."""
    table = Table(title=title or None, title_justify="left", box=None, padding=(0, 2, 0, 0), pad_edge=False)
    for name in names:
        table.add_column(name, no_wrap=True)
    for name in numbers:
        table.add_column(name, justify="right", no_wrap=True)
    return table


def _percent(value: float | None) -> str:
    return "-" if value is None else f"{100 * value:.2f}"


def _four_digits(value: float | None) -> str:
    return "-" if value is None else f"{value:.4g}" if abs(value) < 1e4 else f"{value:,.0f}"


def _mark(numbers: Mapping[str, Any] | None) -> str:
    """Marks numbers of a round in which not all clients were evaluated."""
    return SAMPLED if EVALUATED in (numbers or {}) else ""


def title_of_run(summary: Mapping[str, Any], config: Config) -> str:
    """Returns method, dataset, clients, rounds and models of a run, in a line."""
    models = ", ".join(shown_name(model.name) for model in config.models())
    what = f"{summary['dataset']}{' (synthetic)' if summary['synthetic'] else ''}: {summary['clients']} clients"
    return f"{shown_name(config.algorithm.name)} on {what}, {summary['rounds']} rounds, {models}"


def short(number: float) -> str:
    """Formats a number with two significant digits, or all before the point."""
    return f"{number:.2g}" if number < 100 else f"{number:,.0f}"


def short_size(count: float) -> str:
    """Formats bytes for people, with three digits at most."""
    number, unit = size(count).split(" ")
    return f"{float(number):.0f} {unit}" if float(number) >= 100 else f"{number} {unit}"


def _line(text: str, whole: bool = False) -> None:
    """Prints a line, which a terminal wraps between words; one that is copied stays `whole`."""
    console.print(text, highlight=False, soft_wrap=whole or not console.is_terminal)
