"""Contenders that play rounds in turn, each a process with one thread for mathematics."""

import json
import os
import subprocess
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from math import comb
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import psutil
from contenders.task import Rounds, by_rows

from shoal.algorithms.protocol import MODEL
from shoal.engine.config.config import Config, parse_config
from shoal.engine.messages.job import Job, make_job
from shoal.engine.preparing.prepare import prepare
from shoal.engine.rounds.sampling import draw_cohort
from shoal.engine.runs.plan import plan_of
from shoal.storage.store.store import Store

ROOT = Path(__file__).resolve().parent
SHOAL: dict[str, dict[str, Any]] = {
    "local": {"backend": "local"},
    "batched": {"backend": "local", "trainer": "batched"},
    "ray": {"backend": "ray", "hosts": 1},
    "two": {"backend": "ray", "hosts": 2},
}
PEERS = ("flower", "pfl_research", "open_fgl")
# The bare loops: gradients by autograd, by formulas, of the rows that count alone, and these by Shoal's products.
FORMS = ("autograd", "formulas", "field", "kernel")
# Whose model has other parameters than the bare loop's.
OTHER_MODEL = ("open_fgl",)
STEPS, LR = 3, 0.1


class Absent(Exception):
    """A contender that cannot play, and why."""


class Contender:
    """A process that plays rounds on request."""

    def __init__(self, name: str, python: str, log: Path, *arguments: Path) -> None:
        path = os.pathsep.join(map(str, (ROOT / "contenders", ROOT, ROOT.parent)))
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
class Case(ABC):
    """One model on some clients, of whom a share takes part in a round; initial parameters lie in `start.npy`."""

    model: str
    clients: int
    ratio: float
    turns: int
    folder: Path

    # The module of the bare loop, the rounds of a turn, the peers that can play.
    floor: ClassVar[str] = "bare"
    a_turn: ClassVar[int] = 1
    peers: ClassVar[Sequence[str]] = ()

    @property
    def rounds(self) -> int:
        """All that are played."""
        return self.turns * self.a_turn

    @property
    def compared(self) -> int:
        """Rounds after which contenders must hold the same weights."""
        return self.rounds

    @property
    @abstractmethod
    def name(self) -> str:
        """What it is called in the table."""

    @property
    @abstractmethod
    def data(self) -> Path:
        """Where its clients lie."""

    @property
    @abstractmethod
    def tolerance(self) -> float:
        """How far weights may lie from the bare loop's, which sums in float32."""

    @abstractmethod
    def sections(self) -> dict[str, Any]:
        """The sections of Shoal's config that are this case's own."""

    @abstractmethod
    def task(self, rounds: Rounds) -> Rounds:
        """What a contender is given: the rounds, and what they are played on."""

    def config(self, engine: dict[str, Any]) -> Config:
        """The run as Shoal sees it; its last round, the only one with an evaluation, is not played."""
        plain = {
            "name": "rounds",
            "rounds": self.rounds + 1,
            "train": {"epochs": STEPS, "optimizer": "sgd", "lr": LR, "weight_decay": 0.0, "dropout": 0.0},
            "algorithm": {"name": "fedavg", "weight": "train"},
            "participation": {"ratio": self.ratio},
            "evaluation": {"every": self.rounds + 1},
            "engine": engine,
            "run": {"root": str(self.folder)},
            **self.sections(),
        }
        return parse_config(plain, "benchmark")

    @property
    def initial(self) -> Path:
        """File of the initial parameters."""
        return self.data / f"start-{self.model}.npy"

    def make(self) -> None:
        """Prepares the clients and the initial parameters for everybody."""
        job, store = self.job()
        (kind,) = job.build_models(store, job.algorithm())[MODEL]
        job.initial(kind, MODEL, 0)
        np.save(self.initial, by_rows(kind.flat.module).numpy())

    def job(self) -> tuple[Job, Store]:
        """The run as hosts see it, and its store."""
        config = self.config(SHOAL["local"])
        store = prepare(config)
        return make_job(config, store, "rounds"), store

    def lay_out_for(self, peer: str) -> None:
        """Writes the clients as a peer reads them.

        Raises:
            Absent: It cannot play this.
        """
        if peer not in self.peers:
            raise Absent(f"{peer}: has no part in {self.name}")

    def start(self, name: str, peers: Path, part: slice = slice(None), suffix: str = "") -> Contender:
        """Starts a contender, on all or a part of every cohort."""
        options, log = plan_of(self.config(SHOAL["local"])).participation, self.folder / f"{name}{suffix}.log"
        cohorts = [draw_cohort(self.clients, options, 0, number)[part] for number in range(1, self.rounds + 1)]
        out, form = self.folder / f"{name}{suffix}.npy", name if name in FORMS else "autograd"
        rounds = Rounds(str(self.initial), STEPS, LR, cohorts, self.a_turn, self.compared, form, str(out))
        task = self.folder / f"{name}{suffix}.json"
        task.write_text(json.dumps(asdict(self.task(rounds))))
        if name in SHOAL:
            config = self.folder / f"{name}-config.json"
            config.write_text(json.dumps(self.config(SHOAL[name]).plain()))
            return Contender("shoal_rounds", sys.executable, log, task, config)
        if name in PEERS:
            self.lay_out_for(name)
            return Contender(name, str(peers / "bin" / "python"), log, task)
        return Contender(self.floor, sys.executable, log, task)

    def difference(self, name: str, floor: str = "bare-0") -> float:
        """How far a contender's weights lie from a bare loop's.

        Raises:
            AssertionError: Farther than they may.
        """
        mine, bare = (np.load(self.folder / f"{of}.npy") for of in (name, floor))
        difference = float(np.abs(mine - bare).max())
        assert difference < self.tolerance, f"{name}: weights differ from the bare loop's by {difference:g}"
        return difference


@dataclass(frozen=True)
class GnnCase(Case):
    """A case of a GNN. Training amplifies rounding: bare loops of GIN on Cora, 1e-7 apart at first, end 0.08 apart."""

    @property
    def compared(self) -> int:
        return 1

    @property
    def tolerance(self) -> float:
        return 1e-5


def play(contenders: Sequence[Contender], rounds: int) -> dict[str, float]:
    """A turn of so many rounds in parallel: clients trained in a second add up, the slowest one's seconds count."""
    before = sum(c.cpu() for c in contenders)
    for contender in contenders:
        contender.go()
    answers = [contender.hear() for contender in contenders]
    seconds = [s["seconds"] for s in answers]
    result = {"seconds": max(seconds), "rate": sum(1 / s for s in seconds) / len(seconds)}
    result["training"] = answers[0]["training"]
    result["cpu"] = (sum(c.cpu() for c in contenders) - before) / rounds
    return result


def interval(values: Sequence[float]) -> tuple[float, float]:
    """The interval of the median between two of the values, of at least 95 % if there are six or more."""
    n, ordered = len(values), sorted(values)
    tails = [sum(comb(n, i) for i in range(k + 1)) / 2 ** (n - 1) for k in range(n // 2)]
    cut = max((k for k, tail in enumerate(tails) if tail <= 0.05), default=0)
    return ordered[cut], ordered[-1 - cut]


Played = list[list[dict[str, float]]]


def play_in_turns(
    sides: Sequence[Sequence[Contender]], pairs: int, rounds: int, check: Callable[[], object] = lambda: None
) -> tuple[Played, list[int]]:
    """Turns of all sides one after another, in alternating order, and the bytes that each side held.

    A turn has so many rounds. The first is to warm up and left out; then comes the check.
    """
    played: Played = [[] for _ in sides]
    held, everybody = [0 for _ in sides], [contender for side in sides for contender in side]
    try:
        for number in range(pairs + 1):
            for contender in everybody:
                contender.hear()
            if number == 1:
                check()
            for place in range(len(sides)) if number % 2 else reversed(range(len(sides))):
                played[place].append(play(sides[place], rounds))
            held = [max(most, sum(c.memory() for c in side)) for most, side in zip(held, sides)]
        for contender in everybody:
            contender.end()
    finally:
        for contender in everybody:
            contender.kill()
    return [turns[1:] for turns in played], held


def compete(case: Case, name: str, pairs: int, peers: Path) -> dict[str, Any]:
    """Rounds of a contender in turn with the bare loop (two of them beside two hosts)."""
    halves = (slice(0, None, 2), slice(1, None, 2)) if name == "two" else (slice(None),)
    # The one that may be absent comes first: nothing else is left running then.
    other = [case.start(name, peers)]
    bare = [case.start("bare", peers, half, f"-{i}") for i, half in enumerate(halves)]
    (floor, mine), held = play_in_turns((bare, other), pairs, case.a_turn)
    result = {"floor": floor, "rounds": mine, "ratio": [f["rate"] / m["rate"] for f, m in zip(floor, mine)]}
    result["memory"] = held
    if name not in ("two", *OTHER_MODEL):
        result["difference"] = case.difference(name)
    return result
