"""Wrong input at random, far more of it than the tests have time for: what becomes of every case.

    python benchmarks/attack.py [--cases 100000] [--first 0] [--processes 2] [--only configs data stores runs ...]

`configs`: mutated configs and overrides, read as `shoal run` reads them before it works. `data`: mutated graphs,
splits, partitions and traces, read, partitioned and sometimes prepared. `labels`, `columns`, `attributes`, `weights`: a
sound graph whose labels, table columns, PyG attributes and edge weights are written as people write them; what is
accepted must have the values meant. `stores`: random damages to every kind of file of a store, then `verify` and a run.
`runs`: the same for a run folder, then the commands that read it. `parts`: files of a sibling in the place of a run's
own. `folders`: a user's files in and beside what `shoal remove` takes.

A case ends with a clean error (one line), is accepted, or is a fault: a traceback, a hang (no end within a minute), a
crash of the process, numbers that are silently others, or the refusal of sound input. The status is 1 if there is a
fault; each is listed with the seed that repeats it.
"""

import argparse
import contextlib
import importlib
import math
import os
import sys
import time
import traceback
from collections import Counter
from dataclasses import dataclass, field
from multiprocessing import get_context
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path

from rich.console import Console
from rich.table import Table

TESTS = Path(__file__).resolve().parents[1] / "tests"
# Module of tests/attack, function, and share of --cases: less where a case takes more than milliseconds.
KINDS = {
    "configs": ("attack.config_mutations", "attack", 1.0),
    "data": ("attack.data_mutations", "attack", 0.3),
    "labels": ("attack.user_inputs", "labels", 1.0),
    "columns": ("attack.user_inputs", "columns", 1.0),
    "attributes": ("attack.user_inputs", "attributes", 1.0),
    "weights": ("attack.user_inputs", "weights", 1.0),
    "folders": ("attack.foreign_parts", "folders", 0.1),
    "parts": ("attack.foreign_parts", "parts", 0.03),
    "stores": ("attack.test_damaged_store", "attack", 0.03),
    "runs": ("attack.test_damaged_run", "attack", 0.03),
}
HANG_SECONDS = 60.0
CASES_A_CALL = 50
FAULTS = ("traceback", "hang", "crash", "silently other numbers", "refused though sound")


@dataclass
class Worker:
    """A process at work on consecutive seeds of one kind.

    Attributes:
        process: The process.
        pipe: Its end of a pipe.
        kind: What it is at work on.
        seeds: Those that are left; the first is under way.
        last: When it last sent something.
    """

    process: BaseProcess
    pipe: Connection
    kind: str = ""
    seeds: list[int] = field(default_factory=list)
    last: float = 0.0


def work(pipe: Connection) -> None:
    """Runs cases for as long as there are any; what they print is dropped."""
    sys.path.insert(0, str(TESTS))
    os.environ["OMP_NUM_THREADS"] = "1"
    with open(os.devnull, "w") as nowhere, contextlib.redirect_stdout(nowhere), contextlib.redirect_stderr(nowhere):
        while (call := pipe.recv()) is not None:
            kind, seeds = call
            module, name, _ = KINDS[kind]
            attack = getattr(importlib.import_module(module), name)
            for seed in seeds:
                try:
                    pipe.send((seed, "refused" if attack(seed) else "accepted", ""))
                except BaseException as error:
                    verdict = next((fault for fault in FAULTS[3:] if fault in str(error)), FAULTS[0])
                    pipe.send((seed, verdict, "".join(traceback.format_exception(error))))


class Campaign:
    """All cases of a run of this command."""

    def __init__(self, cases: int, first: int, processes: int, kinds: list[str]) -> None:
        counts = {kind: math.ceil(cases * KINDS[kind][2]) for kind in kinds}
        self.calls = [
            (kind, list(range(start, min(start + CASES_A_CALL, first + counts[kind]))))
            for kind in kinds
            for start in range(first, first + counts[kind], CASES_A_CALL)
        ]
        self.found: dict[str, Counter[str]] = {kind: Counter() for kind in kinds}
        self.faults: list[tuple[str, int, str, str]] = []
        self.workers = [self._worker() for _ in range(processes)]

    def _worker(self) -> Worker:
        context = get_context("spawn")
        mine, theirs = context.Pipe()
        process = context.Process(target=work, args=(theirs,), daemon=True)
        process.start()
        theirs.close()
        return Worker(process, mine)

    def _give(self, worker: Worker) -> bool:
        """Hands out the next call; False if there is none."""
        if not self.calls:
            return False
        worker.kind, worker.seeds = self.calls.pop(0)
        worker.pipe.send((worker.kind, worker.seeds))
        worker.last = time.monotonic()
        return True

    def _note(self, worker: Worker, verdict: str, detail: str = "") -> None:
        seed = worker.seeds.pop(0)
        self.found[worker.kind][verdict] += 1
        if verdict in FAULTS:
            self.faults.append((worker.kind, seed, verdict, detail))

    def run(self) -> None:
        """Runs everything."""
        busy = [worker for worker in self.workers if self._give(worker)]
        began = shown = time.monotonic()
        while busy:
            for pipe in wait([worker.pipe for worker in busy], timeout=1.0):
                worker = next(worker for worker in busy if worker.pipe is pipe)
                try:
                    _, verdict, detail = worker.pipe.recv()
                except EOFError:
                    worker.process.join()
                    self._note(worker, "crash", f"exit code {worker.process.exitcode}")
                    busy = self._replaced(worker, busy)
                    continue
                worker.last = time.monotonic()
                self._note(worker, verdict, detail)
                if not worker.seeds and not self._give(worker):
                    busy.remove(worker)
            for worker in list(busy):
                if time.monotonic() - worker.last > HANG_SECONDS:
                    worker.process.kill()
                    self._note(worker, "hang")
                    busy = self._replaced(worker, busy)
            if time.monotonic() - shown > 10:
                shown = time.monotonic()
                done = sum(sum(found.values()) for found in self.found.values())
                left = sum(len(seeds) for _, seeds in self.calls) + sum(len(worker.seeds) for worker in busy)
                rate = max(done, 1) / (shown - began)
                print(
                    f"{done} cases, {rate:.0f}/s, {left / rate:.0f} s left, {len(self.faults)} faults", file=sys.stderr
                )

        for worker in self.workers:
            worker.pipe.send(None)
            worker.process.join()

    def _replaced(self, lost: Worker, busy: list[Worker]) -> list[Worker]:
        """A new process goes on behind the case that ended the other."""
        if lost.seeds:
            self.calls.insert(0, (lost.kind, lost.seeds))
        new = self._worker()
        self.workers = [new if worker is lost else worker for worker in self.workers]
        return (
            [new if worker is lost else worker for worker in busy]
            if self._give(new)
            else [worker for worker in busy if worker is not lost]
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", type=int, default=100_000, help="of each kind, fewer where one takes long")
    parser.add_argument("--first", type=int, default=0, help="first seed of each kind")
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--only", nargs="+", choices=KINDS, default=list(KINDS))
    received = parser.parse_args()
    campaign = Campaign(received.cases, received.first, received.processes, received.only)
    began = time.monotonic()
    campaign.run()
    table = Table(title=f"{sum(map(Counter.total, campaign.found.values()))} cases in {time.monotonic() - began:.0f} s")
    columns = ("kind", "cases", "accepted", "clean errors", *FAULTS)
    for column in columns:
        table.add_column(column, justify="left" if column == "kind" else "right")
    for kind, found in campaign.found.items():
        shown = [sum(found.values()), found["accepted"], found["refused"], *(found[fault] for fault in FAULTS)]
        table.add_row(kind, *map(str, shown))
    Console(width=120).print(table)
    for kind, seed, verdict, detail in campaign.faults:
        module, name, _ = KINDS[kind]
        print(f"{module}.{name}({seed}): {verdict}\n{detail}")
    sys.exit(bool(campaign.faults))


if __name__ == "__main__":
    main()
