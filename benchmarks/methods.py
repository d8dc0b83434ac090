"""What every method for nodes sends, keeps and takes, on the same 50 clients: beside FedAvg.

    python benchmarks/methods.py [--clients 50] [--nodes 100] [--rounds 12] [--runs runs/methods] [--methods …]

Clients of a drawn graph, `--nodes` each, 64 features and 10 classes; a GCN of two layers of width 64 with a linear
classifier, for all; one epoch of one step a round; in this process, no evaluation but the last. Bytes are those of the
summary, means over all visits. State is what the engine keeps of a client after the last round: what it was sent by
mixing included. Seconds are medians of a round of the second half over FedAvg's. FedSage+ is in its second phase there,
AdaFGL in the personal one, GCFL+ past its warm-up.
"""

import argparse
from pathlib import Path
from statistics import mean, median
from typing import Any

from figures import print_figures
from rich.console import Console
from rich.table import Table

from shoal.algorithms.methods.registry.load import methods_for
from shoal.engine.config.config import parse_config
from shoal.engine.config.sizes import size
from shoal.engine.records import checkpoint
from shoal.engine.records.metrics import read_metrics
from shoal.engine.records.run_folder import CHECKPOINTS, read_summary
from shoal.engine.runs.run import run

COPILOT = {"name": "gcn", "hidden": 64, "head": "linear"}


def options(rounds: int) -> dict[str, dict[str, Any]]:
    """What methods need beside their defaults, so that all their phases fit into the rounds."""
    generate = {"generator_rounds": rounds // 4}
    return {
        "fml": {"copilot": COPILOT},
        "fedkd": {"copilot": COPILOT},
        "fedgkc": {"copilot": COPILOT},
        "gcfl_plus": {"warmup": rounds // 4},
        "fedsage_plus": generate,
        "fedsage_plus_fedgta": generate,
        "adafgl": {"shared_rounds": rounds // 4},
    }


def run_of(method: str, args: argparse.Namespace) -> Path:
    """The folder of the finished run."""
    plain = {
        "name": f"methods-{method}",
        "rounds": args.rounds,
        "data": {
            "dataset": "sbm",
            "root": args.runs,
            "options": {"nodes": args.clients * args.nodes, "features": 64, "classes": 10},
        },
        "partition": {"clients": args.clients},
        "propagation": {"hops": 2},
        "model": {"name": "gcn", "hidden": 64, "head": "linear"},
        "train": {"epochs": 1},
        "algorithm": {"name": method, **options(args.rounds).get(method, {})},
        "evaluation": {"every": args.rounds},
        "engine": {"backend": "local"},
        "run": {"root": args.runs, "checkpoint_every": args.rounds, "tensorboard": False},
    }
    return run(parse_config(plain, "benchmark"))


def figures_of(folder: Path, rounds: int) -> dict[str, float]:
    """Bytes of a visit, bytes kept of a client, and seconds of a round."""
    summary, lines = read_summary(folder), read_metrics(folder)
    state = checkpoint.load_last(folder / CHECKPOINTS, rounds).state
    clients = sorted({*state.clients, *state.inboxes})
    kept = [
        sum(t.nbytes for tree in (state.clients.get(i, {}), state.inboxes.get(i, {})) for t in tree.values())
        for i in clients
    ]
    return {
        "up": summary["bytes"]["up_per_client_round"],
        "down": summary["bytes"]["down_per_client_round"],
        "state": mean(kept) if kept else 0.0,
        "seconds": median(line["seconds"]["round"] for line in lines[rounds // 2 : -1]),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--clients", type=int, default=50)
    parser.add_argument("--nodes", type=int, default=100, help="of a client")
    parser.add_argument("--rounds", type=int, default=12)
    parser.add_argument("--runs", default="runs/methods")
    parser.add_argument("--methods", nargs="*", default=methods_for("node"), help="beside fedavg")
    args = parser.parse_args()
    found = {
        method: figures_of(run_of(method, args), args.rounds) for method in dict.fromkeys(["fedavg", *args.methods])
    }
    table = Table(title=f"a client and round, {args.clients} clients of {args.nodes} nodes in the mean")
    for column in ("method", "up", "down", "state", "seconds, FedAvg = 1"):
        table.add_column(column, no_wrap=True)
    for method, numbers in found.items():
        sent = [size(round(numbers[way])) for way in ("up", "down", "state")]
        table.add_row(method, *sent, f"{numbers['seconds'] / found['fedavg']['seconds']:.2f}")
    Console(width=120).print(table)
    print_figures(found, {})


if __name__ == "__main__":
    main()
