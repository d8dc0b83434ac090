"""The server's part of rounds and evaluations with very many clients: hosts answer at once, without any work.

    python benchmarks/many_clients.py [--clients 1000 10000 100000] [--cohort 100] [--classes 40] [--evaluated all]

FedAvg on clients of ten nodes each, of up to eight classes. Seconds are those of the processor without the hosts' part,
memory is what the process holds beyond what it had without a server (anonymous pages).
"""

import argparse
import gc
import os
import tempfile
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import torch
from rich.console import Console
from rich.table import Table

from shoal.algorithms.methods.registry.load import describe
from shoal.algorithms.models.names import ModelSpec
from shoal.algorithms.protocol import Tree
from shoal.algorithms.train_options import TrainOptions
from shoal.engine.config.round_sections import ParticipationOptions
from shoal.engine.messages.cell import Cell, Outcome, PartialSum
from shoal.engine.messages.job import Compute, Job
from shoal.engine.records.client_scores import ClientScores
from shoal.engine.rounds.sampling import Plan
from shoal.engine.rounds.server import Server
from shoal.engine.scores.table import ScoreTable
from shoal.storage.shards.arrow_file import FileRecord
from shoal.storage.store.client_table import ClientRecord, Clients, Files, SplitRecord
from shoal.storage.store.manifest import Manifest

EVERY, ROUNDS, NODES = 4, 9, 10


@dataclass
class Sizes:
    """What a server reads of a store."""

    manifest: Manifest
    path: Path = Path("nowhere")

    @property
    def clients(self) -> int:
        """Number of clients."""
        return len(self.manifest.clients)

    def domain_graphs(self) -> None:
        """There are no domains."""


@dataclass(frozen=True)
class JobOfSizes(Job):
    """A job on a store that has sizes alone."""

    sizes: Any = None

    def open_store(self) -> Any:
        """The sizes."""
        return self.sizes


def job_of(clients: int, classes: int) -> Job:
    """A job of so many clients."""
    file = FileRecord(1, "0" * 32)
    manifest = Manifest(
        identity={"dataset": {}, "partition": {}}, name="sizes", synthetic=True, nodes=NODES * clients, features=128,
        classes=classes, dtype="float32", cleaning={}, quality={},
        clients=Clients.of([ClientRecord(i, NODES, 12, NODES, [0] * classes, file) for i in range(clients)]),
        splits={"s": SplitRecord([[5, 2, 3]] * clients, 0, Files.of([file] * clients))}, hops={},
    )  # fmt: skip
    return JobOfSizes(
        "sizes", "nowhere", "", "s", None, 0, describe("fedavg", {}), (ModelSpec(name="mlp", hidden=64),),
        (0,) * clients, None, TrainOptions(), 0, Compute(None), sizes=Sizes(manifest),
    )  # fmt: skip


class Answers:
    """A pool whose hosts answer at once."""

    retried, transfer, hosts = 0, 0.0, (1, 1)

    def __init__(self, clients: int, classes: int) -> None:
        rng = np.random.default_rng(0)
        share_C = np.array([1 / 8] * 8 + [0] * (classes - 8))[:classes]
        label, predicted = rng.multinomial(3, share_C / share_C.sum(), (2, 4096, 2))
        self._counts = np.stack([label, predicted, np.minimum(label, predicted)], axis=2)
        self._of = rng.integers(0, 4096, clients)
        self.parameters, self.seconds = 0, 0.0

    def run_cells(self, cells: Sequence[Cell], shared: Tree) -> Iterable[tuple[int, Outcome]]:
        """Uploads of zeros and counts of few rows."""
        for place, cell in enumerate(cells):
            began = time.process_time()
            outcome = Outcome(list(cell.ids), seconds={"train": 0.0, "upload": 0.0, "evaluate": 0.0})
            if cell.phase:
                outcome.losses, outcome.bytes_up = [1.0] * len(cell.ids), [4] * len(cell.ids)
                outcome.states = {i: {} for i in cell.ids}
                total = {"w": torch.zeros(self.parameters, dtype=torch.float64)}
                outcome.sums = {cell.places: PartialSum(cell.ids[0], total, {"w": float(len(cell.ids))}, own=True)}
            outcome.scores = {i: self._counts[self._of[i]].copy() for i in cell.score}
            self.seconds += time.process_time() - began
            yield place, outcome


def held() -> float:
    """Anonymous memory of this process, MiB."""
    gc.collect()
    lines = Path("/proc/self/smaps_rollup").read_text().splitlines()
    return next(int(line.split()[1]) / 1024 for line in lines if line.startswith("Anonymous:"))


def measured(clients: int, cohort: int, classes: int, evaluated: int | str) -> list[str]:
    """A row of the table."""
    job, pool = job_of(clients, classes), Answers(clients, classes)
    before, began = held(), time.process_time()
    plan = Plan(10**6, ParticipationOptions(count=cohort), EVERY, "auto", evaluated=evaluated)
    server = Server(job, plan, pool)
    start, started = time.process_time() - began, held() - before
    pool.parameters = len(server._initial)
    plain, evaluations = [], []
    for _ in range(ROUNDS):
        began, pool.seconds = time.process_time(), 0.0
        line = server.round()
        (evaluations if "scopes" in line else plain).append(time.process_time() - began - pool.seconds)
    grown = held() - before - started
    tensors = server.state.to_tensors()[0].values()
    table: ScoreTable = server.state.scores["deployed"]
    scored = sum(t.nbytes for t in table.to_tensors().values()) / len(table)
    with tempfile.TemporaryDirectory() as folder:
        scores = ClientScores(Path(folder))
        scores.append(EVERY, server.client_scores())
        written = os.path.getsize(scores.path) / 2**20
    return [
        f"{clients:,}", f"{start:.2f}", f"{started:.0f}", f"{1e3 * median(plain[1:]):.1f}",
        f"{evaluations[0]:.2f}, {evaluations[-1]:.2f}", f"{grown:.0f}", f"{scored:.0f}", f"{written:.1f}",
        f"{sum(t.nbytes for t in tensors) / 2**20:.0f}",
    ]  # fmt: skip


def main() -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--clients", type=int, nargs="+", default=[1000, 10_000, 100_000])
    parser.add_argument("--cohort", type=int, default=100)
    parser.add_argument("--classes", type=int, default=40)
    parser.add_argument("--evaluated", default="all", help="as evaluation.clients")
    options = parser.parse_args()
    torch.set_num_threads(1)
    evaluated = int(options.evaluated) if options.evaluated.isdigit() else options.evaluated
    table = Table(title=f"{options.cohort} clients a round, {options.classes} classes, evaluation.clients {evaluated}")
    heads = ("clients", "start s", "start MiB", "round ms", "first, later evaluation s", "evaluation MiB")
    for name in (*heads, "bytes a client and scope, in a checkpoint", "clients.arrows MiB", "state MiB"):
        table.add_column(name, justify="right")
    for clients in options.clients:
        table.add_row(*measured(clients, options.cohort, options.classes, evaluated))
    Console(width=160).print(table)


if __name__ == "__main__":
    main()
