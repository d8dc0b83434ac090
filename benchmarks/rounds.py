"""Seconds of a round of FedAvg: Shoal and its peers beside a bare torch loop over the same clients, in one run.

    python benchmarks/rounds.py [--quick] [--models linear mlp tiny] [--clients 10 50 200 500] [--ratio 1.0]
                                [--against local stacked ray two flower pfl_research] [--pairs 9] [--peers runs/peers]

A client makes three full-batch SGD steps. `linear` and `mlp` (one hidden layer of 256) have 2,400 rows of 128 features
and 172 classes, `tiny` has 54 rows of 1,433 features, 64 hidden units and 7 classes. Every contender is a process with
one thread for mathematics; it plays a round when it is told to, in turn with the bare loop, which of them first
alternating. `local` and `ray` are Shoal in one process and with one host actor, `stacked` is one process that trains
the clients of a cell in one batch; `two` are two host actors beside two bare loops at once, each over half of the
clients. The interval is the one of the median with at least 95 % (order statistics of the sign test). At the end all
hold the same weights, to 1e-6 (linear) or 2e-6. `benchmarks/peers.sh` installs the peers.
"""

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from math import comb
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import psutil
from contenders.task import Task
from figures import print_figures, target
from rich.console import Console
from rich.table import Table

from algorithms.protocol import MODEL
from engine.commands.run import plan_of
from engine.preparing.prepare import prepare
from engine.rounds.sampling import draw_cohort
from engine.settings.config import Config, parse_config
from engine.wire.job import make_job
from storage.graph import TRAIN

ROOT = Path(__file__).resolve().parent
SHOAL: dict[str, dict[str, Any]] = {
    "local": {"backend": "local"},
    "stacked": {"backend": "local", "path": "stacked"},
    "ray": {"backend": "ray", "hosts": 1},
    "two": {"backend": "ray", "hosts": 2},
}
PEERS = ("flower", "pfl_research")
STEPS, LR = 3, 0.1
PER_CLIENT, PER_ROUND = 0.001, 0.010


@dataclass(frozen=True)
class Shape:
    """Clients and model: hidden width (0: linear), rows of a client, features, classes."""

    hidden: int
    rows: int
    features: int
    classes: int


SHAPES = {"linear": Shape(0, 2400, 128, 172), "mlp": Shape(256, 2400, 128, 172), "tiny": Shape(64, 54, 1433, 7)}


class Absent(Exception):
    """A contender that cannot play, and why."""


class Contender:
    """A process that plays rounds when told to."""

    def __init__(self, name: str, python: str, log: Path, *arguments: Path) -> None:
        path = os.pathsep.join([str(ROOT / "contenders"), str(ROOT.parent)])
        env = {**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
        command = [python, "-c", f"import {name}; {name}.main()", *map(str, arguments)]
        self.name, self._log = name, log
        with log.open("w") as errors:
            self._process = subprocess.Popen(
                command, env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, text=True
            )
        self._tree = psutil.Process(self._process.pid)

    def hear(self) -> dict[str, float]:
        """The next thing it says."""
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            last = self._log.read_text().strip().splitlines()[-1:]
            raise Absent(f"{self.name}: {last[0] if last else 'ended without a word'} (see {self._log})")
        return json.loads(line)

    def go(self) -> None:
        """Tells it to play."""
        assert self._process.stdin is not None
        print(file=self._process.stdin, flush=True)

    def cpu(self) -> float:
        """CPU seconds so far of the process and all below it."""
        total = 0.0
        for process in [self._tree, *self._tree.children(recursive=True)]:
            try:
                total += sum(process.cpu_times()[:2])
            except psutil.Error:
                continue
        return total

    def memory(self) -> int:
        """Bytes that only the process and those below it hold now, beside memory they share with others."""
        total = 0
        for process in [self._tree, *self._tree.children(recursive=True)]:
            try:
                total += process.memory_full_info().uss
            except psutil.Error:
                continue
        return total

    def end(self) -> None:
        """Waits until its weights are written."""
        if self._process.wait(timeout=120):
            raise Absent(f"{self.name}: failed at its end (see {self._log})")

    def kill(self) -> None:
        """Ends what is left of it."""
        for process in [*self._tree.children(recursive=True), self._tree] if self._tree.is_running() else []:
            process.kill()
        self._process.wait()


@dataclass(frozen=True)
class Case:
    """One model, a number of clients, the share of them that takes part."""

    model: str
    clients: int
    ratio: float
    rounds: int
    folder: Path

    @property
    def name(self) -> str:
        share = "" if self.ratio == 1 else f", {100 * self.ratio:g} % a round"
        return f"{self.model}, {self.clients} clients{share}"

    def config(self, engine: dict[str, Any]) -> Config:
        """The run as Shoal sees it; its last round, the only one with an evaluation, is not played."""
        shape, data = SHAPES[self.model], self.data
        model = {"name": "mlp", "hidden": shape.hidden} if shape.hidden else {"name": "sgc"}
        plain = {
            "name": "rounds",
            "rounds": self.rounds + 1,
            "data": {"dataset": "files", "path": str(data), "store": str(data / "store"), "split": "public"},
            "partition": {"method": "file", "clients": self.clients},
            "propagation": {"hops": 0},
            "model": model,
            "train": {"epochs": STEPS, "optimizer": "sgd", "lr": LR, "weight_decay": 0.0, "dropout": 0.0},
            "algorithm": {"name": "fedavg", "weight": "train"},
            "participation": {"ratio": self.ratio},
            "evaluation": {"every": self.rounds + 1},
            "engine": engine,
            "run": {"root": str(self.folder)},
        }  # fmt: skip
        return parse_config(plain, "benchmark")

    @property
    def data(self) -> Path:
        """Where the clients lie."""
        shape = SHAPES[self.model]
        return self.folder / f"{shape.rows}x{shape.features}-{self.clients}"

    def make(self) -> None:
        """Draws the clients, once, and the initial parameters, prepared for everybody."""
        shape, folder = SHAPES[self.model], self.data
        if not folder.exists():
            folder.mkdir(parents=True)
            rng, nodes = np.random.default_rng(0), self.clients * shape.rows
            y = np.arange(nodes) % shape.classes
            x = rng.standard_normal((nodes, shape.features), dtype=np.float32)
            x += 0.3 * rng.standard_normal((shape.classes, shape.features), dtype=np.float32)[y]
            arrays = {"x": x, "y": y, "edge_index": np.empty((2, 0), dtype=np.int64)}
            arrays["assignment"] = np.repeat(np.arange(self.clients), shape.rows)
            arrays["split"] = np.full(nodes, TRAIN, dtype=np.int8)
            for name, array in arrays.items():
                np.save(folder / f"{name}.npy", array)
        config = self.config(SHOAL["local"])
        store = prepare(config)
        job = make_job(config, store, "rounds")
        (kind,) = job.build_models(store, job.algorithm())[MODEL]
        np.save(folder / "start.npy", job.initial(kind, MODEL, 0).numpy())

    def task(self, name: str, part: slice = slice(None)) -> Path:
        """Writes the task of a contender, over all or a part of every cohort."""
        shape, options = SHAPES[self.model], plan_of(self.config(SHOAL["local"])).participation
        cohorts = [draw_cohort(self.clients, options, 0, number)[part] for number in range(1, self.rounds + 1)]
        out, path = self.folder / f"{name}.npy", self.folder / f"{name}.json"
        task = Task(str(self.data), self.clients, shape.rows, shape.classes, shape.hidden, STEPS, LR, cohorts, str(out))
        path.write_text(json.dumps(asdict(task)))
        return path

    def start(self, name: str, peers: Path, part: slice = slice(None), suffix: str = "") -> Contender:
        """Starts a contender."""
        task, log = self.task(name + suffix, part), self.folder / f"{name}{suffix}.log"
        if name in SHOAL:
            config = self.folder / f"{name}-config.json"
            config.write_text(json.dumps(self.config(SHOAL[name]).plain()))
            return Contender("shoal", sys.executable, log, task, config)
        return Contender(name, str(peers / "bin" / "python") if name in PEERS else sys.executable, log, task)

    def weights(self, name: str) -> np.ndarray:
        """What a contender ended with."""
        return np.load(self.folder / f"{name}.npy")


def play(contenders: Sequence[Contender]) -> dict[str, float]:
    """One round of all of them at once: clients trained in a second add up, the slowest one's seconds count."""
    before = sum(c.cpu() for c in contenders)
    for contender in contenders:
        contender.go()
    said = [contender.hear() for contender in contenders]
    seconds = [s["seconds"] for s in said]
    result = {"seconds": max(seconds), "rate": sum(1 / s for s in seconds) / len(seconds)}
    result["cpu"] = sum(c.cpu() for c in contenders) - before
    return result | {key: s[key] for s in said for key in s if key == "training"}


def interval(values: Sequence[float]) -> tuple[float, float]:
    """The interval of the median between two of the values, of at least 95 % if there are six or more."""
    n, ordered = len(values), sorted(values)
    tails = [sum(comb(n, i) for i in range(k + 1)) / 2 ** (n - 1) for k in range(n // 2)]
    cut = max((k for k, tail in enumerate(tails) if tail <= 0.05), default=0)
    return ordered[cut], ordered[-1 - cut]


def compete(case: Case, name: str, pairs: int, peers: Path) -> dict[str, Any]:
    """Rounds of a contender in turn with the bare loop (two of them beside two hosts)."""
    halves = (slice(0, None, 2), slice(1, None, 2)) if name == "two" else (slice(None),)
    bare = [case.start("bare", peers, half, f"-{i}") for i, half in enumerate(halves)]
    other = [case.start(name, peers)]
    sides: tuple[list[Contender], list[Contender]] = (bare, other)
    played: tuple[list[dict[str, float]], list[dict[str, float]]] = ([], [])
    held = [0, 0]
    try:
        for number in range(pairs + 1):
            for side in (0, 1) if number % 2 else (1, 0):
                for contender in sides[side]:
                    contender.hear()
                played[side].append(play(sides[side]))
            held = [max(most, sum(c.memory() for c in side)) for most, side in zip(held, sides)]
        for contender in (*bare, *other):
            contender.end()
    finally:
        for contender in (*bare, *other):
            contender.kill()
    floor, mine = (rounds[1:] for rounds in played)  # the first is to warm up
    result = {"floor": floor, "rounds": mine, "ratio": [f["rate"] / m["rate"] for f, m in zip(floor, mine)]}
    result["memory"] = held
    if name != "two":
        difference = float(np.abs(case.weights("bare-0") - case.weights(name)).max())
        # The bare loop sums in float32; with hidden layers that grows.
        most = 1e-6 if case.model == "linear" else 2e-6
        assert difference < most, f"{name}: final weights differ from the bare loop's by {difference:g}"
        result["difference"] = difference
    return result


def row(case: Case, name: str, result: dict[str, Any]) -> tuple[list[str], dict[str, Any]]:
    """One line of the table, and what is compared with targets."""
    floor, mine, ratio = result["floor"], result["rounds"], result["ratio"]
    cohort = max(1, int(case.clients * case.ratio + 1e-9))
    low, high = interval(ratio)
    over = median(m["seconds"] - f["seconds"] for f, m in zip(floor, mine))
    held = {"ratio": median(ratio), "low": low, "high": high, "per client": max(over - PER_ROUND, 0) / cohort}
    shown = [
        case.name,
        name,
        f"{median(f['seconds'] for f in floor):.4f}",
        f"{median(m['seconds'] for m in mine):.4f}",
        f"{median(ratio):.3f}",
        f"{low:.3f} – {high:.3f}",
        f"{median(f['cpu'] for f in floor):.2f} / {median(m['cpu'] for m in mine):.2f}",
        " / ".join(f"{held_bytes / 2**20:.0f}" for held_bytes in result["memory"]),
        f"{1000 * over / cohort:.2f}",
    ]
    if name in ("local", "stacked", "ray"):
        outside = median(m["seconds"] - m["training"] for m in mine)
        held["outside"] = outside / cohort
        shown.append(f"{1000 * outside / cohort:.2f}")
    return shown, held


def targets_of(case: Case, held: dict[str, dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """What this case is held to."""
    found: dict[str, dict[str, Any]] = {}
    for name in (n for n in ("local", "ray") if n in held):
        if case.clients * case.ratio >= 50 and case.model != "tiny":
            found[f"{case.name}, {name}: interval of the ratio reaches"] = target(held[name]["low"], 1.03, True)
        over = 1000 * held[name]["per client"]
        found[f"{case.name}, {name}: ms a client beyond 10 ms a round"] = target(over, 1000 * PER_CLIENT, True)
        for peer in (p for p in PEERS if p in held):
            ahead = held[peer]["ratio"] / held[name]["ratio"]
            found[f"{case.name}, {name}: times as fast as {peer}"] = target(ahead, 1.0)
    if "two" in held:
        found[f"{case.name}: two hosts, share of two bare loops"] = target(1 / held["two"]["ratio"], 0.95)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="linear and tiny, 50 clients, local: within a minute")
    parser.add_argument("--models", nargs="*", choices=SHAPES, default=["linear"])
    parser.add_argument("--clients", nargs="*", type=int, default=[10, 50, 200])
    parser.add_argument("--ratio", type=float, default=1.0)
    parser.add_argument("--against", nargs="*", choices=(*SHOAL, *PEERS), default=["local", "ray"])
    parser.add_argument("--pairs", type=int, default=9)
    parser.add_argument("--peers", type=Path, default=Path("runs/peers"))
    parser.add_argument("--folder", type=Path, default=Path("runs/rounds"))
    args = parser.parse_args()
    if args.quick:
        args.models, args.clients, args.against = ["linear", "tiny"], [50], ["local"]
    table = Table(title=f"a round, medians of {args.pairs} pairs, one thread each")
    measured = ("bare s", "s", "ratio", "95 %", "CPU s, bare / its", "MiB, bare / its", "ms over", "ms untrained")
    for column in ("case", "contender", *measured):
        table.add_column(column, no_wrap=True, justify="left" if column in ("case", "contender") else "right")
    figures: dict[str, Any] = {}
    targets: dict[str, dict[str, Any]] = {}
    for model in args.models:
        for clients in args.clients:
            case = Case(model, clients, args.ratio, args.pairs + 1, args.folder.resolve())
            case.make()
            held: dict[str, dict[str, Any]] = {}
            for name in args.against:
                try:
                    result = compete(case, name, args.pairs, args.peers.absolute())
                except (Absent, FileNotFoundError) as reason:
                    table.add_row(case.name, f"{name}: left out")
                    print(f"left out: {reason}", file=sys.stderr)
                    continue
                shown, held[name] = row(case, name, result)
                table.add_row(*shown)
                figures[f"{case.name}, {name}"] = result | held[name]
            targets |= targets_of(case, held)
    Console(width=170).print(table)
    print_figures(figures, targets)


if __name__ == "__main__":
    main()
