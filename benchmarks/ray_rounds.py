"""What Ray adds to a round of small clients: milliseconds of processor time of all processes, and of the clock.

    OMP_NUM_THREADS=1 python benchmarks/ray_rounds.py [--clients 8 50 500] [--turns 5] [--rounds 100]

The clients are those of `benchmarks/visits.py`, of 20 rows and a linear model. One process, one Ray host that is asked
round by round, and one that plays ten rounds up to the next checkpoint by itself, play their rounds in turn. `over` is
a column's processor time less that of one process: what processes cost beside the work. Numbers are medians of turns.
"""

import argparse
import tempfile
import time
from pathlib import Path
from statistics import median

import psutil
from rich.console import Console
from rich.table import Table
from visits import draw, opened

from shoal.engine.hosts.backend import Backend
from shoal.engine.rounds.costs import unwatched

ROWS, CHECKPOINT = 20, 10


def cpu_seconds() -> float:
    """Processor seconds so far of this process and all below it."""
    total = 0.0
    for process in [psutil.Process(), *psutil.Process().children(recursive=True)]:
        try:
            total += sum(process.cpu_times()[:2])
        except psutil.Error:
            continue
    return total


def play(backend: Backend, begun: int, rounds: int, at_once: int) -> tuple[float, float]:
    """Milliseconds of a round after `begun` of them: of processors, and of the clock."""
    done, cpu, began = begun, cpu_seconds(), time.perf_counter()
    while done < begun + rounds:
        done += len(list(backend.rounds(unwatched, done + at_once - done % at_once)))
    spent = time.perf_counter() - began, cpu_seconds() - cpu
    wall, cpu = (1000 * seconds / (done - begun) for seconds in spent)
    return cpu, wall


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--clients", type=int, nargs="*", default=[8, 50, 500])
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--rounds", type=int, default=100)
    args = parser.parse_args()
    table = Table(title=f"a round, ms, medians of {args.turns} turns")
    for column in ("clients", "contender", "processors", "over", "clock"):
        table.add_column(column, justify="right")
    with tempfile.TemporaryDirectory() as root:
        for clients in args.clients:
            draw(folder := Path(root) / str(clients), clients, ROWS)
            local, ray = (opened(folder, clients, 0, "sgd", "auto", name) for name in ("local", "ray"))
            contenders = {"one process": (local, 1), "Ray, by round": (ray, 1), "Ray, by checkpoint": (ray, CHECKPOINT)}
            times: dict[str, list[tuple[float, float]]] = {name: [] for name in contenders}
            done = {id(local): 0, id(ray): 0}
            for turn in range(args.turns + 1):
                for name, (backend, at_once) in contenders.items():
                    spent = play(backend, done[id(backend)], args.rounds, at_once)
                    done[id(backend)] += args.rounds
                    # The first turn opens files and compiles.
                    if turn:
                        times[name].append(spent)
            ray.close()
            alone = median(cpu for cpu, _ in times["one process"])
            for name, pairs in times.items():
                cpu, wall = (median(column) for column in zip(*pairs))
                table.add_row(str(clients), name, f"{cpu:.2f}", f"{cpu - alone:.2f}", f"{wall:.2f}")
    Console().print(table)


if __name__ == "__main__":
    main()
