"""Seconds of a round of FedAvg: Shoal and its peers beside a bare torch loop over the same clients, in one run.

    python benchmarks/rounds.py [--quick] [--models linear mlp tiny] [--clients 10 50 200 500] [--ratio 1.0]
                                [--against local batched ray two flower pfl_research] [--pairs 9] [--peers runs/peers]
    python benchmarks/rounds.py --models gin-graphs gcn-graphs --clients 500 --ratio 0.1 [--against local ray]

The bare loop's gradients are autograd's; `benchmarks/floor.py` has those by formulas, and real graphs. A client makes
three full-batch SGD steps. `linear` and `mlp` (one hidden layer of 256) have 2,400 rows of 128 features and 172
classes, `tiny` has 54 rows of 1,433 features, 64 hidden units and 7 classes. Every contender is a process with one
thread for mathematics; it plays a round in turn with the bare loop; which of them is first alternates. `local` and
`ray` are Shoal in one process and with one host actor, `batched` is one process that trains the clients of a cell in
one batch; `two` are two host actors beside two bare loops, each over half of the clients. The interval is the one of
the median with at least 95 % (order statistics of the sign test). At the end all hold the same weights, to 1e-6
(linear) or 2e-6. `benchmarks/peers.sh` installs the peers. `gin-graphs` and `gcn-graphs` are three layers and a readout
by mean on clients of 200 graphs of COLLAB's sizes each; a round is an epoch of batches of 32, and the bare loop is
PyG's: its loader, layers and pooling on the same batches; weights are compared after the first round, to 1e-5.
"""

import argparse
import sys
from collections.abc import Iterator
from pathlib import Path
from statistics import median
from typing import Any

from contest import PEERS, SHOAL, Absent, Case, compete, interval
from drawn_case import SHAPES, DrawnCase
from figures import print_figures, target
from item_case import ITEM_MODELS, ItemCase
from rich.console import Console
from rich.table import Table

PER_CLIENT, PER_ROUND = 0.001, 0.010
ON_ITEMS = 1.1


def row(case: Case, name: str, result: dict[str, Any]) -> tuple[list[str], dict[str, Any]]:
    """One line of the table, and what is compared with targets."""
    floor, mine, ratio = result["floor"], result["rounds"], result["ratio"]
    cohort = max(1, int(case.clients * case.ratio + 1e-9))
    low, high = interval(ratio)
    over = median(m["seconds"] - f["seconds"] for f, m in zip(floor, mine))
    held = {"ratio": median(ratio), "low": low, "high": high, "per client": max(over - PER_ROUND, 0) / cohort}
    shown = [
        case.name,
        name,
        f"{median(f['seconds'] for f in floor):.4f}",
        f"{median(m['seconds'] for m in mine):.4f}",
        f"{median(ratio):.3f}",
        f"{low:.3f} – {high:.3f}",
        f"{median(f['cpu'] for f in floor):.2f} / {median(m['cpu'] for m in mine):.2f}",
        " / ".join(f"{held_bytes / 2**20:.0f}" for held_bytes in result["memory"]),
        f"{1000 * over / cohort:.2f}",
    ]
    if name in ("local", "batched", "ray"):
        outside = median(m["seconds"] - m["training"] for m in mine)
        held["outside"] = outside / cohort
        shown.append(f"{1000 * outside / cohort:.2f}")
    return shown, held


def targets_of(case: Case, held: dict[str, dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """What this case is held to."""
    found: dict[str, dict[str, Any]] = {}
    for name in (n for n in ("local", "ray") if n in held):
        if isinstance(case, ItemCase):
            found[f"{case.name}, {name}: ratio"] = target(held[name]["ratio"], ON_ITEMS, True)
        else:
            if case.clients * case.ratio >= 50 and case.model != "tiny":
                found[f"{case.name}, {name}: interval of the ratio reaches"] = target(held[name]["low"], 1.03, True)
            over = 1000 * held[name]["per client"]
            found[f"{case.name}, {name}: ms a client beyond 10 ms a round"] = target(over, 1000 * PER_CLIENT, True)
        for peer in (p for p in PEERS if p in held):
            ahead = held[peer]["ratio"] / held[name]["ratio"]
            found[f"{case.name}, {name}: times as fast as {peer}"] = target(ahead, 1.0)
    if "two" in held:
        found[f"{case.name}: two hosts, share of two bare loops"] = target(1 / held["two"]["ratio"], 0.95)
    return found


def cases(args: argparse.Namespace) -> Iterator[Case]:
    """What is to be played."""
    turns, folder = args.pairs + 1, args.folder.resolve()
    for model in args.models:
        if model in SHAPES:
            yield from (DrawnCase(model, clients, args.ratio, turns, folder) for clients in args.clients)
        else:
            yield from (ItemCase(model, clients, args.ratio, turns, folder) for clients in args.clients)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="linear and tiny, 50 clients, local: within a minute")
    parser.add_argument("--models", nargs="*", choices=(*SHAPES, *ITEM_MODELS), default=["linear"])
    parser.add_argument("--clients", nargs="*", type=int, default=[10, 50, 200])
    parser.add_argument("--ratio", type=float, default=1.0)
    parser.add_argument("--against", nargs="*", choices=(*SHOAL, *PEERS), default=["local", "ray"])
    parser.add_argument("--pairs", type=int, default=9)
    parser.add_argument("--peers", type=Path, default=Path("runs/peers"))
    parser.add_argument("--folder", type=Path, default=Path("runs/rounds"))
    args = parser.parse_args()
    if args.quick:
        args.models, args.clients, args.against = ["linear", "tiny"], [50], ["local"]
    table = Table(title=f"a round, medians of {args.pairs} pairs, one thread each")
    measured = ("bare s", "s", "ratio", "95 %", "CPU s, bare / its", "MiB, bare / its", "ms over", "ms untrained")
    for column in ("case", "contender", *measured):
        table.add_column(column, no_wrap=True, justify="left" if column in ("case", "contender") else "right")
    figures: dict[str, Any] = {}
    targets: dict[str, dict[str, Any]] = {}
    for case in cases(args):
        case.make()
        held: dict[str, dict[str, Any]] = {}
        for name in args.against:
            try:
                result = compete(case, name, args.pairs, args.peers.absolute())
            except (Absent, FileNotFoundError) as reason:
                table.add_row(case.name, f"{name}: left out")
                print(f"left out: {reason}", file=sys.stderr)
                continue
            shown, held[name] = row(case, name, result)
            table.add_row(*shown)
            figures[f"{case.name}, {name}"] = result | held[name]
        targets |= targets_of(case, held)
    Console(width=170).print(table)
    print_figures(figures, targets)


if __name__ == "__main__":
    main()
