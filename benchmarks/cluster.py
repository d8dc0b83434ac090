"""How far hosts work, and what scheduling takes of the server.

    python benchmarks/cluster.py [--clients 500] [--hosts 8] [--rounds 6] [--at-once 8,64,512,1024]

First real hosts on this machine whose clients sleep: idle time, and milliseconds a client in which the server does not
wait; none with `--hosts 0`. Then hosts that answer at once: processor time a cell.
"""

import argparse
import sys
import tempfile
import time
from collections.abc import Collection
from pathlib import Path
from statistics import fmean, median
from types import SimpleNamespace
from typing import Any, cast

from figures import print_figures, target

import shoal
from shoal.engine.cluster import ray_pool, roster
from shoal.engine.cluster.ray_pool import RayPool
from shoal.engine.cluster.roster import DataLocality
from shoal.engine.messages.cell import Cell, Outcome, Training
from shoal.engine.messages.job import Job
from shoal.engine.records.metrics import read_metrics

SECONDS_OF_A_CLIENT = 1.5


class Reference:
    """A result that is there."""

    def __init__(self, value: Any) -> None:
        self.value = value


class Host:
    """An actor without a process; both of its methods are called by `remote`."""

    def __init__(self, locality: DataLocality) -> None:
        self.enter = SimpleNamespace(remote=lambda *_: Reference(locality))
        self.run_call = SimpleNamespace(remote=self._run, options=lambda **_: SimpleNamespace(remote=self._run))

    def _run(
        self, job: str, cells: Collection[Cell], shared: Any, *kept: Any, states: int = 0, results: int = 0
    ) -> Reference:
        return Reference([self._outcome(cell) for cell in cells])

    def _outcome(self, cell: Cell) -> Outcome:
        return Outcome(ids=list(cell.ids), seconds={"train": SECONDS_OF_A_CLIENT * len(cell.ids)})


def wait(refs: list[Any], num_returns: int, timeout: float) -> tuple[list[Any], list[Any]]:
    """Hosts that enter, behind all calls, are done; else the first call is, and, where one does not wait, none."""
    if refs and isinstance(refs[-1].value, DataLocality):
        return [ref for ref in refs if isinstance(ref.value, DataLocality)], []
    return (refs[:1], refs[1:]) if timeout else ([], refs)


def seconds(clients: int, size: int, hosts: int, rounds: int = 4) -> float:
    """Processor seconds a cell, the best of some rounds."""
    locality = DataLocality("here", frozenset(range(clients)), {"device": "cpu"})
    job = SimpleNamespace(id="job", store="store", skip_failed_clients=False, who=str, is_graph=lambda i: False)
    pool = RayPool([Host(locality) for _ in range(hosts)], cast(Job, job), 600.0, 4)
    groups = [range(first, min(first + size, clients)) for first in range(0, clients, size)]
    nothing: dict[str, Any] = {"up": {}, "private": {}, "states": {}, "inboxes": {}, "score": frozenset()}
    found = []
    for number in range(1, rounds + 1):
        costs = [float(sum(100 + i * 7919 % 50 for i in group)) for group in groups]
        cells = [
            Cell(number, g, phase="train", train=Training(), cost=cost, **nothing) for g, cost in zip(groups, costs)
        ]
        began = time.process_time()
        for _ in pool.run_cells(cells, {}):
            pass
        found.append((time.process_time() - began) / len(cells))
    # In the first round hosts enter.
    return min(found[1:])


def asleep(clients: int, hosts: int, rounds: int) -> dict[str, float]:
    """Real hosts, of which each client takes 50 ms of sleep; the first round, in which hosts open the job, left out."""
    sleepy = f"{Path(__file__).with_name('sleepy.py')}:Sleepy"
    with tempfile.TemporaryDirectory() as folder:
        config = {
            "name": "sleepy",
            "rounds": rounds,
            "data": {
                "dataset": "sbm",
                "root": folder,
                "options": {"nodes": 20 * clients, "features": 16, "classes": 3},
            },
            "partition": {"method": "random", "clients": clients},
            "propagation": {"hops": 0},
            "model": {"name": "mlp", "hidden": 64},
            "train": {"epochs": 1, "opt_state": "reset"},
            "algorithm": {"name": sleepy, "seconds": 0.05},
            "evaluation": {"every": rounds},
            "engine": {"backend": "ray", "hosts": hosts},
            "resources": {"cpus_per_host": 0.02},
            "run": {"root": folder, "tensorboard": False, "checkpoint_every": rounds},
        }
        lines = read_metrics(shoal.run(config).path)[1:-1]
    seconds_of = [line["seconds"] for line in lines]
    return {
        "round, s": median(each["round"] for each in seconds_of),
        "at least, s": 0.05 * clients / hosts,
        "idle share": 1 - fmean(share for line in lines for share in line["hosts"]["busy"].values()),
        "server, ms a client": 1000 * median(each["round"] - each["wait"] for each in seconds_of) / clients,
    }


def main(arguments: list[str]) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--clients", type=int, default=500)
    parser.add_argument("--hosts", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--at-once", default="8,64,128,256,512,1024")
    parsed = parser.parse_args(arguments)
    figures = asleep(parsed.clients, parsed.hosts, parsed.rounds) if parsed.hosts else {}
    if figures:
        print(f"{parsed.hosts} hosts, {parsed.clients} clients that sleep:")
    for what, value in figures.items():
        print(f"  {what:20} {value:.3f}", flush=True)
    nobody = SimpleNamespace(get=lambda ref: ref.value, put=lambda value: value, wait=wait)
    ray_pool.ray = roster.ray = cast(Any, nobody)
    roster.differences = lambda *environments: []
    print("hosts  us a cell of 1 client  of 15")
    for hosts in map(int, parsed.at_once.split(",")):
        one, many = (1e6 * seconds(parsed.clients, size, hosts) for size in (1, 15))
        print(f"{hosts:5}  {one:21.1f}  {many:5.1f}", flush=True)
        figures[f"us a cell, {hosts} hosts"] = one
    goals = {"idle share": 0.10, "server, ms a client": 0.2, "us a cell, 512 hosts": 20.0}
    print_figures(figures, {name: target(figures[name], goal, True) for name, goal in goals.items() if name in figures})


if __name__ == "__main__":
    main(sys.argv[1:])
