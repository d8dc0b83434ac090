"""A run folder that is damaged at random: each command names what it cannot use, or has the right numbers."""

import shutil
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from damage import Snapshot, damaged
from golden_digests import NOT_NUMBERS

from engine.commands.run import run
from engine.records.checkpoint import load_last
from engine.records.metrics import METRICS, read_metrics
from engine.records.run_folder import CONFIG, SUMMARY, read_summary
from engine.records.verify_run import require_whole_metrics, verify_run
from engine.settings.config import Config, load_config, parse_config
from storage.errors import ShoalError

CASES = 200
ROUNDS = 4
KINDS = {
    "config": CONFIG,
    "metrics": METRICS,
    "summary": SUMMARY,
    "tensors": "checkpoints/*/state.safetensors",
    "state": "checkpoints/*/state.json",
    "metrics of checkpoints": "checkpoints/*/metrics.jsonl",
}
IN_MEMORY = "/dev/shm" if Path("/dev/shm").is_dir() else None


@dataclass
class Case:
    """A finished run and the same one cut off, with what they end with."""

    config: Config
    folder: Path
    finished: Snapshot
    cut_off: Snapshot
    expected: Any

    def numbers(self) -> Any:
        """Summary, metrics and last state of the run, to the bit."""
        require_whole_metrics(self.folder)
        lines = [{k: v for k, v in line.items() if k not in NOT_NUMBERS} for line in read_metrics(self.folder)]
        found = load_last(self.folder / "checkpoints", ROUNDS)
        tensors, plain = found.state.to_tensors()
        state = {name: tensor.numpy().tobytes() for name, tensor in tensors.items()}
        return read_summary(self.folder)["scopes"], lines, state, plain


@pytest.fixture(scope="module")
def case() -> Iterator[Case]:
    with tempfile.TemporaryDirectory(dir=IN_MEMORY) as name:
        place = Path(name)
        options = {"nodes": 60, "features": 3, "classes": 3, "degree": 3.0}
        config = parse_config(
            {
                "name": "damaged",
                "rounds": ROUNDS,
                "data": {"dataset": "sbm", "store": str(place / "store"), "root": name, "options": options},
                "partition": {"method": "metis", "clients": 3},
                "propagation": {"hops": 1},
                "model": {"name": "gamlp", "hidden": 4},
                "train": {"epochs": 1},
                "algorithm": {"name": "fedgta"},
                "engine": {"backend": "local"},
                "run": {"root": str(place / "runs"), "tensorboard": False, "checkpoint_every": 1, "keep": 3},
            },
            "test",
        )
        folder = run(config)
        finished = Snapshot(folder)
        (folder / SUMMARY).unlink()
        shutil.rmtree(folder / "checkpoints" / f"round-{ROUNDS:06d}")
        cut_off = Snapshot(folder)
        finished.restore()
        made = Case(config, folder, finished, cut_off, None)
        made.expected = made.numbers()
        yield made


def put_back(case: Case, snapshot: Snapshot) -> None:
    shutil.rmtree(case.folder)
    for path, content in snapshot.files.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)


def line_of(act: Callable[[], object]) -> str | None:
    """The one line that refuses; None if nothing does."""
    try:
        act()
    except ShoalError as error:
        line = error.line
    else:
        return None
    assert "\n" not in line
    return line


def rng_and_file(case: Case, kind: str, seed: int, stream: int) -> tuple[np.random.Generator, Path | None]:
    rng = np.random.default_rng([seed, stream])
    files = sorted(case.folder.glob(KINDS[kind]))
    return rng, files[rng.integers(len(files))] if files else None


@pytest.mark.parametrize("kind", KINDS)
def test_a_finished_run(case: Case, kind: str) -> None:
    refused = 0
    for seed in range(CASES):
        put_back(case, case.finished)
        rng, path = rng_and_file(case, kind, seed, 0)
        assert path is not None
        what = damaged(path, rng)
        changed = case.finished.changed()
        faults = verify_run(case.folder)
        # The end of a line that a kill cut off is no fault.
        changed -= {case.folder / METRICS} if line_of(case.numbers) is None and kind == "metrics" else set()
        assert all(any(str(place) in fault or str(place.parent) in fault for fault in faults) for place in changed), (
            what,
            faults,
        )
        # As the command does: by its config, then what is printed; and by its folder.
        line = line_of(lambda: run(case.config)) or line_of(case.numbers) or line_of(lambda: load_config(case.folder))
        if line is None:
            assert case.numbers() == case.expected, what
        refused += line is not None
    # Of three checkpoints, two are not looked at.
    assert refused > (CASES // 2 if kind in ("config", "metrics", "summary") else -1)


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind not in ("config", "summary")])
def test_a_run_that_is_resumed(case: Case, kind: str) -> None:
    for seed in range(CASES):
        put_back(case, case.cut_off)
        rng, path = rng_and_file(case, kind, seed, 1)
        assert path is not None
        what = damaged(path, rng)
        line = line_of(lambda: run(case.config, resume=True))
        # There are sound checkpoints, so there is nothing to refuse.
        assert line is None, (what, line)
        assert case.numbers() == case.expected, what


def test_every_checkpoint_is_damaged(case: Case) -> None:
    for seed in range(CASES):
        put_back(case, case.cut_off)
        rng = np.random.default_rng([seed, 2])
        for folder in sorted((case.folder / "checkpoints").iterdir()):
            files = sorted(folder.iterdir())
            before = Snapshot(folder)
            # Swapped with the same file of another one, it would be sound there.
            while not (before.changed() and all(path.parent == folder for path in before.changed())):
                damaged(files[rng.integers(len(files))], rng)
        left = Snapshot(case.folder)
        line = line_of(lambda: run(case.config, resume=True))
        assert line is not None
        assert "no checkpoint can be used (" in line
        assert {path for path in left.changed() if path.name != "run.log"} == set()
