"""`shoal verify` goes through everything that lies in a store."""

from collections.abc import Callable
from pathlib import Path

import pytest
from support.shards import flip

Refused = Callable[..., str]


@pytest.fixture
def store(tiny: Path, shoal: Callable[..., None]) -> Path:
    """A store with the whole graph as one client below it."""
    shoal("prepare", tiny, "algorithm.name=global")
    return tiny.parent / "store"


def test_a_sound_store(store: Path, shoal: Callable[..., None], capsys: pytest.CaptureFixture[str]) -> None:
    capsys.readouterr()
    shoal("verify", store)
    # Four clients with a shard, a split and hops each, and the assignment; then the one client that is the whole graph.
    said = capsys.readouterr().out
    assert said == f"{store}: 13 files, all as they were written\n{store}/whole: 3 files, all as they were written\n"


@pytest.mark.parametrize("whole", [False, True])
@pytest.mark.parametrize("name", ["manifest.json", "progress.jsonl", "clients/00000.arrow"])
def test_a_damaged_file_is_named(store: Path, refused: Refused, whole: bool, name: str) -> None:
    path = (store / "whole" if whole else store) / name
    flip(path, path.stat().st_size // 2)
    assert refused("verify", store).startswith(f"shoal: {path}: ")


def test_verify_names_all_damaged_files(store: Path, refused: Refused, capsys: pytest.CaptureFixture[str]) -> None:
    first, second = store / "assignment.npy", store / "whole" / "hops" / "r0.5-k1-float32" / "00000.arrow"
    for path in (first, second):
        flip(path, path.stat().st_size // 2)
    line = refused("verify", store)
    assert line == (
        f"shoal: {first}: checksum does not match progress.jsonl (and 1 more); "
        "delete the damaged files and run `shoal prepare` again"
    )


def test_verify_names_unlisted_files(
    store: Path, shoal: Callable[..., None], capsys: pytest.CaptureFixture[str]
) -> None:
    stray = store / "clients" / "00007.arrow"
    stray.touch()
    capsys.readouterr()
    shoal("verify", store)
    assert f"{stray}: nothing names this file, and no run reads it\n" in capsys.readouterr().out
