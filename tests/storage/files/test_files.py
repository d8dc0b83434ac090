"""Digests of content and of sealed objects, and a folder that one process at a time writes in."""

import errno
import fcntl
import json
import os
import random
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import xxhash
from support.errors import refused

from shoal.storage.files import digest as module
from shoal.storage.files.checksummed_json import sealed, unsealed
from shoal.storage.files.digest import digest, input_digest
from shoal.storage.files.disk import require_disk, writing


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


PLAIN = {"round": 4, "loss": 0.1, "names": ["ä", "b"], "by": {3: {"x": None, "y": True}}}


def test_comes_back_as_json_has_it() -> None:
    text = sealed(PLAIN)
    assert unsealed(text) == json.loads(json.dumps(PLAIN))
    # Neither spaces nor the order of keys matter.
    assert unsealed(sealed(PLAIN, indent=1)) == unsealed(text)
    assert unsealed(json.dumps(dict(reversed(json.loads(text).items())), indent=3)) == unsealed(text)


@pytest.mark.parametrize("seed", range(200))
def test_a_changed_byte_is_refused_or_changes_nothing(seed: int) -> None:
    text = bytearray(sealed(PLAIN).encode())
    rng = random.Random(seed)
    text[rng.randrange(len(text))] ^= 1 << rng.randrange(8)
    try:
        found = unsealed(bytes(text))
    except ValueError:
        return
    assert found == unsealed(sealed(PLAIN))


@pytest.mark.parametrize("text", ["", "[]", "3", "{}", '{"a": 1}', "[" * 100_000, '{"seal": null}'])
def test_what_is_no_sealed_object_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        unsealed(text)


@pytest.mark.parametrize("number", [float("nan"), float("inf")])
def test_json_has_no_nan(number: float) -> None:
    with pytest.raises(ValueError, match="JSON"):
        sealed({"loss": number})


HOLD = """
import sys
from functools import partial
from pathlib import Path
from shoal.storage.files.disk import writing
with writing(Path(sys.argv[1])):
    print("held", flush=True)
    sys.stdin.read()
"""


@pytest.mark.parametrize("end", ["exit", "kill"])
def test_one_process_writes_at_a_time(tmp_path: Path, end: str) -> None:
    store = tmp_path / "a" / "store"
    command = [sys.executable, "-c", HOLD, str(store)]
    other = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert other.stdout.readline() == "held\n"
    with refused(store, says="another prepare"), writing(store):
        pass
    with writing(tmp_path / "another"):
        pass
    if end == "kill":
        other.send_signal(signal.SIGKILL)
    other.communicate()
    with writing(store):
        pass


def test_a_folder_that_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with refused(tmp_path / "file", says="cannot be made"), writing(tmp_path / "file"):
        pass


def test_without_locks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(file: object, how: int) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "flock", refuse)
    with refused(tmp_path, says="No locks available; set data.store"), writing(tmp_path):
        pass


def test_what_does_not_fit(tmp_path: Path) -> None:
    require_disk(tmp_path, 1, "the hops")
    with refused(tmp_path, says="the hops need 1048576.00 GiB,"):
        require_disk(tmp_path, 1 << 50, "the hops")
