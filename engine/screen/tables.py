"""Tables for people."""

import shlex
from collections.abc import Mapping, Sequence
from itertools import islice
from pathlib import Path
from statistics import fmean
from typing import Any

from rich.console import Console
from rich.table import Table

from shoal.engine.config.config import Config, load_config
from shoal.engine.config.sections import BOTH, DOMAINS, EVALUATED, RANKINGS
from shoal.engine.config.sizes import size
from shoal.engine.records.metrics import METRICS, read_metrics
from shoal.engine.records.run_folder import read_summary, require_whole_metrics
from shoal.engine.records.summary import OF_SAMPLES, PARTS, SAMPLED, chosen, metric_of, scopes_apart
from shoal.engine.screen.progress import PLAIN
from shoal.storage.options.masking import masks
from shoal.storage.store.client_table import BoundaryRecord
from shoal.storage.store.manifest import Manifest
from shoal.storage.store.store import TRAINING

NARROWEST = 100
# Of classes that have names, and of features.
SHOWN_CLASSES, SHOWN_FEATURES = 20, 5
# Of methods to try next.
MOST_NAMED = 4
# Wrapped by a narrow terminal, a table loses nothing; cut to its width it would.
console = Console(width=None if Console().width >= NARROWEST else NARROWEST, **PLAIN)

# Predicted items, by task.
ITEMS = {"node": "nodes", "edge": "pairs", "graph": "graphs"}
CAPTION = (
    "test accuracy in %: last round and best validation round, weighted by all {items} of\n"
    "a client; last round weighted by test {items}, plain mean over clients, macro-F1;\n"
    "minimum, median, maximum over clients. trained: after the last local step;\n"
    "deployed: what a client would deploy now; global: the server's model"
)


def show_run(run: Path) -> None:
    """The table that a finished run ends with."""
    summary = read_summary(run)
    config = load_config(run)
    kind = " (synthetic)" if summary["synthetic"] else ""
    title = (
        f"{config.algorithm.name} on {summary['dataset']}{kind}: {summary['clients']} clients, "
        f"{summary['rounds']} rounds, {', '.join(model.name for model in config.models())}"
    )
    table = _numbers(title, ["scope"], ["final", "best val", "tests", "clients", "F1", "min", "median", "max"])
    for scope, numbers in summary["scopes"].items():
        last, best = numbers["final"].get("test"), (numbers["best"] or {}).get("test")
        if last is None or scope == DOMAINS:
            continue
        marks = {moment: _mark(numbers[moment]) for moment in ("final", "best")}
        at_best = f"{_percent(best['nodes'])}{marks['best']} @{numbers['best']['round']}" if best else "-"
        rest = [_percent(last[key]) for key in ("rows", "clients", "f1", "min", "median", "max")]
        table.add_row(scope, _percent(last["nodes"]) + marks["final"], at_best, *rest)
    console.print(table)
    _line(CAPTION.format(items=ITEMS[config.task]))
    if any(map(_mark, (numbers[moment] for numbers in summary["scopes"].values() for moment in ("final", "best")))):
        _line(OF_SAMPLES)
    points, why = scopes_apart(summary, config)
    if why:
        _line(f"deployed and global are apart, {points:.1f} points: {why}")
    if (metric := ranking_of(summary["scopes"])) is not None:
        console.print(ranking_table(summary["scopes"], metric))
        _line(OF_RANKINGS)
    if DOMAINS in summary["scopes"]:
        console.print(domain_table(summary["scopes"][DOMAINS]))
        _line(OF_DOMAINS)
    traffic, scalars, seconds = summary["bytes"], summary["scalars"], summary["seconds"]
    each = " and ".join(
        f"{size(traffic[f'{way}_per_client_round'])} {way} ({scalars[f'{way}_per_client_round']:,.0f} scalars)"
        for way in ("up", "down")
    )
    if "exchange" in traffic:
        _line(f"hops over edges between clients: {size(traffic['exchange'])} of sums sent once, before round 1")
    _line(f"sent by a client and round: {each}; in all {size(traffic['up'])} up, {size(traffic['down'])} down")
    kernels = f", {ready:.1f} s more to compile kernels" if (ready := seconds.get("kernels", 0.0)) >= 0.05 else ""
    _line(f"{seconds['round_median']:.3f} s a round (median), {seconds['rounds']:.1f} s in all rounds{kernels}")
    spent = {part: f"{seconds[part]:.1f} s" for part in PARTS}
    _line(
        f"hosts: {spent['train']} training, {spent['evaluate']} evaluating, {spent['upload']} preparing uploads; "
        f"server: {spent['aggregate']} aggregating, {spent['transfer']} sending and receiving, {spent['wait']} waiting"
        + (f"; {seconds['checkpoint']:.1f} s writing checkpoints" if "checkpoint" in seconds else "")
    )
    if busy := summary.get("busy_seconds"):
        shares = [100 * spent / max(seconds["rounds"], 1e-9) for spent in busy.values()]
        _line(f"hosts worked {fmean(shares):.0f} % of the rounds' seconds, the least busy one {min(shares):.0f} %")
    held = ", ".join(f"{process} {size(count)}" for process, count in summary["resident_bytes"].items())
    lost = f"; {summary['retries']} times a cell was lost with its host" if summary["retries"] else ""
    _line(
        f"peak memory {size(summary['peak_memory_bytes'])}, all processes, each page of memory once (resident, with "
        f"pages that others hold, too: {held}){lost}"
    )
    # Summaries of before have no such count.
    if (left_out := summary.get("left_out", {})).get("visits"):
        _line(
            f"left out: {left_out['visits']} visits of {left_out['clients']} clients, which failed "
            f"(engine.on_client_error: skip); why is in {METRICS}"
        )
    _line(f"run folder: {run}")


def show_next(config_path: str, overrides: Sequence[str], config: Config, run: Path | str) -> None:
    """Prints commands to try after a run, with its overrides, but those of the keys that a command sets."""
    folder = shlex.quote(str(run))
    given = {key: value for key, _, value in (override.partition("=") for override in overrides)}

    def again(command: str, *sets: str) -> str:
        kept = [f"{key}={value}" for key, value in given.items() if key not in sets and key.split(".")[0] not in sets]
        # What would be several values of an axis, or none, is in the config of the run folder.
        if command == "sweep" and any(not v or ("," in v and v[0] not in "[{(") for v in given.values()):
            return f"  shoal sweep {folder}"
        return f"  shoal {command} {shlex.join([config_path, *kept])}"

    _line("next:")
    models = config.models()
    if len(models) == 1:
        # It reads the code of methods, and with it torch, which takes seconds.
        from shoal.algorithms.methods.registry.load import weighing_methods

        # Some that can train any graph, with weights or without.
        names = ",".join(islice(weighing_methods(config.task), MOST_NAMED))
        key = "algorithm" if config.algorithm.options else "algorithm.name"
        _line(f"{again('sweep', 'algorithm', 'seed')} {key}={names} seed=0,1,2")
        of_model = "" if models[0].options or any(key.startswith("model") for key in given) else " model.name=sgc"
        _line(f"{again('run', 'participation.ratio', 'participation.count')} participation.ratio=0.5{of_model}")
    else:
        start = again("sweep", "heterogeneity.rule", "heterogeneity.clients", "seed")
        _line(f"{start} heterogeneity.rule=round-robin,blocks seed=0,1,2")
    board = config.run.tensorboard or any(callback.name == "tensorboard" for callback in config.callbacks)
    more = f", tensorboard --logdir {shlex.quote(config.run.root)}" if board and isinstance(run, Path) else ""
    _line(f"  shoal export {folder}, shoal inspect {folder}{more}")


def show_store(place: object, manifest: Manifest) -> None:
    """Prints the content of a store, and the quality of its partition; `place` is its folder or address."""
    kind = " (synthetic)" if manifest.synthetic else ""
    weighted = ", weighted" if manifest.weighted else ""
    hidden = "" if manifest.pairs is None else " for training, those held out not counted"
    table = Table(title=f"store {place}", show_header=False)
    quality = manifest.quality
    clients = manifest.clients
    entries, nodes, labelled, items = (clients.count(name) for name in ("entries", "nodes", "labelled", "items"))
    dataset = manifest.identity.get("dataset", {})
    density = "dense"
    if manifest.layout == "sparse":
        density = f"sparse, {100 * manifest.feature_values / (manifest.nodes * manifest.features):.1f} % stored"
    graphs = held = ""
    if manifest.item_name != "node":
        graphs = f"{manifest.items:,} {manifest.item_name}s, "
        held = f"{min(items):,} to {max(items):,} {manifest.item_name}s and "
    classes = (clients.columns["classes"] > 0).sum(1)
    names = [f"{number} {name}" for number, name in enumerate(manifest.label_names or ())]
    rows = {
        "dataset": f"{manifest.name}{kind}: {graphs}{manifest.nodes:,} nodes, {manifest.features} features "
        f"({manifest.dtype}, {density}), {manifest.classes} classes",
        "partition": _listed(manifest.identity["partition"]),
        "clients": f"{len(nodes)}, of {held}{min(nodes):,} to {max(nodes):,} nodes "
        f"(largest over mean {quality['balance']:.3f})",
        "edges kept": f"{entries.sum() // 2:,} undirected{weighted}{hidden}; cut {100 * quality['cut_fraction']:.1f} %",
        "labels": f"{labelled.sum():,} labelled {manifest.item_name}s, "
        f"{min(labelled):,} to {max(labelled):,} a client; "
        f"classes a client {min(classes)} to {max(classes)}",
        "label skew": f"{quality['label_skew']:.3f} (mean total variation distance to all labels)",
        **({"features": abridged(manifest.feature_names)} if manifest.feature_names else {}),
        **({"features": f"made: {_listed(made)}"} if (made := dataset.get("made_features")) else {}),
        **({"classes": abridged(names, SHOWN_CLASSES)} if names else {}),
        "splits": ", ".join(
            f"{name} ({' / '.join(f'{part:,}' for part in split.counts.sum(0))})"
            for name, split in manifest.splits.items()
        ),
        **({"inductive": "these are the training nodes of clients"} if TRAINING in manifest.identity else {}),
        **({"masked": lacking} if (lacking := masks(manifest.identity.get("sparsity", {}))) else {}),
        "hops": ", ".join(manifest.hops) or "none",
        **{f"cross edges {name}": _cross_edges(manifest, of) for name, of in manifest.boundaries.items()},
        "size": size(clients.files.total) + " of shards",
    }
    for name, text in rows.items():
        table.add_row(name, text)
    console.print(table)


def _cross_edges(manifest: Manifest, record: BoundaryRecord) -> str:
    edges, sums, of_one, known, same = record.counts.sum(0).tolist()
    of_class = f", {100 * same / known:.1f} % of those with labels join nodes of one class" if known else ""
    return (
        f"{edges // 2:,} undirected, {min(record.counts[:, 0]):,} to {max(record.counts[:, 0]):,} a client{of_class}; "
        f"{sums:,} sums a hop ({size(record.hop_bytes(manifest.features))}), {of_one:,} of one neighbour"
    )


def _listed(options: Mapping[str, Any]) -> str:
    return ", ".join(f"{key} {value}" for key, value in options.items())


def abridged(names: Sequence[str], most: int = SHOWN_FEATURES) -> str:
    """The first `most` names, and the last of them all."""
    shown = ", ".join(names[:most])
    return shown if len(names) <= most else f"{shown}, … {names[-1]}"


def show_rounds(run: Path, last: int = 10) -> None:
    """The newest rounds of a run, finished or not."""
    require_whole_metrics(run)
    lines = read_metrics(run)
    parts = [part for line in lines for scope in line.get("scopes", {}).values() for part in scope.values()]
    metric = RANKINGS.get(metric_of(parts[-1]) if parts else "", "accuracy")
    heads = ("round", "cohort", "loss", "trained", "deployed", "seconds", "up", "down")
    table = _numbers(f"{run}: {len(lines)} rounds logged; validation {metric} in %", [], heads)
    for line in lines[-last:]:
        scored = {scope: line.get("scopes", {}).get(scope, {}).get("val") for scope in ("trained", "deployed")}
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


# Columns, by the names of rates and of their means over domains.
RATES = {
    "accuracy": ("accuracy", "clients"),
    "F1": ("f1", "f1_clients"),
    "balanced": ("balanced", "balanced"),
    "AUC": ("auc", "auc"),
    "majority": ("majority", "majority"),
}
OF_DOMAINS = (
    "in %, of a whole graph with all its edges; F1 is the mean over classes, balanced the mean\n"
    "recall, AUC the mean area under the ROC curve of each class against the others; majority:\n"
    "the share of the domain's largest class; constant: one class for all domains"
)


def domain_table(scope: Mapping[str, Any]) -> Table:
    """A row a domain, their mean, and the best constant class: of the best round, the last, the last five."""
    table = _numbers("the server's model on the whole graph of every domain", ["rounds", "domain"], list(RATES))
    best, last, five = scope["best"], scope["final"], scope["last_five"]
    rounds = five["rounds"]
    blocks = [
        (f"best val @{best['round']}, test" if best else "", (best or {}).get("test")),
        (f"last @{last['round']}, test", last.get("test")),
        (f"mean of {len(rounds)} to @{rounds[-1] if rounds else 0}, {BOTH}", five if rounds else None),
    ]
    for label, numbers in blocks:
        if numbers is None:
            continue
        for place, (name, rates) in enumerate(numbers[DOMAINS].items()):
            table.add_row(label if place == 0 else "", name, *(_percent(rates[rate]) for rate, _ in RATES.values()))
        table.add_row("", "mean", *(_percent(numbers[mean]) for _, mean in RATES.values()))
        table.add_row("", f"constant {numbers['constant_class']}", _percent(numbers["constant"]))
    return table


# Columns, by the names of weightings.
LAST = {"tests": "rows", "clients": "clients", "min": "min", "median": "median", "max": "max"}
OF_RANKINGS = (
    "in %, of the test items of each client among themselves, and over the clients whose test\n"
    "items are of both classes (ranked): last round and the round of the best on validation,\n"
    "weighted by all items of a client, domains by their plain mean; last round weighted by\n"
    "test items, plain mean over clients; minimum, median, maximum"
)


def ranking_of(scopes: Mapping[str, Any]) -> str | None:
    """The metric of a summary's scopes if that is not accuracy, else None."""
    found = {metric_of(part) for scope in scopes.values() for part in scope["final"].values() if isinstance(part, dict)}
    return next((metric for metric in RANKINGS if metric in found), None)


def ranking_table(scopes: Mapping[str, Any], metric: str) -> Table:
    """A row a scope of a summary, by the metric of the run."""
    table = _numbers(f"test {RANKINGS[metric]}", ["scope"], ["final", "best val", *LAST, "ranked"])
    for scope, numbers in scopes.items():
        last, best = numbers["final"].get("test"), (numbers["best"] or {}).get("test")
        if last is None:
            continue
        mark = _mark(numbers["best"])
        at_best = _percent(chosen(best, scope)) + f"{mark} @{numbers['best']['round']}" if best else "-"
        rest = [_percent(last[metric][weighting]) for weighting in LAST.values()]
        table.add_row(
            scope, _percent(chosen(last, scope)) + _mark(numbers["final"]), at_best, *rest, str(last[metric]["ranked"])
        )
    return table


def _numbers(title: str, names: Sequence[str], numbers: Sequence[str]) -> Table:
    """A table that stays readable on 80 columns: columns of names, then of numbers."""
    table = Table(title=title, title_justify="left", box=None, padding=(0, 2, 0, 0), pad_edge=False)
    for name in names:
        table.add_column(name, no_wrap=True)
    for name in numbers:
        table.add_column(name, justify="right", no_wrap=True)
    return table


def _percent(value: float | None) -> str:
    return "-" if value is None else f"{100 * value:.2f}"


def _mark(numbers: Mapping[str, Any] | None) -> str:
    """Marks numbers of a round in which not all clients were evaluated."""
    return SAMPLED if EVALUATED in (numbers or {}) else ""


def _line(text: str) -> None:
    console.print(text, highlight=False, soft_wrap=True)
