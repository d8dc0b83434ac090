"""A store that is damaged at random: `run` names the file or has the bits of the undamaged one, `verify` finds all."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from integration.golden_digests import lines_of
from support.small_runs import small_run

from attack import line_of
from attack.damage import Snapshot, damaged, folder_in_memory, some_seeds
from shoal.engine.config.config import Config, parse_config
from shoal.engine.preparing.prepare import prepare
from shoal.engine.records.checkpoint import load_last
from shoal.engine.runs.run import run
from shoal.storage.errors import ShoalError
from shoal.storage.store.manifest import NAME, Manifest, read_manifest
from shoal.storage.store.store import Store
from shoal.storage.store.verify import verify

KINDS = {
    "manifest": NAME,
    "journal": "progress.jsonl",
    "assignment": "assignment.npy",
    "tables": "tables/**/*.arrow",
    "shards": "clients/*.arrow",
    "splits": "splits/*/*.arrow",
    "hops": "hops/r0.5-k1-float32/*.arrow",
    "hops of labelled rows": "hops/r0.5-k1-float32-labelled/*.arrow",
    "sparse shards": "clients/*.arrow",
    "sparse hops": "hops/r0.5-k1-float32/*.arrow",
}
READ_BY_PREPARE_ONLY = ("journal", "assignment")


@dataclass
class Case:
    """A small prepared store, and what runs on it give; `configs` by the rows of which hops are kept."""

    configs: Mapping[str, Config]
    store: Path
    sound: Snapshot
    manifest: Manifest
    expected: Mapping[str, Any]


@contextmanager
def in_pairs() -> Iterator[None]:
    """Packs of two clients, so that there are several to change places."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("shoal.storage.store.client_table.MOST_IN_A_PACK", 2)
        yield


def numbers_of(config: Config) -> Any:
    """Weights and metrics of a run, to the bit."""
    with in_pairs():
        folder = run(config, fresh=True)
    server = load_last(folder / "checkpoints", config.rounds).state.server
    weights = {name: tensor.numpy().tobytes() for name, tensor in server.items()}
    return weights, lines_of(folder)


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
    changes = {"partition": {"method": "metis", "clients": 3}, "propagation": {"rows": rows}, "train": {"epochs": 1}}
    model, method = {"name": "gamlp", "hidden": 4}, {"name": "fedgta"}
    plain = small_run(folder, name=rows, rounds=1, **changes, model=model, algorithm=method)
    return parse_config({**plain, "data": {"store": str(folder / "store"), "root": str(folder), **data}}, "test")


@cache
def made(sparse: bool = False) -> Case:
    """The store, made once a process; one with sparse features for those kinds that say so."""
    folder = folder_in_memory()
    if sparse:
        write_words(folder / "words.npz")
    configs = {rows: config_of(folder, rows, sparse) for rows in ("all", "labelled")}
    with in_pairs():
        store = [prepare(config) for config in configs.values()][-1].path
    assert verify(Store(store)) == []
    expected = {rows: numbers_of(config) for rows, config in configs.items()}
    assert all(torch.isfinite(torch.tensor(lines[0]["loss"])) for _, lines in expected.values())
    manifest = read_manifest(store)
    assert (manifest.layout, manifest.weighted) == (("sparse", True) if sparse else ("dense", False))
    return Case(configs, store, Snapshot(store), manifest, expected)


def answer(case: Case, kind: str) -> str | None:
    """The line that refuses a run, or None where it gives the numbers of the undamaged store; others are an error."""
    rows = "labelled" if kind == "hops of labelled rows" else "all"

    def same() -> None:
        assert numbers_of(case.configs[rows]) == case.expected[rows], "silently other numbers"

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
    case = made(kind.startswith("sparse"))
    files = sorted(case.store.glob(KINDS[kind]))
    what = damaged(files[rng.integers(len(files))], seed, rng)
    try:
        changed = case.sound.changed()
        assert changed, what
        if kind not in READ_BY_PREPARE_ONLY and (case.store / NAME).exists():
            faults = faults_of(case.store)
            # A number whose last digit is another may still be the same number.
            named = {path for path in changed if path.name != NAME or read_or_none(case.store) != case.manifest}
            # Of tables the first is named: without it no other file is known.
            wanted = any if kind == "tables" else all
            assert wanted(any(fault.startswith(f"{path}: ") for fault in faults) for path in named), what
        line = answer(case, kind)
        assert line is None or ("\n" not in line and any(f"{path}: " in line for path in changed)), (what, line)
    finally:
        case.sound.restore()
    return line is not None


@pytest.mark.exhaustive(3)
@some_seeds
@pytest.mark.parametrize("kind", KINDS)
def test_finished_store_damaged_is_refused_or_sound(kind: str, seeds: range) -> None:
    refused = sum(attack(seed, kind) for seed in seeds)
    assert refused == 0 if kind in READ_BY_PREPARE_ONLY else refused > len(seeds) // 2


@pytest.mark.exhaustive(4)
@some_seeds
@pytest.mark.parametrize("kind", sorted(KINDS.keys() - {"manifest"}))
def test_interrupted_prepare_damaged_is_refused_or_finished(kind: str, seeds: range) -> None:
    """Without a manifest every file is needed again; those that are not as they were written are made again."""
    case = made(kind.startswith("sparse"))
    files = sorted(case.store.glob(KINDS[kind]))
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
