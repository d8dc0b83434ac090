"""What a visit of a small client costs a round of FedAvg: microseconds of processor time, by trainer.

    OMP_NUM_THREADS=1 python benchmarks/visits.py [--clients 500] [--rows 20 100] [--hidden 0 64]
                                                  [--optimizers sgd adam] [--rounds 7]

A client has drawn rows of 32 features and 4 classes without edges and makes three full-batch steps, without dropout. A
hidden width of 0 is `sgc`, another `mlp`. The trainers of `engine.trainer` play one round in turn in one process. A
number is the median over rounds of the processor time of a round by its clients: of all that the server does, too.
"""

import argparse
import tempfile
import time
from itertools import product
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

from shoal.engine.cluster.open_backend import open_backend
from shoal.engine.config.config import parse_config
from shoal.engine.messages.job import make_job
from shoal.engine.messages.trainers import ANALYTIC, AUTOGRAD, BATCHED
from shoal.engine.preparing.prepare import prepare
from shoal.engine.rounds.costs import unwatched
from shoal.engine.runs.plan import plan_of
from shoal.storage.options.split_codes import TEST, TRAIN, VAL

FEATURES, CLASSES = 32, 4
TRAINERS = (AUTOGRAD, ANALYTIC, BATCHED, "auto")


def draw(folder: Path, clients: int, rows: int) -> None:
    """Clients of so many training rows, and one more each for validation and test."""
    folder.mkdir()
    rng, each = np.random.default_rng(0), rows + 2
    y = np.arange(clients * each) % CLASSES
    x = rng.standard_normal((len(y), FEATURES)) + 0.3 * rng.standard_normal((CLASSES, FEATURES))[y]
    np.save(folder / "x.npy", x.astype(np.float32))
    np.save(folder / "y.npy", y)
    np.save(folder / "edge_index.npy", np.empty((2, 0), dtype=np.int64))
    np.save(folder / "assignment.npy", np.repeat(np.arange(clients), each))
    np.save(folder / "split.npy", np.tile([*[TRAIN] * rows, VAL, TEST], clients).astype(np.int8))


def opened(folder: Path, clients: int, hidden: int, optimizer: str, trainer: str, backend: str = "local") -> Any:
    """A run in this process, or on one Ray host, ready for its first round."""
    plain: dict[str, Any] = {
        "name": "visits",
        "rounds": 1000_000,
        "data": {"dataset": "files", "path": str(folder), "store": str(folder / "store"), "split": "public"},
        "partition": {"method": "file", "clients": clients},
        "propagation": {"hops": 0},
        "evaluation": {"every": 1000_000},
        "algorithm": {"name": "fedavg"},
        "model": {"name": "mlp", "hidden": hidden} if hidden else {"name": "sgc"},
        "train": {"epochs": 3, "optimizer": optimizer, "dropout": 0.0},
        "engine": {"backend": backend, "hosts": 1, "trainer": trainer},
    }
    config = parse_config(plain, "benchmark")
    made = open_backend(config)
    made.open(make_job(config, prepare(config), f"{folder}-{hidden}-{optimizer}-{trainer}"), plan_of(config), None)
    return made


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--clients", type=int, default=500)
    parser.add_argument("--rows", type=int, nargs="*", default=[20, 100])
    parser.add_argument("--hidden", type=int, nargs="*", default=[0, 64])
    parser.add_argument("--optimizers", nargs="*", default=["sgd", "adam"])
    parser.add_argument("--rounds", type=int, default=7)
    args = parser.parse_args()
    table = Table("rows", "hidden", "optimizer", *TRAINERS, title=f"microseconds a visit, {args.clients} clients")
    with tempfile.TemporaryDirectory() as root:
        for rows in args.rows:
            draw(folder := Path(root) / str(rows), args.clients, rows)
            for hidden, optimizer in product(args.hidden, args.optimizers):
                backends = [opened(folder, args.clients, hidden, optimizer, trainer) for trainer in TRAINERS]
                times: list[list[float]] = [[] for _ in TRAINERS]
                for number in range(args.rounds + 1):
                    for backend, own in zip(backends, times):
                        began = time.process_time()
                        backend.round(unwatched)
                        # The first round opens files and compiles.
                        if number:
                            own.append(1e6 * (time.process_time() - began) / args.clients)
                table.add_row(str(rows), str(hidden), optimizer, *(f"{median(own):.0f}" for own in times))
    Console().print(table)


if __name__ == "__main__":
    main()
