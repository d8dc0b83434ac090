"""What the server takes of a round of every method for nodes, by the number of clients, and how it grows with them.

    python benchmarks/servers.py [--clients 50 200 500 1000] [--classes 172] [--present 0.3] [--methods …]

Rounds are real ones in this process, of a GCN of width 64. A client has a share `--present` of the classes, drawn anew
for each, with three nodes of each on a path and one more edge a node, all to train on: prototypes of classes and of
their neighbours exist. Everybody takes part. Seconds are processor time of one thread in a round, less that of visits
to clients: downloads, the method, reduction and mixing; the most of the rounds behind the first, which include each
phase of a method. Nothing is evaluated. The exponent is the growth with clients between the second size, of four, and
the last: 1 is as fast as clients. A method is marked where it grows faster and takes a time that somebody notices.
"""

import argparse
import contextlib
import io
import math
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from time import process_time

import numpy as np
import torch
from figures import print_figures, target
from methods import options as options_of_phases
from rich.console import Console
from rich.table import Table

from shoal.algorithms.methods.registry.load import methods_for
from shoal.algorithms.protocol import Tree
from shoal.engine.config.config import parse_config
from shoal.engine.hosts.backend import LocalBackend
from shoal.engine.messages.cell import Cell, Outcome
from shoal.engine.messages.job import make_job
from shoal.engine.rounds.costs import unwatched
from shoal.engine.runs.plan import RunPlan
from shoal.storage.errors import ShoalError
from shoal.storage.options.split_codes import TEST, TRAIN, VAL

NODES, FEATURES, WIDTH, ROUNDS = 3, 16, 64, 3
# Marked are methods whose server grows by more than this exponent, and takes so many seconds with the most clients.
FASTER, NOTICED = 1.2, 0.1
# A division compares all clients of a cluster once their series are full, and here it comes as soon as they are.
SERIES = 5
DIVIDES = {"warmup": SERIES - 1, "window": SERIES, "eps1": 1e9, "eps2": 0.0}
# Seconds of a server of so many clients and 172 classes, 30 % of them present.
OF_GOALS, GOALS = "500", {"fedpg": 3.0, "fedtgp": 5.0}


class TimedBackend(LocalBackend):
    """A server and a host in this process, and the processor time that the host takes.

    Attributes:
        seconds: Of all cells so far.
    """

    def __init__(self) -> None:
        super().__init__()
        self.seconds = 0.0

    def run_cells(self, cells: Sequence[Cell], shared: Tree) -> Iterator[tuple[int, Outcome]]:
        began = process_time()
        for answer in super().run_cells(cells, shared):
            self.seconds += process_time() - began
            yield answer
            began = process_time()
        self.seconds += process_time() - began


def write_clients(folder: Path, clients: int, classes: int, present: float) -> None:
    """Draws the graph of all clients into the files that a config names."""
    rng, some = np.random.default_rng(0), max(round(present * classes), 1)
    class_KJ = np.stack([rng.permutation(classes)[:some] for _ in range(clients)])
    y = np.repeat(class_KJ.reshape(-1), NODES)
    nodes, of_client = len(y), some * NODES
    assignment = np.arange(nodes) // of_client
    inside = np.arange(nodes)[np.arange(nodes) % NODES != NODES - 1]
    other = assignment * of_client + rng.integers(0, of_client, nodes)
    edges = np.stack([np.concatenate([inside, np.arange(nodes)]), np.concatenate([inside + 1, other])])
    x = rng.standard_normal((nodes, FEATURES), dtype=np.float32)
    x += rng.standard_normal((classes, FEATURES), dtype=np.float32)[y]
    split = np.full(nodes, TRAIN, dtype=np.int8)
    # These are asked for, and nobody reads them.
    split[-2:] = VAL, TEST
    folder.mkdir(parents=True)
    arrays = {"x": x, "y": y, "edge_index": edges[:, edges[0] != edges[1]], "assignment": assignment, "split": split}
    for name, array in arrays.items():
        np.save(folder / f"{name}.npy", array)


def plan_of(method: str, folder: Path, clients: int) -> RunPlan:
    """The plan of a run on the clients in a folder."""
    own = options_of_phases(8) | {"gcfl_plus": DIVIDES}
    rounds = SERIES if method == "gcfl_plus" else ROUNDS
    crossing = {"cross_edges": "two_hop"} if method == "fedgcn" else {}
    plain = {
        "name": f"servers-{method}",
        "rounds": rounds + 1,
        "data": {"dataset": "files", "path": str(folder), "store": str(folder / "store"), "split": "public"} | crossing,
        "partition": {"method": "file", "clients": clients},
        "propagation": {"hops": 2},
        "model": {"name": "gcn", "hidden": WIDTH},
        "train": {"epochs": 1},
        "algorithm": {"name": method, **own.get(method, {})},
        "evaluation": {"every": rounds + 1},
        "engine": {"backend": "local"},
        "run": {"root": str(folder / "runs"), "tensorboard": False},
    }
    return RunPlan.of(parse_config(plain, "benchmark"))


def server_seconds(plan: RunPlan) -> float:
    """Processor time of the server in the longest round but the first."""
    with contextlib.redirect_stdout(io.StringIO()):
        store = plan.prepare(repair=False)
        backend = TimedBackend()
        backend.open(make_job(plan.config, store, plan.folder.name), plan.rounds, None)
    rounds = []
    for _ in range(plan.config.rounds - 1):
        began, before = process_time(), backend.seconds
        backend.round(unwatched)
        rounds.append(process_time() - began - (backend.seconds - before))
    backend.close()
    return max(rounds[1:])


def exponent(clients: Sequence[int], seconds: Sequence[float]) -> float:
    """Growth of the seconds as a power of the clients; NaN of fewer than two sizes."""
    if len(clients) < 2:
        return math.nan
    first = len(clients) // 2 - 1
    return math.log(seconds[-1] / seconds[first]) / math.log(clients[-1] / clients[first])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--clients", type=int, nargs="+", default=[50, 200, 500, 1000])
    parser.add_argument("--classes", type=int, default=172)
    parser.add_argument("--present", type=float, default=0.3, help="share of the classes that a client has")
    parser.add_argument("--methods", nargs="*", default=methods_for("node"))
    args = parser.parse_args()
    torch.set_num_threads(1)
    found: dict[str, dict[str, float]] = {}
    with TemporaryDirectory() as name:
        for clients in args.clients:
            folder = Path(name) / str(clients)
            write_clients(folder, clients, args.classes, args.present)
            for method in args.methods:
                try:
                    seconds = server_seconds(plan_of(method, folder, clients))
                except ShoalError as error:
                    print(f"left out: {method}: {error}", file=sys.stderr)
                    continue
                found.setdefault(method, {})[str(clients)] = seconds
                print(f"{clients} clients, {method}: {seconds:.3f} s", file=sys.stderr, flush=True)
    table = Table(title=f"seconds of the server in a round, {args.classes} classes, {args.present:.0%} present")
    for column in ("method", *(f"{clients:,}" for clients in args.clients), "exponent"):
        table.add_column(column, no_wrap=True, justify="left" if column == "method" else "right")
    for method, numbers in found.items():
        seconds = [numbers[str(clients)] for clients in args.clients]
        power = exponent(args.clients, seconds)
        mark = " !" if power > FASTER and seconds[-1] > NOTICED else ""
        table.add_row(method, *(f"{one:.3f}" for one in seconds), f"{power:.2f}{mark}")
        numbers["exponent"] = power
    Console(width=120).print(table)
    goals = {
        f"{method}, {OF_GOALS} clients, s": target(found[method][OF_GOALS], goal, at_most=True)
        for method, goal in GOALS.items()
        if OF_GOALS in found.get(method, {})
    }
    print_figures(found, goals)


if __name__ == "__main__":
    main()
