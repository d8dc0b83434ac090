"""Steps of FedBuff beside synchronous rounds of as many clients, all of one speed: `python benchmarks/asynchronous.py`.

Processor time of a step, in one process, the median of turns in which both come one after the other. Needs Cora, or
another graph (`--graph`).
"""

import argparse
import statistics
import time
from collections.abc import Sequence

from shoal.engine.cluster.open_backend import open_backend
from shoal.engine.config.config import load_config
from shoal.engine.messages.job import make_job
from shoal.engine.preparing.prepare import prepare
from shoal.engine.rounds.costs import unwatched
from shoal.engine.runs.plan import plan_of

FIRST, GOAL = 5, 1.1
METIS = ("partition.clients=50", "partition.method=metis")
DRAWN = ("data.dataset=sbm", "data.options.nodes=50000", "data.options.features=64", "data.options.classes=10")
CASES = {
    "Cora, 50 clients, SGC": ("model.name=sgc", *METIS),
    "Cora, 50 clients, GAMLP": METIS,
    "drawn, 500 clients, SGC": ("model.name=sgc", *DRAWN, "partition.clients=500", "partition.method=random"),
}
SYNCHRONOUS = ("participation.count=10",)
FEDBUFF = ("schedule.name=fedbuff", "schedule.buffer=10", "schedule.concurrency=10")


def seconds_of(graph: str, changes: Sequence[str], rounds: int) -> float:
    """Processor seconds of a round, behind the first ones."""
    fixed = [
        "algorithm=fedavg",
        "engine.backend=local",
        "engine.threads=1",
        f"rounds={rounds}",
        "evaluation.every=1000",
        f"data.dataset={graph}",
    ]
    config = load_config("cora", [*fixed, *changes])
    backend = open_backend(config)
    backend.open(make_job(config, prepare(config), "asynchronous"), plan_of(config), None)
    try:
        for _ in range(FIRST):
            backend.round(unwatched)
        began = time.process_time()
        for _ in range(rounds - FIRST):
            backend.round(unwatched)
        return (time.process_time() - began) / (rounds - FIRST)
    finally:
        backend.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=60)
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--graph", default="cora", help="another one in its place")
    parser.add_argument("--only", nargs="+", choices=CASES, default=list(CASES))
    args = parser.parse_args()
    for name in args.only:
        turns = [
            [seconds_of(args.graph, [*CASES[name], *way], args.rounds) for way in (SYNCHRONOUS, FEDBUFF)]
            for _ in range(args.turns)
        ]
        one, other = (1000 * statistics.median(column) for column in zip(*turns))
        ratio = statistics.median(step / whole for whole, step in turns)
        print(f"{name}: synchronous {one:.2f} ms, fedbuff {other:.2f} ms, {ratio:.2f} (goal {GOAL})", flush=True)


if __name__ == "__main__":
    main()
