"""What every method for nodes sends, keeps and takes, on the same 50 clients: beside FedAvg.

    python benchmarks/methods.py [--clients 50] [--nodes 100] [--rounds 12] [--runs runs/methods] [--methods …]
                                 [--graphs cora computers [--repeats 3]]

Clients of a drawn graph, `--nodes` each, 64 features and 10 classes; a GCN of two layers of width 64 with a linear
classifier, for all; one epoch of one step a round; in this process, no evaluation but the last. Bytes are those of the
summary, means over all visits. State is what the engine keeps of a client after the last round: what it was sent by
mixing included. Seconds are medians of a round of the second half over FedAvg's. FedSage+ is in its second phase there,
AdaFGL in the personal one, GCFL+ past its warm-up.

With `--graphs` it shows instead what a round takes in this process on real graphs of $SHOAL_DATA, over a round of
Local: ten Louvain clients, a GCN of two layers of width 64 with the classifier that the method takes by default, three
epochs, one thread. Methods take turns; a turn's time is the median processor time of the rounds of its second half,
without the last, which evaluates; the multiple is the median over turns. Each has a goal; a method over its goal is
marked, and one that refuses this setting is left out.
"""

import argparse
import contextlib
import io
import sys
from pathlib import Path
from statistics import mean, median
from tempfile import TemporaryDirectory
from time import process_time
from typing import Any
from unittest.mock import patch

import torch
from figures import print_figures
from rich.console import Console
from rich.table import Table

from shoal.algorithms.methods.registry.load import methods_for
from shoal.engine.config.config import parse_config
from shoal.engine.config.sizes import size
from shoal.engine.records import checkpoint
from shoal.engine.records.metrics import read_metrics
from shoal.engine.records.run_folder import CHECKPOINTS, read_summary
from shoal.engine.rounds.server import Server
from shoal.engine.runs.plan import RunPlan
from shoal.engine.runs.run import run
from shoal.storage.errors import ShoalError

COPILOT = {"name": "gcn", "hidden": 64, "head": "linear"}
GCN = {"name": "gcn", "hidden": 64}
# Models of methods that are for these alone.
MODELS = {"fediih": {"name": "disengcn", "hidden": 64}}
# Rounds of Local that a round may take on a small graph, and on one of the size of Computers or larger.
GOALS: dict[tuple[str, ...], tuple[float, float]] = {
    ("fedprox", "scaffold", "feddc"): (1.4, 1.2),
    ("moon", "fpl", "fedproto", "fedproc", "fednh", "class_means"): (2.5, 1.5),
    ("fedpg",): (3, 2),
    ("fedgkc", "fedkd", "fml"): (8, 4),
    ("fgssl", "fggp"): (8, 5),
    ("adafgl",): (20, 11),
}
OTHERS = 15.0
SMALL = ("cora", "citeseer")


def options(rounds: int) -> dict[str, dict[str, Any]]:
    """What methods need beside their defaults, so that all their phases fit into the rounds."""
    generate = {"generator_rounds": rounds // 4}
    return {
        "fml": {"copilot": COPILOT},
        "fedkd": {"copilot": COPILOT},
        "fedgkc": {"copilot": COPILOT},
        "gcfl_plus": {"warmup": rounds // 4},
        **{f"fedsage_plus{inside}": generate for inside in ("", "_fedgta", "_moon", "_feddc")},
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
        "model": MODELS.get(method, {**GCN, "head": "linear"}),
        "train": {"epochs": 1},
        "algorithm": {"name": method, **options(args.rounds).get(method, {})},
        "evaluation": {"every": args.rounds},
        "engine": {"backend": "local"},
        "run": {"root": args.runs, "checkpoint_every": args.rounds, "tensorboard": False},
    }
    return run(parse_config(plain, "benchmark"))


def goal_of(method: str, graph: str) -> float:
    of_method = next((goals for methods, goals in GOALS.items() if method in methods), (OTHERS, OTHERS))
    return of_method[0 if graph in SMALL else 1]


def plan_of(method: str, graph: str, folder: str, rounds: int) -> RunPlan:
    plain = {
        "name": f"turn-{graph}-{method}",
        "rounds": rounds,
        "data": {"dataset": graph, "store": f"{folder}/{graph}"},
        "partition": {"method": "louvain", "clients": 10},
        "propagation": {"hops": 2},
        "model": MODELS.get(method, GCN),
        "train": {"epochs": 3},
        "algorithm": {"name": method, **options(rounds).get(method, {})},
        "evaluation": {"every": rounds},
        "engine": {"backend": "local"},
        "run": {"root": folder, "checkpoint_every": rounds, "tensorboard": False},
    }
    return RunPlan.of(parse_config(plain, "benchmark"))


def turn(plan: RunPlan) -> float:
    """Milliseconds of processor time of a round."""
    seconds: list[float] = []
    one_round = Server.round

    def timed(self: Server, *args: Any, **kwargs: Any) -> dict[str, Any]:
        began = process_time()
        line = one_round(self, *args, **kwargs)
        seconds.append(process_time() - began)
        return line

    with patch.object(Server, "round", timed), contextlib.redirect_stdout(io.StringIO()):
        run(plan, fresh=True)
    return 1000 * median(seconds[len(seconds) // 2 : -1])


def show_times_local(args: argparse.Namespace) -> None:
    torch.set_num_threads(1)
    table = Table(title="a round over one of Local, and its goal")
    for column in ("method", *(f"{graph}{what}" for graph in args.graphs for what in ("", " ms", " goal"))):
        table.add_column(column, no_wrap=True)
    found: dict[str, dict[str, float]] = {}
    with TemporaryDirectory() as folder:
        for graph in args.graphs:
            plans = {}
            for method in dict.fromkeys(["local", *args.methods]):
                try:
                    plans[method] = plan_of(method, graph, folder, args.rounds)
                except ShoalError as error:
                    print(f"left out: {method}: {error}", file=sys.stderr)
            turns = [{method: turn(plan) for method, plan in plans.items()} for _ in range(args.repeats)]
            for method in plans:
                found.setdefault(method, {})
                found[method][graph] = median(times[method] / times["local"] for times in turns)
                found[method][f"{graph} ms"] = median(times[method] for times in turns)
    for method, numbers in found.items():
        cells = []
        for graph in args.graphs:
            over = numbers[graph] > goal_of(method, graph)
            cells += [f"{numbers[graph]:.2f}{' !' if over else ''}", f"{numbers[f'{graph} ms']:.1f}"]
            cells += [f"{goal_of(method, graph):g}"]
        table.add_row(method, *cells)
    Console(width=120).print(table)
    print_figures(found, {})


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
    parser.add_argument("--graphs", nargs="*", default=[], help="times Local on these instead")
    parser.add_argument("--repeats", type=int, default=3)
    args = parser.parse_args()
    if args.graphs:
        show_times_local(args)
        return
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
