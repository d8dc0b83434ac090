"""OpenFGL's five tasks beside ours: Local and FedAvg on the same clients, items, sizes and rounds.

    benchmarks/peers.sh runs/peers
    python benchmarks/five_tasks.py --peers runs/peers --out runs/five-tasks.csv [node edge cluster graph regression]

A task has three sides: OpenFGL's (`theirs`), its trainer with our model and loss (`theirs, our model`), and ours. A
score is that of test items at the round with the best validation score, weighted by the items of clients. A line is
written when its run is over, and a run that is in the file is not played again.
"""

import argparse
import csv
import json
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

import shoal
from shoal.engine.config.config import parse_config
from shoal.engine.messages.job import make_job
from shoal.engine.preparing.prepare import prepare
from shoal.storage.graph.sparse_matrix import SparseMatrix
from shoal.storage.shards.view import Cache

ROOT = Path(__file__).resolve().parent
SEEDS = (0, 1, 2)
PARTS = ("train", "val", "test")
SIDES = ("theirs", "theirs, our model", "ours")
METHODS = {"local": "isolate", "fedavg": "fedavg"}
COLUMNS = ("task", "side", "method", "seed", "scope", "metric", "round", "score")
# Graphs of clients are those of Louvain, but for graphs of nodes, which are dealt out at random.
NODES = {"partition": {"method": "louvain", "clients": 10}}
GRAPHS = {
    "task": "graph",
    "partition": {"method": "random", "clients": 5},
    "model": {"name": "gin", "readout": "mean"},
}


# Validation and test scores of rounds, by scope and part.
Curves = dict[str, dict[str, list[float]]]


class Run(NamedTuple):
    """One run of a task."""

    side: str
    method: str
    seed: int


@dataclass(frozen=True)
class Case:
    """A task as both sides play it.

    Attributes:
        metric: Our name of the score.
        rounds: Rounds, each of `epochs` epochs of Adam with rate `lr`.
        batch: Graphs of a step; None: all items.
        sections: Sections of our config.
    """

    metric: str
    rounds: int
    sections: dict[str, Any]
    lr: float = 0.01
    batch: int | None = None
    epochs: int = 3
    every: int = 5

    def plain(self, folder: Path, method: str, seed: int) -> dict[str, Any]:
        """Returns our config."""
        return {
            "name": "five-tasks",
            "seed": seed,
            "rounds": self.rounds,
            "algorithm": method,
            "train": {"epochs": self.epochs, "lr": self.lr, "batch_size": self.batch},
            "evaluation": {"every": self.every, "metrics": [self.metric]},
            "engine": {"backend": "local"},
            "run": {"root": str(folder / "runs"), "tensorboard": False},
            **{key: value for key, value in self.sections.items() if key != "data"},
            "data": {"store": str(folder / "store"), **self.sections["data"]},
        }


def cases(graph: str, molecules: str, layers: int) -> dict[str, Case]:
    """Returns all tasks by name; `graph` has the nodes and edges, `molecules` is a table of ESOL."""
    nodes = {**NODES, "model": {"name": "gcn", "layers": layers}}
    of_nodes = {**nodes, "data": {"dataset": graph}}
    shares = {"fractions": [0.8, 0.1, 0.1]}
    of_graphs, numbers = {"dataset": "proteins", "fractions": [0.4, 0.3, 0.3]}, {"dataset": "files", "path": molecules}
    return {
        "node": Case("accuracy", 30, of_nodes),
        "edge": Case("roc_auc", 20, {**nodes, "task": "edge", "data": {"dataset": graph, **shares}}),
        "cluster": Case("nmi", 8, {**of_nodes, "target": "clustering"}, every=2),
        "graph": Case("accuracy", 15, {**GRAPHS, "data": of_graphs}, batch=128),
        "regression": Case(
            "r2",
            20,
            {
                **GRAPHS,
                "target": "regression",
                "data": {**numbers, "split": "per_client", "fractions": [0.5, 0.25, 0.25]},
            },
            lr=0.001,
            batch=32,
        ),
    }


def lay_out(case: Case, folder: Path) -> dict[str, Any]:
    """Writes the clients of our store as the peer reads them; returns what it is told of them."""
    config = parse_config(case.plain(folder, "fedavg", 0), "benchmark")
    store = prepare(config)
    job = make_job(config, store, "five")
    clients = folder / "clients"
    clients.mkdir(exist_ok=True)
    items = []
    for client in range(store.clients):
        shard, view = store.shard(client), job.view(store, client, Cache(0))
        starts, columns = view.csr
        row = np.repeat(np.arange(view.nodes), np.diff(starts))
        part = np.zeros(view.items, dtype=np.int8)
        for number, name in enumerate(PARTS, start=1):
            part[getattr(view, name).numpy()] = number
        label = shard.item_label if shard.target is None else shard.target[:, 0]
        arrays = {"edge_index": np.stack([row, columns]).astype(np.int64), "part": part, "node": view.node}
        arrays |= {"x": dense(view.x), "y": label.astype(np.int64 if shard.target is None else np.float32)}
        if view.graph_ptr is not None:
            arrays["ptr"] = view.graph_ptr.numpy()
        if shard.pairs is not None:
            arrays |= {"ends": shard.pairs.ends.astype(np.int64), "pair_label": shard.pairs.label}
            # Labels of nodes are not read.
            arrays["y"] = np.zeros(view.nodes, dtype=np.int64)
        np.savez(clients / f"{client}.npz", **arrays)
        items.append(view.items)
    if case.metric == "r2":
        standardise(clients)
    classes = 1 if case.metric == "r2" else int(store.manifest.classes)
    return {"root": str(clients), "items": items, "classes": classes}


def standardise(clients: Path) -> None:
    """Gives numbers the mean 0 and spread 1 of the training items of all clients, which is what our training sees."""
    files = {path: dict(np.load(path)) for path in sorted(clients.glob("*.npz"))}
    seen = np.concatenate([arrays["y"][arrays["part"] == 1] for arrays in files.values()])
    for path, arrays in files.items():
        np.savez(path, **{**arrays, "y": (arrays["y"] - seen.mean()) / seen.std()})


def dense(x_NF: Any) -> np.ndarray:
    """Returns features as an array of float32."""
    return (x_NF.to_dense() if isinstance(x_NF, SparseMatrix) else x_NF).float().numpy()


def told_of(case: Case, name: str, run: Run, told: dict[str, Any]) -> dict[str, Any]:
    """Returns what the peer is told of a run."""
    ours = run.side != "theirs"
    return {
        **{key: value for key, value in told.items() if key != "items"},
        **{"kind": name, "seed": run.seed, "fl_algorithm": METHODS[run.method], "num_clients": len(told["items"])},
        **{"model": ["gin" if "task" in case.sections and case.sections["task"] == "graph" else "gcn"]},
        **{"num_rounds": case.rounds, "num_epochs": case.epochs, "lr": case.lr, "batch_size": case.batch or 128},
        **{"weight_decay": 5e-4, "dropout": 0.5, "hid_dim": 64, "num_layers": 2, "num_clusters": told["classes"]},
        **{"layers": case.sections["model"].get("layers", 2)},
        **{"ours": ours, "starts": 10 if ours else 1, "every": case.every},
    }


def play_theirs(
    case: Case, name: str, runs: Sequence[Run], told: dict[str, Any], peers: Path
) -> Iterator[tuple[Run, Curves]]:
    """Plays runs of OpenFGL in one process; yields validation and test scores of rounds by scope."""
    asked = json.dumps([told_of(case, name, run, told) for run in runs])
    command = [str(peers / "bin" / "python"), str(ROOT / "contenders" / "open_fgl_tasks.py"), asked]
    env = {**os.environ, "OMP_NUM_THREADS": "1"}
    with subprocess.Popen(command, env=env, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        for run, line in zip(runs, process.stdout):
            rounds = json.loads(line)
            yield (
                run,
                {
                    scope: {part: [mean_of(at[scope][part], told["items"]) for at in rounds] for part in PARTS[1:]}
                    for scope in rounds[0]
                },
            )


def mean_of(scores: Sequence[Any], items: Sequence[int]) -> float:
    """Averages scores of clients by their items; of squared errors and variances it makes R²."""
    weight = np.array(items) / sum(items)
    values = np.array(scores)
    if values.ndim == 1:
        return float(weight @ values)
    error, variance = weight @ values
    return float(1 - error / variance)


def best_of(curves: dict[str, list[float]]) -> tuple[int, float]:
    """Returns the first evaluation with the best validation score, from 0, and its test score."""
    number = int(np.argmax(curves["val"]))
    return number, curves["test"][number]


def play_ours(case: Case, folder: Path, runs: Sequence[Run]) -> Iterator[tuple[Run, Curves]]:
    """Plays our runs; yields validation and test scores of rounds by scope."""
    for run in runs:
        curves: Curves = {}
        for line in shoal.run(case.plain(folder, run.method, run.seed)).evaluations.to_pylist():
            if line["metric"] == case.metric and line["mean"] == "nodes" and line["round"]:
                curves.setdefault(line["scope"], {"val": [], "test": []})[line["part"]].append(line["value"])
        yield run, curves


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tasks", nargs="*", help="node, edge, cluster, graph, regression; default all")
    parser.add_argument(
        "--peers", type=Path, default=Path("runs/peers"), help="virtual environment of benchmarks/peers.sh"
    )
    parser.add_argument("--graph", default="cora")
    parser.add_argument("--layers", type=int, default=2, help="of our GCN; that of the peer has two for nodes")
    parser.add_argument("--seeds", type=int, default=len(SEEDS))
    parser.add_argument("--rounds", type=int, help="in place of those of each task")
    parser.add_argument("--molecules", default="molecules/esol.csv", help="table of ESOL")
    parser.add_argument("--sides", nargs="*", default=SIDES, choices=SIDES)
    parser.add_argument("--out", type=Path, default=Path("runs/five-tasks.csv"))
    args = parser.parse_args()
    args.out.parent.mkdir(parents=True, exist_ok=True)
    done = list(csv.DictReader(args.out.open())) if args.out.exists() else []
    with args.out.open("a", newline="") as out:
        writer = csv.DictWriter(out, COLUMNS)
        if not done:
            writer.writeheader()
        for name, case in cases(args.graph, args.molecules, args.layers).items():
            if args.tasks and name not in args.tasks:
                continue
            case = replace(case, rounds=args.rounds or case.rounds)
            played = {Run(line["side"], line["method"], int(line["seed"])) for line in done if line["task"] == name}
            sides = [side for side in SIDES if side in args.sides and (name, side) != ("node", SIDES[1])]
            runs = [Run(side, method, seed) for seed in SEEDS[: args.seeds] for side in sides for method in METHODS]
            runs = [run for run in runs if run not in played]
            folder = args.out.parent / name
            folder.mkdir(parents=True, exist_ok=True)
            told = lay_out(case, folder)
            theirs = [run for run in runs if run.side != "ours"]
            ours = play_ours(case, folder, [run for run in runs if run.side == "ours"])
            others = play_theirs(case, name, theirs, told, args.peers) if theirs else ()
            for run, curves in chain(ours, others):
                for scope in ("trained", "deployed"):
                    # A model that nobody averages is deployed as it was trained.
                    if scope in curves and (scope == "trained" or run.method != "local"):
                        number, score = best_of(curves[scope])
                        figures = (
                            name,
                            *run,
                            scope,
                            case.metric,
                            min(case.every * (number + 1), case.rounds),
                            round(100 * score, 2),
                        )
                        writer.writerow(dict(zip(COLUMNS, figures)))
                        print(*figures, sep="\t", file=sys.stderr)
                out.flush()


if __name__ == "__main__":
    main()
