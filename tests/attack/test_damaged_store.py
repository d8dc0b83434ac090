"""A store that is damaged at random: `run` names the file or has the bits of the undamaged one, `verify` finds all."""

import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from damage import Snapshot, damaged
from golden_digests import NOT_NUMBERS

from engine.commands.run import run
from engine.hosts.federation import Federation, LocalSession
from engine.preparing.prepare import prepare
from engine.records.metrics import read_metrics
from engine.rounds.schedule import Plan
from engine.rounds.state import FederationState
from engine.settings.config import Config, parse_config
from engine.wire.job import Job
from storage.errors import ShoalError
from storage.manifest import NAME
from storage.store import Store
from storage.verify import verify

CASES = 200
KINDS = {
    "manifest": NAME,
    "journal": "progress.jsonl",
    "assignment": "assignment.npy",
    "shards": "clients/*.arrow",
    "splits": "splits/*/*.arrow",
    "hops": "hops/r0.5-k1-float32/*.arrow",
    "hops of labelled rows": "hops/r0.5-k1-float32-labelled/*.arrow",
}
READ_BY_PREPARE_ONLY = ("journal", "assignment")
IN_MEMORY = "/dev/shm" if Path("/dev/shm").is_dir() else None


class Watched(LocalSession):
    """Hosts whose last state can be looked at after the run."""

    federated: Federation

    def federation(self, job: Job, plan: Plan, state: FederationState | None) -> Federation:
        self.federated = super().federation(job, plan, state)
        return self.federated


@dataclass
class Case:
    """A small prepared store, and what a run on it gives.

    Attributes:
        configs: By the rows of which hops are kept.
        sound: The store's files.
        expected: What the runs of the configs end with.
    """

    configs: Mapping[str, Config]
    store: Path
    sound: Snapshot
    expected: Mapping[str, Any]

    def outcome(self, kind: str) -> tuple[Any, Any]:
        """What a run gave and what it should give."""
        rows = "labelled" if kind == "hops of labelled rows" else "all"
        return numbers_of(self.configs[rows]), self.expected[rows]


def numbers_of(config: Config) -> Any:
    """Weights and metrics of a run, to the bit."""
    session = Watched(config)
    folder = run(config, fresh=True, session=session)
    weights = {name: tensor.numpy().tobytes() for name, tensor in session.federated.state().server.items()}
    lines = [{key: value for key, value in line.items() if key not in NOT_NUMBERS} for line in read_metrics(folder)]
    return weights, lines


def config_of(folder: Path, rows: str) -> Config:
    options = {"nodes": 60, "features": 3, "classes": 3, "degree": 3.0}
    return parse_config(
        {
            "name": rows,
            "rounds": 1,
            "data": {"dataset": "sbm", "store": str(folder / "store"), "root": str(folder), "options": options},
            "partition": {"method": "metis", "clients": 3},
            "propagation": {"hops": 1, "rows": rows},
            "model": {"name": "gamlp", "hidden": 4},
            "train": {"epochs": 1},
            "algorithm": {"name": "fedgta"},
            "engine": {"backend": "local"},
            "run": {"root": str(folder / "runs"), "tensorboard": False},
        },
        "test",
    )


@pytest.fixture(scope="module")
def case() -> Iterator[Case]:
    # Thousands of runs that each write to the disk and wait for it would take minutes.
    with tempfile.TemporaryDirectory(dir=IN_MEMORY) as name:
        folder = Path(name)
        configs = {rows: config_of(folder, rows) for rows in ("all", "labelled")}
        store = [prepare(config) for config in configs.values()][-1].path
        assert verify(Store(store)) == []
        expected = {rows: numbers_of(config) for rows, config in configs.items()}
        assert all(torch.isfinite(torch.tensor(lines[0]["loss"])) for _, lines in expected.values())
        yield Case(configs, store, Snapshot(store), expected)


def files_of(case: Case, kind: str) -> list[Path]:
    files = sorted(case.store.glob(KINDS[kind]))
    assert files
    return files


def answer(case: Case, kind: str) -> str | None:
    """The line that refuses a run, or None where it gives the numbers of the undamaged store; others are an error."""
    try:
        outcome, expected = case.outcome(kind)
    except ShoalError as error:
        return error.line
    assert outcome == expected
    return None


def faults_of(store: Path) -> list[str]:
    """What `verify` says."""
    try:
        return verify(Store(store))
    except ShoalError as error:
        return [error.line]


@pytest.mark.parametrize("kind", KINDS)
def test_a_finished_store(case: Case, kind: str) -> None:
    files, refused = files_of(case, kind), 0
    for seed in range(CASES):
        rng = np.random.default_rng([seed, 0])
        what = damaged(files[rng.integers(len(files))], rng)
        changed = case.sound.changed()
        assert changed, what
        if kind not in READ_BY_PREPARE_ONLY and (case.store / NAME).exists():
            faults = faults_of(case.store)
            assert all(any(fault.startswith(f"{path}: ") for fault in faults) for path in changed), what
        line = answer(case, kind)
        assert line is None or ("\n" not in line and any(f"{path}: " in line for path in changed)), (what, line)
        refused += line is not None
        case.sound.restore()
    assert refused == 0 if kind in READ_BY_PREPARE_ONLY else refused > CASES // 2


@pytest.mark.parametrize("kind", sorted(KINDS.keys() - {"manifest"}))
def test_an_interrupted_prepare(case: Case, kind: str) -> None:
    """Without a manifest every file is needed again; those that are not as they were written are made again."""
    files = files_of(case, kind)
    for seed in range(CASES // 4):
        rng = np.random.default_rng([seed, 1])
        path = files[rng.integers(len(files))]
        (case.store / NAME).unlink()
        what = damaged(path, rng)
        line = answer(case, kind)
        if line is None:
            assert faults_of(case.store) == [], what
        else:
            assert kind == "journal", (what, line)
            assert line.startswith(f"{path}: "), (what, line)
        case.sound.restore()
