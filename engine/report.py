"""Tables for people."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml
from rich.console import Console
from rich.table import Table

from engine.run_folder import CONFIG, read_metrics, read_summary
from storage.manifest import Manifest

console = Console()

SCOPES = {
    "trained": "after a client's last local step",
    "served": "what a client would deploy now",
    "global": "the server's model",
}


def show_run(run: Path) -> None:
    """The table that a finished run ends with."""
    summary = read_summary(run)
    config = yaml.safe_load((run / CONFIG).read_text())
    kind = " (synthetic)" if summary["synthetic"] else ""
    title = (
        f"{config['algorithm']['name']} on {summary['dataset']}{kind}: {summary['clients']} clients, "
        f"{summary['rounds']} rounds, {config['model']['name']}"
    )
    table = Table(title=title, caption="test accuracy in %; mean weighted by all nodes of a client unless said")
    table.add_column("scope")
    for name in ("last round", "best validation", "test-weighted", "plain mean", "macro-F1", "client min", "median", "max"):
        table.add_column(name, justify="right")
    for scope, numbers in summary["scopes"].items():
        last, best = numbers["last"].get("test"), (numbers["best"] or {}).get("test")
        if last is None:
            continue
        chosen = f"{_percent(best['nodes'])} (round {numbers['best']['round']})" if best else "-"
        rest = [_percent(last[key]) for key in ("rows", "clients", "f1", "min", "median", "max")]
        table.add_row(f"{scope}: {SCOPES[scope]}", _percent(last["nodes"]), chosen, *rest)
    console.print(table)
    traffic, seconds = summary["bytes"], summary["seconds"]
    _line(
        f"sent by a client and round: {size(traffic['up_per_client_round'])} up, "
        f"{size(traffic['down_per_client_round'])} down; in all {size(traffic['up'])} up, {size(traffic['down'])} down"
    )
    _line(
        f"{seconds['round_median']:.3f} s a round (median), {seconds['wall']:.1f} s in all, "
        f"peak memory of all processes {size(summary['peak_memory_bytes'])}"
    )
    _line(f"run folder: {run}")


def show_next(config_path: str) -> None:
    """What to try after a run."""
    _line("next:")
    _line(f"  shoal sweep {config_path} algorithm.name=local,fedavg,fedgta,global seed=0,1,2")
    _line(f"  shoal run {config_path} participation.ratio=0.5 model.name=sgc")
    _line("  shoal export RUN, shoal inspect RUN, tensorboard --logdir runs")


def show_sweep(runs: Sequence[tuple[Path, dict[str, Any]]]) -> None:
    """One row a finished run of a sweep: the swept keys, then accuracies at the best-validation and last round."""
    keys = sorted({key for _, overrides in runs for key in overrides})
    table = Table(title="test accuracy in %, weighted by all nodes: at the best-validation round / in the last round")
    for key in keys:
        table.add_column(key)
    summaries = [(overrides, read_summary(run)) for run, overrides in runs]
    scopes = [scope for scope in SCOPES if any(scope in summary["scopes"] for _, summary in summaries)]
    for name in (*scopes, "s/round", "up", "down"):
        table.add_column(name, justify="right")
    for overrides, summary in summaries:
        cells = [str(overrides.get(key, "")) for key in keys]
        for scope in scopes:
            numbers = summary["scopes"].get(scope)
            if numbers is None or "test" not in numbers["last"]:
                cells.append("-")
                continue
            best = _percent(numbers["best"]["test"]["nodes"]) if numbers["best"] else "-"
            cells.append(f"{best} / {_percent(numbers['last']['test']['nodes'])}")
        traffic = summary["bytes"]
        cells.append(f"{summary['seconds']['round_median']:.3f}")
        cells += [size(traffic["up_per_client_round"]), size(traffic["down_per_client_round"])]
        table.add_row(*cells)
    console.print(table)


def show_store(path: Path, manifest: Manifest) -> None:
    """What a store holds, and the quality of its partition."""
    kind = " (synthetic)" if manifest.synthetic else ""
    entries = sum(client.entries for client in manifest.clients)
    table = Table(title=f"store {path}", show_header=False)
    quality = manifest.quality
    nodes = [client.nodes for client in manifest.clients]
    classes = [sum(count > 0 for count in client.classes) for client in manifest.clients]
    rows = {
        "dataset": f"{manifest.name}{kind}: {manifest.nodes:,} nodes, {manifest.features} features ({manifest.dtype}), {manifest.classes} classes",
        "partition": ", ".join(f"{key} {value}" for key, value in manifest.identity["partition"].items()),
        "clients": f"{len(nodes)}, of {min(nodes):,} to {max(nodes):,} nodes (largest over mean {quality['balance']:.3f})",
        "edges kept": f"{entries // 2:,} undirected; cut {100 * quality['cut_fraction']:.1f} %",
        "labels": f"{sum(c.labelled for c in manifest.clients):,} labelled nodes, {min(c.labelled for c in manifest.clients):,} to "
        f"{max(c.labelled for c in manifest.clients):,} a client; classes a client {min(classes)} to {max(classes)}",
        "label skew": f"{quality['label_skew']:.3f} (mean total variation distance to all labels)",
        "splits": ", ".join(
            f"{name} ({' / '.join(f'{sum(part):,}' for part in zip(*split.counts))})" for name, split in manifest.splits.items()
        ),
        "hops": ", ".join(manifest.hops) or "none",
        "size": size(sum(client.file.bytes for client in manifest.clients)) + " of shards",
    }
    for name, text in rows.items():
        table.add_row(name, text)
    console.print(table)


def show_rounds(run: Path, last: int = 10) -> None:
    """The newest rounds of a run, finished or not."""
    lines = read_metrics(run)
    table = Table(title=f"{run}: {len(lines)} rounds logged")
    for name in ("round", "cohort", "loss", "trained val", "served val", "seconds", "up", "down"):
        table.add_column(name, justify="right")
    for line in lines[-last:]:
        accuracy = [line.get("scopes", {}).get(scope, {}).get("val", {}).get("nodes") for scope in ("trained", "served")]
        table.add_row(
            str(line["round"]),
            str(len(line["cohort"])),
            "-" if line["loss"] is None else f"{line['loss']:.4f}",
            *("-" if value is None else _percent(value) for value in accuracy),
            f"{line['seconds']['round']:.3f}",
            size(line["bytes_up"]),
            size(line["bytes_down"]),
        )
    console.print(table)


def size(count: float) -> str:
    """Bytes for people, in powers of 1024."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if count < 1024:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1024
    return f"{count:.1f} TiB"


def _percent(value: float) -> str:
    return f"{100 * value:.2f}"


def _line(text: str) -> None:
    console.print(text, highlight=False, soft_wrap=True)
