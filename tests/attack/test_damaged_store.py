"""A store that is damaged at random: `run` names the file or has the bits of the undamaged one, `verify` finds all."""

import atexit
import shutil
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from integration.golden_digests import NOT_NUMBERS

from attack.damage import DAMAGES, Snapshot, damaged
from attack.verdict import line_of
from shoal.engine.config.config import Config, parse_config
from shoal.engine.hosts.backend import LocalBackend
from shoal.engine.preparing.prepare import prepare
from shoal.engine.records.metrics import read_metrics
from shoal.engine.rounds.state import FederationState
from shoal.engine.runs.run import run
from shoal.storage.errors import ShoalError
from shoal.storage.store.manifest import NAME, Manifest, read_manifest
from shoal.storage.store.store import Store
from shoal.storage.store.verify import verify

KINDS = {
    "manifest": NAME,
    "journal": "progress.jsonl",
    "assignment": "assignment.npy",
    "shards": "clients/*.arrow",
    "splits": "splits/*/*.arrow",
    "hops": "hops/r0.5-k1-float32/*.arrow",
    "hops of labelled rows": "hops/r0.5-k1-float32-labelled/*.arrow",
    "sparse shards": "clients/*.arrow",
    "sparse hops": "hops/r0.5-k1-float32/*.arrow",
}
READ_BY_PREPARE_ONLY = ("journal", "assignment")
IN_MEMORY = "/dev/shm" if Path("/dev/shm").is_dir() else None


class KeepsState(LocalBackend):
    """Keeps the last state of a run."""

    last: FederationState

    def end(self) -> None:
        if self._server is not None:
            self.last = self.state()
        super().end()


@dataclass
class Case:
    """A small prepared store, and what a run on it gives.

    Attributes:
        configs: By the rows of which hops are kept.
        sound: The store's files.
        manifest: The store's.
        expected: What the runs of the configs end with.
    """

    configs: Mapping[str, Config]
    store: Path
    sound: Snapshot
    manifest: Manifest
    expected: Mapping[str, Any]

    def outcome(self, kind: str) -> tuple[Any, Any]:
        """What a run gave and what it should give."""
        rows = "labelled" if kind == "hops of labelled rows" else "all"
        return numbers_of(self.configs[rows]), self.expected[rows]


def numbers_of(config: Config) -> Any:
    """Weights and metrics of a run, to the bit."""
    backend = KeepsState()
    folder = run(config, fresh=True, backend=backend)
    weights = {name: tensor.numpy().tobytes() for name, tensor in backend.last.server.items()}
    lines = [{key: value for key, value in line.items() if key not in NOT_NUMBERS} for line in read_metrics(folder)]
    return weights, lines


def write_words(path: Path) -> None:
    """A graph of 60 nodes with few words each, whose edges have weights."""
    rng = np.random.default_rng(0)
    x = (rng.random((60, 40)) < 0.05) * rng.random((60, 40))
    edges = rng.integers(0, 60, (2, 90))
    np.savez(path, edge_index=edges, edge_weight=(1 + edges.sum(0) % 5) / 2, x=x, y=np.arange(60) % 3)


def config_of(folder: Path, rows: str, sparse: bool) -> Config:
    data: dict[str, Any] = {"dataset": "sbm", "options": {"nodes": 60, "features": 3, "classes": 3, "degree": 3.0}}
    if sparse:
        data = {"dataset": "files", "path": str(folder / "words.npz")}
    return parse_config(
        {
            "name": rows,
            "rounds": 1,
            "data": {"store": str(folder / "store"), "root": str(folder), **data},
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


@cache
def made(sparse: bool = False) -> Case:
    """The store, made once a process; one with sparse features for those kinds that say so."""
    # Thousands of runs that each write to the disk and wait for it would take minutes.
    folder = Path(tempfile.mkdtemp(dir=IN_MEMORY))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    if sparse:
        write_words(folder / "words.npz")
    configs = {rows: config_of(folder, rows, sparse) for rows in ("all", "labelled")}
    store = [prepare(config) for config in configs.values()][-1].path
    assert verify(Store(store)) == []
    expected = {rows: numbers_of(config) for rows, config in configs.items()}
    assert all(torch.isfinite(torch.tensor(lines[0]["loss"])) for _, lines in expected.values())
    manifest = read_manifest(store)
    assert (manifest.layout, manifest.weighted) == (("sparse", True) if sparse else ("dense", False))
    return Case(configs, store, Snapshot(store), manifest, expected)


def is_sparse(kind: str) -> bool:
    """Whether files of this kind are those of a store with sparse features."""
    return kind.startswith("sparse")


def files_of(case: Case, kind: str) -> list[Path]:
    """Files of one kind."""
    files = sorted(case.store.glob(KINDS[kind]))
    assert files
    return files


def answer(case: Case, kind: str) -> str | None:
    """The line that refuses a run, or None where it gives the numbers of the undamaged store; others are an error."""

    def same() -> None:
        outcome, expected = case.outcome(kind)
        assert outcome == expected, "silently other numbers"

    return line_of(same)


def faults_of(store: Path) -> list[str]:
    """What `verify` says."""
    try:
        return verify(Store(store))
    except ShoalError as error:
        return [error.line]


def read_or_none(store: Path) -> Manifest | None:
    """The manifest, if it is as it was written."""
    try:
        return read_manifest(store)
    except ShoalError:
        return None


def attack(seed: int, kind: str | None = None) -> bool:
    """Damages one file of the finished store, of a kind if one is given; returns whether it is refused."""
    rng = np.random.default_rng([seed, 0])
    kind = kind or sorted(KINDS)[rng.integers(len(KINDS))]
    case = made(is_sparse(kind))
    files = files_of(case, kind)
    what = damaged(files[rng.integers(len(files))], seed, rng)
    try:
        changed = case.sound.changed()
        assert changed, what
        if kind not in READ_BY_PREPARE_ONLY and (case.store / NAME).exists():
            faults = faults_of(case.store)
            # A number whose last digit is another may still be the same number.
            named = {path for path in changed if path.name != NAME or read_or_none(case.store) != case.manifest}
            assert all(any(fault.startswith(f"{path}: ") for fault in faults) for path in named), what
        line = answer(case, kind)
        assert line is None or ("\n" not in line and any(f"{path}: " in line for path in changed)), (what, line)
    finally:
        case.sound.restore()
    return line is not None


# Every damage twice, and four times more where there are minutes.
SOME, MORE = range(2 * len(DAMAGES)), range(2 * len(DAMAGES), 6 * len(DAMAGES))
SEEDS = [pytest.param(SOME, id="some"), pytest.param(MORE, id="more", marks=pytest.mark.slow)]


@pytest.mark.exhaustive(2)
@pytest.mark.parametrize("seeds", SEEDS)
@pytest.mark.parametrize("kind", KINDS)
def test_finished_store_damaged_is_refused_or_sound(kind: str, seeds: range) -> None:
    refused = sum(attack(seed, kind) for seed in seeds)
    assert refused == 0 if kind in READ_BY_PREPARE_ONLY else refused > len(seeds) // 2


@pytest.mark.exhaustive(4)
@pytest.mark.parametrize("seeds", SEEDS)
@pytest.mark.parametrize("kind", sorted(KINDS.keys() - {"manifest"}))
def test_interrupted_prepare_damaged_is_refused_or_finished(kind: str, seeds: range) -> None:
    """Without a manifest every file is needed again; those that are not as they were written are made again."""
    case = made(is_sparse(kind))
    files = files_of(case, kind)
    for seed in seeds:
        rng = np.random.default_rng([seed, 1])
        path = files[rng.integers(len(files))]
        (case.store / NAME).unlink()
        what = damaged(path, seed, rng)
        line = answer(case, kind)
        if line is None:
            assert faults_of(case.store) == [], what
        else:
            assert kind == "journal", (what, line)
            assert line.startswith(f"{path}: "), (what, line)
        case.sound.restore()
