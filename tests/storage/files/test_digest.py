"""A digest is of the content; a note of it holds only for the very file."""

import os
from pathlib import Path

import pytest
import xxhash
from support.errors import refused

from shoal.storage.files import digest as module
from shoal.storage.files.digest import digest, input_digest


@pytest.fixture
def noted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Every file counts as large; the folder of notes."""
    monkeypatch.setenv("SHOAL_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(module, "NOTED_BYTES", 0)
    module._known.cache_clear()
    return tmp_path / "cache" / "digests"


def test_is_xxh3_of_the_whole_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "CHUNK", 7)
    (tmp_path / "a").write_bytes(bytes(range(100)))
    assert digest(tmp_path / "a") == xxhash.xxh3_128_hexdigest(bytes(range(100)))


def test_a_note_saves_reading_the_file_again(noted: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a").write_text("content")
    found = input_digest(tmp_path / "a")
    assert len(list(noted.iterdir())) == 1
    module._known.cache_clear()
    monkeypatch.setattr(module, "digest", lambda path: pytest.fail("read again"))
    assert input_digest(tmp_path / "a") == found


def test_a_file_of_equal_size_and_time_is_another_one(noted: Path, tmp_path: Path) -> None:
    (tmp_path / "a").write_text("content")
    before, stat = input_digest(tmp_path / "a"), (tmp_path / "a").stat()
    (tmp_path / "a").write_text("contenu")
    os.utime(tmp_path / "a", ns=(stat.st_atime_ns, stat.st_mtime_ns))
    assert input_digest(tmp_path / "a") == digest(tmp_path / "a") != before


@pytest.mark.parametrize("damage", ["", "{}", "[1]", '{"stat": 3}', "\x00"])
def test_a_damaged_note_is_not_believed(noted: Path, tmp_path: Path, damage: str) -> None:
    (tmp_path / "a").write_text("content")
    found = input_digest(tmp_path / "a")
    next(noted.iterdir()).write_text(damage)
    module._known.cache_clear()
    assert input_digest(tmp_path / "a") == found


def test_works_without_a_place_for_notes(noted: Path, tmp_path: Path) -> None:
    (tmp_path / "cache").write_text("no folder")
    (tmp_path / "a").write_text("content")
    assert input_digest(tmp_path / "a") == digest(tmp_path / "a")


def test_what_is_no_file_is_named_and_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for path, says in (
        (tmp_path / "none", "No such file"),
        (tmp_path / "pipe", "Is no file"),
        (tmp_path, "Is no file"),
    ):
        with refused(path, says=says):
            input_digest(path)
