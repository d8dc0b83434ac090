"""Rounds of many small clients: batches of a cell against one client after another, in processor time.

    python benchmarks/small_clients.py [--models gcn sgc gamlp] [--clients 200] [--nodes 60] [--features 64 500]

A client is a random part of a block model and makes three full-batch steps of FedAvg. The three trainers of
`engine.trainer` play one round in turn, each with the cells that it has by itself; a ratio is the median over rounds of
a trainer's time, as a share of that of `autograd`. `auto` names the trainer that `engine.trainer: auto` takes, and
`numbers` what a step of a mean client reads, by which it chooses.
"""

import argparse
import tempfile
import time
from statistics import median
from typing import Any

from rich.console import Console
from rich.table import Table

from shoal.algorithms.protocol import MODEL
from shoal.engine.config.config import Config, parse_config
from shoal.engine.hosts.backend import LocalBackend
from shoal.engine.messages.job import make_job
from shoal.engine.messages.trainers import ANALYTIC, AUTOGRAD, BATCHED
from shoal.engine.preparing.prepare import prepare
from shoal.engine.rounds.costs import unwatched
from shoal.engine.runs.plan import plan_of
from shoal.storage.errors import ShoalError


def config_of(root: str, model: str, clients: int, nodes: int, features: int, trainer: str) -> Config:
    graph = {"nodes": clients * nodes, "features": features, "classes": 7, "degree": 6.0}
    plain: dict[str, Any] = {
        "name": "small",
        "rounds": 1000,
        "data": {"dataset": "sbm", "root": root, "store": f"{root}/{features}", "options": graph},
        "partition": {"method": "random", "clients": clients},
        "propagation": {"hops": 2},
        "evaluation": {"every": 1000},
        "algorithm": {"name": "fedavg"},
        "model": {"name": model},
        "train": {"epochs": 3},
        "engine": {"backend": "local", "trainer": trainer},
    }
    return parse_config(plain, "benchmark")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="*", default=["gcn", "sgc", "gamlp"])
    parser.add_argument("--clients", type=int, default=200)
    parser.add_argument("--nodes", type=int, default=60)
    parser.add_argument("--features", type=int, nargs="*", default=[64, 500])
    parser.add_argument("--rounds", type=int, default=5)
    args = parser.parse_args()
    table = Table(title=f"{args.clients} clients of {args.nodes} nodes")
    for column in ("model", "features", "numbers", "autograd ms", ANALYTIC, BATCHED, "auto"):
        table.add_column(column)
    with tempfile.TemporaryDirectory() as root:
        for features in args.features:
            for model in args.models:
                table.add_row(model, str(features), *measured(root, model, args, features))
    Console().print(table)


def measured(root: str, model: str, args: argparse.Namespace, features: int) -> list[str]:
    """What one line of the table says of a model."""
    backends: dict[str, LocalBackend] = {}
    for trainer in (AUTOGRAD, ANALYTIC, BATCHED, "auto"):
        config = config_of(root, model, args.clients, args.nodes, features, trainer)
        store = prepare(config)
        job = make_job(config, store, f"{features}-{model}-{trainer}")
        backend = LocalBackend()
        try:
            backend.open(job, plan_of(config), None)
        except ShoalError:
            continue
        flats = [built.flat for built in job.build_models(store, job.algorithm())[MODEL]]
        infos, flat = job.infos(store), flats[0]
        if trainer == "auto":
            (chosen,) = job.trainers(store, job.algorithm(), flats)
            continue
        backend.round(unwatched)
        backends[trainer] = backend
    times: dict[str, list[float]] = {trainer: [] for trainer in backends}
    for _ in range(args.rounds):
        for trainer, backend in backends.items():
            began = time.process_time()
            backend.round(unwatched)
            times[trainer].append(time.process_time() - began)
    bare = median(times[AUTOGRAD])
    ratios = [f"{median(times[t]) / bare:.2f}" if t in times else "-" for t in (ANALYTIC, BATCHED)]
    rows = sum(info.train * len(flat.inputs) if flat.coupled is None else info.nodes for info in infos) / len(infos)
    return [f"{rows * features:,.0f}", f"{1000 * bare:.1f}", *ratios, chosen]


if __name__ == "__main__":
    main()
