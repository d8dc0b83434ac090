"""What a client's visit costs by method, in processor time: training and upload, and scoring, beside Local.

    python benchmarks/method_visits.py [--graphs cora computers] [--methods adafgl fedpg fedgkc] [--model gcn]
                                       [--trainer auto] [--epochs 3] [--rounds 12] [--repeats 3]

Ten METIS clients of real graphs of $SHOAL_DATA; a model of two layers of width 64, FedGKC's copilot is one, too.
Methods take turns in one process with one thread. A turn is a short run, and its time is the median, over the rounds
of its second half, of the mean over clients; the multiple is the median over turns. AdaFGL trains alone by then.
"""

import argparse
import contextlib
import io
from collections.abc import Iterator
from statistics import mean, median
from tempfile import TemporaryDirectory
from time import process_time
from typing import Any
from unittest.mock import patch

import torch
from figures import print_figures
from rich.console import Console
from rich.table import Table

from shoal.engine.config.config import parse_config
from shoal.engine.hosts.host import Visit
from shoal.engine.runs.run import run

CLIENTS = 10
OPTIONS: dict[str, dict[str, Any]] = {
    "adafgl": {"shared_rounds": 1},
    "fedgkc": {"copilot": {"name": "gcn", "hidden": 64, "head": "linear"}},
}
PARTS = ("train", "upload", "score")


@contextlib.contextmanager
def timed(spent: dict[str, list[float]]) -> Iterator[None]:
    """Inside the block, adds the processor seconds of every visit's parts."""
    with contextlib.ExitStack() as stack:
        for part in PARTS:
            stack.enter_context(patch.object(Visit, part, _timed(getattr(Visit, part), spent[part])))
        yield


def _timed(function: Any, spent: list[float]) -> Any:
    def timed(self: Visit) -> Any:
        began = process_time()
        found = function(self)
        spent.append(process_time() - began)
        return found

    return timed


def turn(method: str, graph: str, folder: str, args: argparse.Namespace) -> dict[str, float]:
    """Milliseconds of the parts of a visit in a run."""
    plain = {
        "name": f"visits-{graph}-{method}",
        "rounds": args.rounds,
        "data": {"dataset": graph},
        "partition": {"method": "metis", "clients": CLIENTS},
        "model": {"name": args.model, "hidden": 64, "head": "linear"},
        "train": {"epochs": args.epochs},
        "algorithm": {"name": method, **OPTIONS.get(method, {})},
        "evaluation": {"every": 1},
        "engine": {"backend": "local", "trainer": args.trainer},
        "run": {"root": folder, "checkpoint_every": args.rounds, "tensorboard": False},
    }
    spent: dict[str, list[float]] = {part: [] for part in PARTS}
    with timed(spent), contextlib.redirect_stdout(io.StringIO()):
        run(parse_config(plain, "benchmark"))
    found = {}
    for part, seconds in spent.items():
        rounds = [mean(seconds[i : i + CLIENTS]) for i in range(0, len(seconds), CLIENTS)]
        found[part] = 1000 * median(rounds[len(rounds) // 2 :])
    return {"visit": found["train"] + found["upload"], **found}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--graphs", nargs="*", default=["cora", "computers"])
    parser.add_argument("--methods", nargs="*", default=["adafgl", "fedpg", "fedgkc"])
    parser.add_argument("--model", default="gcn")
    parser.add_argument("--trainer", default="auto", help="engine.trainer")
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--rounds", type=int, default=12)
    parser.add_argument("--repeats", type=int, default=3)
    args = parser.parse_args()
    torch.set_num_threads(1)
    table = Table(title=f"a visit of {args.epochs} steps, {args.model}, medians of {args.repeats} turns")
    for column in ("graph", "method", "visit ms", "train", "upload", "score", "visit, Local = 1"):
        table.add_column(column, no_wrap=True, justify="left" if column in ("graph", "method") else "right")
    figures: dict[str, Any] = {}
    for graph in args.graphs:
        turns: dict[str, list[dict[str, float]]] = {method: [] for method in ("local", *args.methods)}
        for _ in range(args.repeats):
            for method, found in turns.items():
                with TemporaryDirectory() as folder:
                    found.append(turn(method, graph, folder, args))
        for method, found in turns.items():
            ms = [f"{median(each[part] for each in found):.2f}" for part in ("visit", *PARTS)]
            times = median(own["visit"] / local["visit"] for own, local in zip(found, turns["local"]))
            table.add_row(graph, method, *ms, f"{times:.2f}")
            figures[f"{graph} {method}"] = {"turns": found, "times": times}
    Console(width=110).print(table)
    print_figures(figures, {})


if __name__ == "__main__":
    main()
