"""Which rounds are kept as the best, in one go, in many, and after rounds that are run again."""

import shutil
from pathlib import Path
from typing import Any

import pytest

from shoal.engine.config.config import parse_config
from shoal.engine.records import checkpoint
from shoal.engine.records.checkpoint import BEST
from shoal.engine.records.metrics import read_metrics
from shoal.engine.records.run_folder import SUMMARY
from shoal.engine.runs.run import run
from shoal.storage.files.digest import digest

ROUNDS = 8


def config_of(folder: Path, name: str, **keys: Any) -> dict[str, Any]:
    return {
        "name": name,
        "rounds": ROUNDS,
        "data": {"dataset": "digits", "root": str(folder)},
        "partition": {"method": "louvain", "resolution": 4.0, "clients": 5},
        "algorithm": {"name": "fedavg"},
        "participation": {"ratio": 0.5},
        "train": {"lr": 3.0},
        "model": {"name": "sgc"},
        "propagation": {"hops": 2},
        "engine": {"backend": "local"},
        "run": {"root": str(folder / name), "tensorboard": False, "keep_best": True, "checkpoint_every": 2, **keys},
    }


def kept(folder: Path) -> dict[int, str]:
    """Rounds kept as the best, with their tensors."""
    rounds = checkpoint.rounds_kept(folder / BEST)
    return {number: digest(folder / BEST / f"round-{number:06d}" / checkpoint.TENSORS) for number in rounds}


@pytest.fixture
def whole(tmp_path: Path) -> Path:
    return run(parse_config(config_of(tmp_path, "whole"), "test"))


def test_best_rounds_keep_one_checkpoint_a_scope(whole: Path) -> None:
    scopes: dict[str, list[float]] = {}
    for line in read_metrics(whole):
        for scope, parts in line["scopes"].items():
            scopes.setdefault(scope, []).append(parts["val"]["nodes"])
    assert set(scopes) == {"trained", "served", "global"}
    first_highest = {values.index(max(values)) + 1 for values in scopes.values()}
    assert len(first_highest) > 1
    assert set(kept(whole)) == first_highest


def test_a_run_in_many_pieces_keeps_the_same(tmp_path: Path, whole: Path) -> None:
    pieces = parse_config(config_of(tmp_path, "pieces", max_seconds=1e-6), "test")
    stops = 0
    while True:
        try:
            folder = run(pieces, resume=stops > 0)
        except KeyboardInterrupt:
            stops += 1
        else:
            break
    assert stops == ROUNDS - 1
    assert kept(folder) == kept(whole)


def test_rounds_that_are_run_again_are_kept_again(tmp_path: Path, whole: Path) -> None:
    """A round that is gone with the newest checkpoint is not the best of the run that goes on before it."""
    expected = kept(whole)
    assert max(expected) > 2
    (whole / SUMMARY).unlink()
    shutil.rmtree(whole / "checkpoints" / f"round-{ROUNDS:06d}")
    # As if another machine had written it: what is kept is what the rounds come to now.
    for number in expected:
        if number > ROUNDS - 2:
            (whole / BEST / f"round-{number:06d}" / checkpoint.TENSORS).write_bytes(b"of another machine")
    stale = whole / BEST / f"round-{ROUNDS:06d}"
    if not stale.exists():
        shutil.copytree(whole / BEST / f"round-{max(expected):06d}", stale)
    run(parse_config(config_of(tmp_path, "whole"), "test"), resume=True)
    assert kept(whole) == expected
    assert not checkpoint.faults(whole / BEST)
