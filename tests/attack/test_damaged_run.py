"""A run folder that is damaged at random: each command names what it cannot use, or has the right numbers."""

import shutil
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from integration.golden_digests import lines_of
from support.small_runs import small_run

from attack import line_of
from attack.damage import Snapshot, damaged, folder_in_memory, some_seeds
from shoal.engine.config.config import Config, load_config, parse_config
from shoal.engine.records.checkpoint import load_last
from shoal.engine.records.metrics import METRICS, read_metrics
from shoal.engine.records.run_folder import CONFIG, SUMMARY, read_summary
from shoal.engine.runs.run import run
from shoal.engine.runs.verify import verify_run
from shoal.storage.files.checksummed_json import unsealed

ROUNDS = 4
KINDS = {
    "config": CONFIG,
    "metrics": METRICS,
    "summary": SUMMARY,
    "tensors": "checkpoints/*/state.safetensors",
    "state": "checkpoints/*/state.json",
    "metrics of checkpoints": "checkpoints/*/metrics.jsonl",
}
SEALED = (".json", ".jsonl")
READ_WHEN_FINISHED = ("config", "summary")


@dataclass
class Case:
    """A finished run and the same one cut off, with what they end with."""

    config: Config
    folder: Path
    finished: Snapshot
    cut_off: Snapshot
    expected: Any = None

    def numbers(self) -> Any:
        """Summary, metrics and last state of the run, to the bit."""
        read_metrics(self.folder)
        tensors, plain = load_last(self.folder / "checkpoints", ROUNDS).state.to_tensors()
        state = {name: tensor.numpy().tobytes() for name, tensor in tensors.items()}
        return read_summary(self.folder)["scopes"], lines_of(self.folder), state, plain


@cache
def made() -> Case:
    """The run, made once a process."""
    place = folder_in_memory()
    options = {"nodes": 60, "features": 3, "classes": 3, "degree": 3.0}
    plain = small_run(
        place,
        rounds=ROUNDS,
        data={"store": str(place / "store"), "options": options},
        partition={"method": "metis", "clients": 3},
        train={"epochs": 1},
        algorithm={"name": "fedgta"},
        run={"checkpoint_every": 1, "keep": 3},
    )
    config = parse_config(plain, "test")
    folder = run(config)
    finished = Snapshot(folder)
    (folder / SUMMARY).unlink()
    shutil.rmtree(folder / "checkpoints" / f"round-{ROUNDS:06d}")
    cut_off = Snapshot(folder)
    finished.restore()
    case = Case(config, folder, finished, cut_off)
    case.expected = case.numbers()
    return case


def put_back(case: Case, snapshot: Snapshot) -> None:
    shutil.rmtree(case.folder)
    for path, content in snapshot.files.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)


def is_as_written(path: Path, sound: Snapshot) -> bool:
    """Whether a file of sealed lines holds what it held; an unfinished last line does not count."""
    try:
        now, before = path.read_bytes(), sound.files[path]
        if path.suffix == ".json":
            return unsealed(now) == unsealed(before)
        return [unsealed(line) for line in now[: now.rfind(b"\n") + 1].splitlines()] == [
            unsealed(line) for line in before.splitlines()
        ]
    except (OSError, ValueError):
        return False


def attack(seed: int, kind: str | None = None, resumed: bool | None = None) -> bool:
    """Damages one file of a run, of a kind if one is given, finished or not; returns whether it is refused."""
    case, rng = made(), np.random.default_rng([seed, 3])
    kind = kind or sorted(KINDS)[rng.integers(len(KINDS))]
    resumed = (kind not in READ_WHEN_FINISHED and bool(rng.integers(2))) if resumed is None else resumed
    put_back(case, case.cut_off if resumed else case.finished)
    files = sorted(case.folder.glob(KINDS[kind]))
    what = damaged(files[rng.integers(len(files))], seed, rng)
    if resumed:
        line = line_of(lambda: run(case.config, resume=True))
        # There are sound checkpoints, so there is nothing to refuse.
        assert line is None, (what, line)
        assert case.numbers() == case.expected, ("silently other numbers", what)
        return False
    changed = case.finished.changed()
    faults = verify_run(case.folder)
    # Neither the end of a line that a kill cut off is a fault, nor the last digit of a number that stays the same.
    changed = {path for path in changed if not (path.suffix in SEALED and is_as_written(path, case.finished))}
    assert all(any(str(place) in fault or str(place.parent) in fault for fault in faults) for place in changed), what
    # As the command does: by its config, then what is printed; and by its folder.
    line = line_of(lambda: run(case.config)) or line_of(case.numbers) or line_of(lambda: load_config(case.folder))
    if line is not None:
        return True
    assert case.numbers() == case.expected, ("silently other numbers", what)
    return False


@pytest.mark.exhaustive(2)
@some_seeds
@pytest.mark.parametrize("kind", KINDS)
def test_finished_run_damaged_is_refused_or_sound(kind: str, seeds: range) -> None:
    refused = sum(attack(seed, kind, resumed=False) for seed in seeds)
    # Of three checkpoints, two are not looked at.
    assert refused > len(seeds) // (2 if kind in ("config", "metrics", "summary") else 8)


@pytest.mark.exhaustive(2)
@some_seeds
@pytest.mark.parametrize("kind", sorted(KINDS.keys() - set(READ_WHEN_FINISHED)))
def test_unfinished_run_damaged_is_refused_or_resumed(kind: str, seeds: range) -> None:
    for seed in seeds:
        attack(seed, kind, resumed=True)


@some_seeds
def test_run_without_a_sound_checkpoint_is_refused(seeds: range) -> None:
    case = made()
    for seed in seeds:
        put_back(case, case.cut_off)
        rng = np.random.default_rng([seed, 2])
        for folder in sorted((case.folder / "checkpoints").iterdir()):
            files = sorted(folder.iterdir())
            before = Snapshot(folder)
            # Swapped with the same file of another one, it would be sound there.
            while not (before.changed() and all(path.parent == folder for path in before.changed())):
                damaged(files[rng.integers(len(files))], seed, rng)
        left = Snapshot(case.folder)
        line = line_of(lambda: run(case.config, resume=True))
        assert line is not None
        assert "no checkpoint can be used (" in line
        assert {path for path in left.changed() if path.name != "run.log"} == set()
