"""Models that clients of earlier rounds hold are on disk once, whatever the number of checkpoints that have them."""

import json
import os
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import pytest
import torch
from support.errors import refused

from shoal.engine.records import checkpoint, kept_models
from shoal.engine.records.checkpoint import BEST, CHECKPOINTS, PLAIN, TENSORS, Checkpoint
from shoal.engine.records.logged_lines import Logged
from shoal.engine.rounds import state as state_module
from shoal.engine.rounds.state import FederationState
from shoal.storage.files.checksummed_json import sealed, unsealed
from shoal.storage.files.digest import digest

# Numbers of a model, and its bytes; clients, and how many take part in a round.
WIDTH, CLIENTS, COHORT, ROUNDS = 2**16, 40, 4, 24
MODEL = 4 * WIDTH


@pytest.fixture(autouse=True)
def _small_files(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kept_models, "LEAST", 4 * MODEL)
    monkeypatch.setattr(kept_models, "MOST", 8 * MODEL)
    monkeypatch.setattr(state_module, "MODELS_A_FILE", 2 * MODEL)


def states(rounds: int = ROUNDS, same_after: int = ROUNDS) -> Iterator[FederationState]:
    """States after rounds in which a few clients are given a model; from a round on it is always the same."""
    rng, state = np.random.default_rng(0), FederationState()
    for number in range(1, rounds + 1):
        state = state.next_state(number)
        w = torch.full((WIDTH,), float(min(number, same_after)))
        state.server = {"w": w}
        state.deploy({"w": w}, rng.choice(CLIENTS, COHORT, replace=False).tolist())
        yield state


def save(run: Path, state: FederationState, keep: int = 2, root: str = CHECKPOINTS, **more: Path) -> Path:
    return checkpoint.save(run / root, Checkpoint(state, {}, {}, Logged(), **more), keep)


def on_disk(run: Path) -> dict[int, int]:
    """Bytes of files by inode."""
    return {file.stat().st_ino: file.stat().st_size for file in run.rglob("*") if file.is_file()}


def same(found: FederationState, expected: FederationState) -> None:
    assert found.newest == expected.newest
    assert found.contents == expected.contents
    assert found.downloads.keys() == expected.downloads.keys()
    for number, tree in expected.downloads.items():
        assert torch.equal(found.downloads[number]["w"], tree["w"])


def test_a_checkpoint_writes_what_is_new_and_the_disk_holds_each_model_once(tmp_path: Path) -> None:
    before: dict[int, int] = {}
    for state in states():
        save(tmp_path, state)
        now = on_disk(tmp_path)
        written = sum(size for inode, size in now.items() if inode not in before)
        held = len(state.downloads) * MODEL
        # The server's own tensor, what is too little for a file, and a file of which less than half is needed.
        assert written <= 2 * MODEL + 2 * kept_models.LEAST + 9000
        # Two checkpoints: each has its own server's tensor, and what is too little for a file.
        assert sum(now.values()) <= 2 * held + 2 * (MODEL + kept_models.LEAST) + 9000
        before = now
        loaded = checkpoint.load_newest(tmp_path / CHECKPOINTS)
        assert loaded is not None
        same(loaded.state, state)
    assert len(state.downloads) > 12, "many rounds have clients that were not visited since"


def test_models_of_equal_content_are_kept_once(tmp_path: Path) -> None:
    *_, state = states(same_after=1)
    assert len(state.downloads) > 12
    assert len({tree["w"].data_ptr() for tree in state.downloads.values()}) == 1
    save(tmp_path, state)
    assert sum(on_disk(tmp_path).values()) < 2 * MODEL + 9000
    loaded = checkpoint.load_newest(tmp_path / CHECKPOINTS)
    assert loaded is not None
    same(loaded.state, state)
    assert len({tree["w"].data_ptr() for tree in loaded.state.downloads.values()}) == 1


def test_a_state_without_models_is_completed_from_the_checkpoints_before(tmp_path: Path) -> None:
    """As the driver of a cluster gets it; also where a file is not linked any more, and in the folder of the best."""
    for state in states():
        kept = checkpoint.models_on_disk(tmp_path)
        sent = state.without_models(kept)
        assert len(sent.downloads) <= max(len(state.downloads) - len(kept & set(state.contents.values())), 0)
        save(tmp_path, sent)
        if state.round % 5 == 0:
            save(tmp_path, sent, 1, BEST)
            same(checkpoint.load_round(tmp_path / BEST, state.round).state, state)
        same(checkpoint.load_round(tmp_path / CHECKPOINTS, state.round).state, state)
    assert len(sent.downloads) < len(state.downloads) / 2


def test_a_checkpoint_is_whole_without_the_others_and_on_another_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    *_, last = (state for state in states() if save(tmp_path / "run", state))
    shutil.copytree(tmp_path / "run" / CHECKPOINTS / f"round-{ROUNDS:06d}", tmp_path / "alone" / "c" / "round-000024")
    shutil.rmtree(tmp_path / "run")
    found = checkpoint.load_round(tmp_path / "alone" / "c", ROUNDS)
    same(found.state, last)

    def no_links(*paths: object) -> None:
        raise OSError("no links here")

    monkeypatch.setattr(os, "link", no_links)
    copied = save(tmp_path / "fork", found.state, folder=found.folder)
    same(checkpoint.load_round(copied.parent, ROUNDS).state, last)
    further = last.next_state(ROUNDS + 1)
    further.deploy({"w": torch.zeros(WIDTH)}, [0])
    same(checkpoint.load_round(save(tmp_path / "fork", further).parent, ROUNDS + 1).state, further)


def test_a_write_that_is_cut_off_leaves_the_checkpoints_before(tmp_path: Path) -> None:
    """A kill leaves a folder that is not finished, whose files no checkpoint links."""
    *_, last = (state for state in states() if save(tmp_path, state))
    root = tmp_path / CHECKPOINTS
    torn = root / f"round-{ROUNDS + 1:06d}.unfinished"
    torn.mkdir()
    (torn / "models.part").write_bytes(b"torn")
    (torn / f"models-{'0' * 32}.safetensors").write_bytes(b"torn")
    found = checkpoint.load_newest(root)
    assert found is not None
    same(found.state, last)
    further = last.next_state(ROUNDS + 1)
    further.deploy({"w": torch.zeros(WIDTH)}, [0])
    folder = save(tmp_path, further)
    assert not torn.exists()
    same(checkpoint.load_round(root, ROUNDS + 1).state, further)
    named = {file.name for file in folder.iterdir() if kept_models.FILE.fullmatch(file.name)}
    assert named
    assert all(digest(folder / name) == kept_models.FILE.fullmatch(name)[1] for name in named)  # type: ignore[index]
    damaged = folder / sorted(named)[0]
    content = bytearray(damaged.read_bytes())
    content[-1] ^= 1
    damaged.write_bytes(content)
    with refused(folder, says=f"{damaged.name}: checksum does not match"):
        checkpoint.load_round(root, ROUNDS + 1)


def test_a_checkpoint_of_before_is_read_and_goes_on(tmp_path: Path) -> None:
    """Its models are among the tensors, by round, and no digests of them are noted."""
    *_, state = states(8)
    folder = save(tmp_path, state)
    record = unsealed((folder / PLAIN).read_bytes())
    tensors = {name: t for name, t in state.to_tensors()[0].items() if not name.startswith("model/")}
    tensors |= {f"download/{number}/w": tree["w"] for number, tree in state.downloads.items()}
    for file in folder.glob("models-*"):
        file.unlink()
    checkpoint.write_tensors(folder / TENSORS, tensors)
    del record["state"]["downloads"]
    record["files"] = {TENSORS: digest(folder / TENSORS), "metrics.jsonl": record["files"]["metrics.jsonl"]}
    (folder / PLAIN).write_text(sealed({**record, "format": checkpoint.BY_ROUND}))
    found = checkpoint.load_round(folder.parent, 8)
    for number in found.state.downloads:
        found.state.content(number)
    same(found.state, state)
    linked = save(tmp_path / "fork", found.state, folder=found.folder)
    assert json.loads((linked / PLAIN).read_text())["format"] == checkpoint.FORMAT
    same(checkpoint.load_round(linked.parent, 8).state, state)


def test_temporary_files_hold_the_models_that_clients_have(monkeypatch: pytest.MonkeyPatch) -> None:
    """A file ends with its last model: of few models a file, most of what is not needed any more goes."""
    monkeypatch.setattr(state_module, "DOWNLOADS_IN_MEMORY", 10 * MODEL)
    for state in states(60):
        mapped = _mapped_bytes(state.downloads.values())
        assert mapped <= 2 * len(state.downloads) * MODEL
    assert mapped


def _mapped_bytes(trees: Sequence[dict[str, torch.Tensor]]) -> int:
    """Bytes of the unnamed files behind tensors."""
    storages = {tree["w"].untyped_storage().data_ptr() for tree in trees}
    sizes = 0
    for line in Path("/proc/self/maps").read_text().splitlines():
        place, *_, path = [*line.split(None, 5), ""][:6] if line.endswith("(deleted)") else (line.split()[0], "")
        first, end = (int(number, 16) for number in place.split("-"))
        if "(deleted)" in path and any(first <= storage < end for storage in storages):
            sizes += end - first
    return sizes
