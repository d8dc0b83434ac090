"""What hops that are computed at visits cost a round: seconds, with `propagation.keep` all, labelled and none.

    OMP_NUM_THREADS=1 python benchmarks/computed_hops.py CONFIG [KEY=VALUE ...] [--methods fedavg fedgta] [--rounds 5]
                                        [--clients 5]

Rounds are of the same clients. The stores are prepared, and runs play one round in turn in one process, without
evaluation. In a *new* round the cache of the host is empty, as if no client was visited before; files are in memory.
"""

import argparse
import tempfile
import time
from itertools import product
from statistics import median

import numpy as np
from rich.console import Console
from rich.table import Table

from shoal.engine.config.config import load_config
from shoal.engine.hosts.backend import LocalBackend
from shoal.engine.messages.job import make_job
from shoal.engine.preparing.prepare import prepare
from shoal.engine.rounds.costs import unwatched
from shoal.engine.runs.plan import plan_of

KEEP = ("all", "labelled", "none")


def opened(config: str, keys: list[str], method: str, keep: str, trace: str) -> LocalBackend:
    """A run in this process, ready for its first round."""
    own = [f"algorithm.name={method}", f"propagation.keep={keep}", f"participation.trace={trace}"]
    found = load_config(config, [*keys, *own, "evaluation.every=1000000", "engine.backend=local", "rounds=1000000"])
    backend = LocalBackend()
    backend.open(make_job(found, prepare(found), f"{method}-{keep}"), plan_of(found), None)
    return backend


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("config")
    parser.add_argument("keys", nargs="*")
    parser.add_argument("--methods", nargs="*", default=["fedavg", "fedgta"])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--clients", type=int, default=5)
    args = parser.parse_args()
    table = Table("method", "round", *KEEP, title="seconds a round")
    folder = tempfile.TemporaryDirectory()
    online = np.arange(load_config(args.config, args.keys).partition.clients)[None] < args.clients
    np.save(trace := f"{folder.name}/trace.npy", online)
    for method in args.methods:
        backends = [opened(args.config, args.keys, method, keep, trace) for keep in KEEP]
        times: dict[str, list[list[float]]] = {kind: [[] for _ in KEEP] for kind in ("new", "cached")}
        for number, kind in product(range(args.rounds + 1), times):
            for backend, own in zip(backends, times[kind]):
                if kind == "new":
                    backend._host._cache.clear()
                began = time.perf_counter()
                backend.round(unwatched)
                # The first round opens files and compiles.
                if number:
                    own.append(time.perf_counter() - began)
        for kind, own in times.items():
            table.add_row(method, kind, *(f"{median(each):.3f}" for each in own))
    Console().print(table)


if __name__ == "__main__":
    main()
