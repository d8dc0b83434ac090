"""What scheduling alone takes of the server: hosts that answer at once, processor time a cell.

`python benchmarks/scheduling.py [--clients 500] [--hosts 8,64,512,1024]`
"""

import argparse
import sys
import time
from collections.abc import Collection
from types import SimpleNamespace
from typing import Any, cast

from shoal.engine.cluster import ray_pool, roster
from shoal.engine.cluster.ray_pool import RayPool
from shoal.engine.cluster.roster import DataLocality
from shoal.engine.messages.cell import Cell, Outcome
from shoal.engine.messages.job import Job

SECONDS_OF_A_CLIENT = 1.5


class Reference:
    """A result that is there."""

    def __init__(self, value: Any) -> None:
        self.value = value


class Host:
    """An actor without a process; both of its methods are called by `remote`."""

    def __init__(self, locality: DataLocality) -> None:
        self.enter = SimpleNamespace(remote=lambda *_: Reference(locality))
        self.run_call = SimpleNamespace(remote=self._run)

    def _run(self, job: str, cells: Collection[Cell], shared: Any) -> Reference:
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
        cells = [Cell(number, g, phase="train", train=True, cost=cost, **nothing) for g, cost in zip(groups, costs)]
        began = time.process_time()
        for _ in pool.run_cells(cells, {}):
            pass
        found.append((time.process_time() - began) / len(cells))
    # In the first round hosts enter.
    return min(found[1:])


def main(arguments: list[str]) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--clients", type=int, default=500)
    parser.add_argument("--hosts", default="8,64,128,256,512,1024")
    parsed = parser.parse_args(arguments)
    nobody = SimpleNamespace(get=lambda ref: ref.value, put=lambda value: value, wait=wait)
    ray_pool.ray = roster.ray = cast(Any, nobody)
    roster.differences = lambda *environments: []
    print("hosts  us a cell of 1 client  of 15")
    for hosts in map(int, parsed.hosts.split(",")):
        one, many = (1e6 * seconds(parsed.clients, size, hosts) for size in (1, 15))
        print(f"{hosts:5}  {one:21.1f}  {many:5.1f}", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
