"""Checkpoints: what was saved comes back, the newest and the best are kept, and none that cannot be used is lost."""

import json
import os
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from support.errors import refused
from support.small_runs import small_run

from shoal.engine.config.config import Config, parse_config
from shoal.engine.records import checkpoint
from shoal.engine.records.checkpoint import BEST, FORMAT, PLAIN, TENSORS, Checkpoint
from shoal.engine.records.logged_lines import Logged
from shoal.engine.records.metrics import METRICS, read_metrics
from shoal.engine.records.run_folder import SUMMARY
from shoal.engine.rounds.state import FederationState
from shoal.engine.runs.run import run
from shoal.engine.scores.table import ScoreTable
from shoal.storage.files.checksummed_json import sealed
from shoal.storage.files.digest import digest


def state(number: int) -> FederationState:
    return FederationState(
        round=number,
        server={"w": torch.full((3,), float(number)), "met": torch.tensor([True, False])},
        clients={2: {"opt.exp_avg": torch.ones(3), "opt.step": torch.tensor(4.0)}},
        inboxes={7: {"w": torch.arange(3.0)}},
        downloads={number: {"w": torch.zeros(3)}},
        newest={2: number},
        scores={"deployed": ScoreTable({2: np.arange(12).reshape(2, 3, 2), 7: np.zeros((2, 3, 2), dtype=np.int64)})},
    )


def save(root: Path, number: int, keep: int = 9) -> Path:
    lines = root.with_name("lines")
    lines.write_text(f"line {number}\n")
    logged = Logged.first_lines(lines, 9)
    return checkpoint.save(root, Checkpoint(state(number), {"torch": "x"}, {"data": "y"}, logged), keep)


def newest(root: Path) -> Checkpoint:
    found = checkpoint.load_newest(root)
    assert found is not None
    return found


def test_round_trip_and_keep(tmp_path: Path) -> None:
    assert checkpoint.load_newest(tmp_path / "none") is None
    for number in (2, 4, 6):
        save(tmp_path, number, keep=2)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["round-000004", "round-000006"]
    found = newest(tmp_path)
    assert (found.environment, found.inputs) == ({"torch": "x"}, {"data": "y"})
    assert list(found.metrics.lines()) == [b"line 6\n"]
    assert not found.passed_over
    (tmp_path / "plain").touch()
    modes = {path.stat().st_mode for path in (tmp_path / "plain", *(tmp_path / "round-000006").iterdir())}
    assert len(modes) == 1, "others may read what the user lets them read"
    tensors, plain = found.state.to_tensors()
    expected, expected_plain = state(6).to_tensors()
    assert plain == expected_plain
    assert tensors.keys() == expected.keys()
    assert all(torch.equal(tensors[name], expected[name]) for name in expected)


def flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 4
    path.write_bytes(content)


def of_format(number: int) -> Callable[[Path], None]:
    return lambda path: (path / PLAIN).write_text(json.dumps({"format": number, "anything": 1})) and None


def other_round(folder: Path) -> None:
    record = json.loads((folder / PLAIN).read_text())
    record["state"]["round"] = 7
    (folder / PLAIN).write_text(json.dumps(record))


def unreadable(name: str) -> Callable[[Path], None]:
    def damage(folder: Path) -> None:
        (folder / name).unlink()
        (folder / name).symlink_to(name)

    return damage


DAMAGES: list[tuple[Callable[[Path], None], str]] = [
    (lambda folder: os.truncate(folder / TENSORS, 20), r"damaged \(state\.safetensors: checksum does not match\)"),
    (lambda folder: flip(folder / TENSORS), r"damaged \(state\.safetensors: checksum does not match\)"),
    (lambda folder: flip(folder / METRICS), r"damaged \(metrics\.jsonl: checksum does not match\)"),
    (lambda folder: (folder / METRICS).unlink(), r"damaged \(metrics\.jsonl is missing\)"),
    (lambda folder: (folder / PLAIN).unlink(), r"damaged \(state\.json is missing\)"),
    (lambda folder: (folder / PLAIN).write_text("[1]"), r"damaged \(not an object\)"),
    (lambda folder: (folder / PLAIN).write_text(sealed({"format": FORMAT})), r"damaged \('files'\)"),
    (lambda folder: flip(folder / PLAIN), r"damaged \("),
    (other_round, r"damaged \(changed since it was written\)"),
    (
        of_format(FORMAT + 1),
        rf"format {FORMAT + 1} of another version of Shoal, this one reads {FORMAT}; upgrade Shoal",
    ),
    (of_format(FORMAT - 2), rf"format {FORMAT - 2} of .*, this one reads {FORMAT}; use the Shoal that wrote it"),
    (unreadable(TENSORS), r"cannot be read \(Too many levels of symbolic links\)"),
    (unreadable(PLAIN), r"cannot be read \(Too many levels of symbolic links\)"),
]


@pytest.mark.parametrize(("damage", "fault"), DAMAGES)
def test_load_newest_skips_damaged_checkpoints(tmp_path: Path, damage: Callable[[Path], None], fault: str) -> None:
    for number in (1, 999_999, 1_000_000):
        folder = save(tmp_path, number)
    (tmp_path / "round-2000000.unfinished").mkdir()
    damage(folder)
    found = newest(tmp_path)
    assert found.state.round == 999_999
    (said,) = found.passed_over
    assert re.search(rf"^{folder}: {fault}", said), said
    before = {path.name: os.lstat(path).st_ino for path in folder.iterdir()}
    checkpoint.set_aside(tmp_path, 999_999)
    aside = tmp_path / "round-1000000.unusable"
    assert {path.name: os.lstat(path).st_ino for path in aside.iterdir()} == before
    again = save(tmp_path, 1_000_000, keep=1)
    assert newest(tmp_path).state.round == 1_000_000
    # If none can be used, that is an error with every complaint.
    damage(again)
    with refused(says=f"no checkpoint can be used ({again}: "):
        checkpoint.load_newest(tmp_path)


def test_set_aside_numbers_a_second_one(tmp_path: Path) -> None:
    for _ in range(3):
        flip(save(tmp_path, 3) / TENSORS)
        checkpoint.set_aside(tmp_path, 2)
    names = {path.name for path in tmp_path.iterdir()}
    assert names == {"round-000003.unusable", "round-000003.unusable1", "round-000003.unusable2"}
    assert checkpoint.load_newest(tmp_path) is None


def test_a_full_disk_keeps_the_older_ones(tmp_path: Path) -> None:
    folder = save(tmp_path, 1, keep=1)
    before = (folder / TENSORS).stat()
    save(tmp_path, 1)
    assert (folder / TENSORS).stat() == before, "the checkpoint of a round is written once"
    unfinished = tmp_path / "round-000002.unfinished"
    unfinished.write_text("in the way")
    with refused(says="the checkpoint cannot be written"):
        save(tmp_path, 2, keep=1)
    assert newest(tmp_path).state.round == 1
    unfinished.unlink()
    save(tmp_path, 2, keep=1)
    assert [path.name for path in tmp_path.iterdir()] == ["round-000002"]


ROUNDS = 8


def config_of(folder: Path, name: str, **keys: Any) -> Config:
    plain = small_run(
        folder,
        rounds=ROUNDS,
        data={"dataset": "digits", "options": {}},
        partition={"method": "louvain", "resolution": 4.0, "clients": 5},
        participation={"ratio": 0.5},
        train={"lr": 3.0},
        run={"root": str(folder / name), "keep_best": True, "checkpoint_every": 2, **keys},
    )
    return parse_config(plain, "test")


def kept(folder: Path) -> dict[int, str]:
    """Rounds kept as the best, with their tensors."""
    rounds = checkpoint.rounds_kept(folder / BEST)
    return {number: digest(folder / BEST / f"round-{number:06d}" / TENSORS) for number in rounds}


@pytest.fixture
def whole(tmp_path: Path) -> Path:
    return run(config_of(tmp_path, "whole"))


def test_best_rounds_keep_one_checkpoint_a_scope(whole: Path) -> None:
    scopes: dict[str, list[float]] = {}
    for line in read_metrics(whole):
        for scope, parts in line["scopes"].items():
            scopes.setdefault(scope, []).append(parts["val"]["nodes"])
    assert set(scopes) == {"trained", "deployed", "global"}
    first_highest = {values.index(max(values)) + 1 for values in scopes.values()}
    assert len(first_highest) > 1
    assert set(kept(whole)) == first_highest


def test_a_run_in_many_pieces_keeps_the_same(tmp_path: Path, whole: Path) -> None:
    pieces = config_of(tmp_path, "pieces", max_seconds=1e-6)
    for number in range(1, ROUNDS):
        with pytest.raises(KeyboardInterrupt):
            run(pieces, resume=number > 1)
    assert kept(run(pieces, resume=True)) == kept(whole)


def test_rounds_that_are_run_again_are_kept_again(tmp_path: Path, whole: Path) -> None:
    """A round that is gone with the newest checkpoint is not the best of the run that goes on before it."""
    expected = kept(whole)
    assert max(expected) > 2
    (whole / SUMMARY).unlink()
    shutil.rmtree(whole / "checkpoints" / f"round-{ROUNDS:06d}")
    # As if another machine had written it: what is kept is what the rounds come to now.
    for number in expected:
        if number > ROUNDS - 2:
            (whole / BEST / f"round-{number:06d}" / TENSORS).write_bytes(b"of another machine")
    stale = whole / BEST / f"round-{ROUNDS:06d}"
    if not stale.exists():
        shutil.copytree(whole / BEST / f"round-{max(expected):06d}", stale)
    run(config_of(tmp_path, "whole"), resume=True)
    assert kept(whole) == expected
    assert not checkpoint.faults(whole / BEST)


def test_parts_of_the_state_are_in_files_as_before_they_were_extras() -> None:
    """Checkpoints of before had `known`, `release` and models of tiers by number; others have names of their own."""
    here = state(3)
    kept = {"selection": ("known", "last loss"), "privacy": ("release", "2/w"), "tiers": ("tier", "0/w")}
    before = {f"{kind}/{name}": torch.full((2,), float(len(name))) for kind, name in kept.values()}
    others = {"extra/mine.py:Mine/rows": torch.arange(4)}
    tensors, plain = here.to_tensors()
    again = FederationState.from_tensors({**tensors, **before, **others}, plain)
    assert again.extras.keys() == kept.keys() | {"mine.py:Mine"}
    for part, (kind, name) in kept.items():
        assert torch.equal(again.extras[part][name], before[f"{kind}/{name}"])
    assert torch.equal(again.extras["mine.py:Mine"]["rows"], torch.arange(4))
    assert again.to_tensors()[0].keys() == tensors.keys() | before.keys() | others.keys()
    # A later state shares no tree with it that either may change.
    again.next_state(4).extras["privacy"]["clip"] = torch.ones(())
    assert list(again.extras["privacy"]) == ["2/w"]
