"""Digests, headers and archives against the bytes that are there, and a folder that one process at a time writes in."""

import errno
import fcntl
import io
import json
import mmap
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
import scipy.sparse as sp
import xxhash
from support.errors import refused

from shoal.storage.files import digest as module
from shoal.storage.files.atomic import output, replacing
from shoal.storage.files.bounded_npy import load_npy, matrix_of, open_npz, require_free
from shoal.storage.files.checksummed_json import sealed, unsealed
from shoal.storage.files.digest import digest, input_digest
from shoal.storage.files.disk import require_disk, writing


@pytest.fixture
def noted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Every file counts as large, on a disk, and long unchanged; the folder of notes."""
    monkeypatch.setenv("SHOAL_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(module, "NOTED_BYTES", 0)
    monkeypatch.setattr(module, "IN_MEMORY", ())
    monkeypatch.setattr(module, "QUIET_SECONDS", 0)
    return tmp_path / "cache" / "digests"


def test_is_xxh3_of_the_whole_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "CHUNK", 7)
    (tmp_path / "a").write_bytes(bytes(range(100)))
    assert digest(tmp_path / "a") == xxhash.xxh3_128_hexdigest(bytes(range(100)))


def test_a_note_saves_reading_the_file_again(noted: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a").write_text("content")
    found = input_digest(tmp_path / "a")
    assert len(list(noted.iterdir())) == 1
    monkeypatch.setattr(module, "_digest", lambda file: pytest.fail("read again"))
    assert input_digest(tmp_path / "a") == found


def test_a_file_of_equal_size_and_time_is_another_one(noted: Path, tmp_path: Path) -> None:
    (tmp_path / "a").write_text("content")
    before, stat = input_digest(tmp_path / "a"), (tmp_path / "a").stat()
    (tmp_path / "a").write_text("contenu")
    os.utime(tmp_path / "a", ns=(stat.st_atime_ns, stat.st_mtime_ns))
    assert input_digest(tmp_path / "a") == digest(tmp_path / "a") != before


@pytest.mark.parametrize("folder", [None, "/dev/shm"])
def test_a_change_through_a_map_is_seen(
    noted: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, folder: str | None
) -> None:
    """The second change of a page that waits to be written changes no time of the file; in memory none does."""
    monkeypatch.undo()
    monkeypatch.setenv("SHOAL_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(module, "NOTED_BYTES", 0)
    monkeypatch.setattr(module, "QUIET_SECONDS", 0.05)
    with tempfile.NamedTemporaryFile(dir=folder or tmp_path) as file:
        file.truncate(4096)
        with mmap.mmap(file.fileno(), 4096) as page:
            page[0] = 1
            path, until = Path(file.name), time.monotonic() + 0.2
            while not noted.exists() and time.monotonic() < until:
                before = input_digest(path)
            page[0] = 2
            assert input_digest(path) == digest(path) != before


@pytest.mark.parametrize("damage", ["", "{}", "[1]", '{"stat": 3}', "\x00"])
def test_a_damaged_note_is_not_believed(noted: Path, tmp_path: Path, damage: str) -> None:
    (tmp_path / "a").write_text("content")
    found = input_digest(tmp_path / "a")
    next(noted.iterdir()).write_text(damage)
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
        (tmp_path, "Is a directory"),
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


def test_what_is_no_file_is_never_replaced(tmp_path: Path) -> None:
    pipe, link, file = (tmp_path / name for name in ("pipe", "link", "file"))
    os.mkfifo(pipe)
    link.symlink_to(file)
    (tmp_path / "to pipe").symlink_to(pipe)
    for path in (pipe, tmp_path / "to pipe", Path("/dev/stdout"), Path("/dev/fd/1"), Path("/dev/table.csv")):
        with refused(says="is a pipe or a device, which no file replaces"):
            output(path)
    with refused(pipe, says="no file replaces"), replacing(pipe):
        pass
    assert pipe.is_fifo()
    with replacing(output(link)) as unfinished:
        unfinished.write_text("new")
    assert link.is_symlink()
    assert file.read_text() == "new"
    assert output(Path("/dev/shm/table.csv")) == Path("/dev/shm/table.csv")


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


def header_of(descr: Any, shape: tuple[int, ...]) -> bytes:
    text = repr({"descr": descr, "fortran_order": False, "shape": shape}).ljust(117) + "\n"
    return b"\x93NUMPY\1\0" + len(text).to_bytes(2, "little") + text.encode()


@pytest.mark.parametrize("mapped", [False, True])
@pytest.mark.parametrize(
    "array",
    [
        np.arange(6).reshape(2, 3),
        np.asfortranarray(np.arange(6).reshape(2, 3)),
        np.arange(4, dtype=">i4"),
        np.array(7.5),
        np.empty((2, 0), dtype=np.int64),
        np.array([True, False]),
    ],
)
def test_sound_arrays_come_back(tmp_path: Path, array: np.ndarray, mapped: bool) -> None:
    np.save(tmp_path / "a.npy", array)
    found = load_npy(tmp_path / "a.npy", mapped)
    assert (found.dtype, found.shape) == (array.dtype, array.shape)
    assert np.array_equal(found, array)
    with (tmp_path / "a.npz").open("wb") as file:
        np.savez_compressed(file, one=array, two=np.zeros(100_000))
    with open_npz(tmp_path / "a.npz") as npz:
        assert npz.names == ["one", "two"]
        assert np.array_equal(npz["one"], array)
        assert not npz["two"].any()


@pytest.mark.parametrize("mapped", [False, True])
@pytest.mark.parametrize(
    ("content", "says"),
    [
        (header_of("<i8", (2**40,)), "announces 8796093022208 bytes"),
        (header_of("<i8", (2**62, 2**62)), "announces"),
        (header_of("<i8", (3,)) + bytes(16), r"announces 24 bytes of int64 \[3\], there are 16"),
        (header_of("<i8", (1,)) + bytes(16), "announces 8 bytes"),
        (header_of("<i8", (-1,)) + bytes(8), r"shape \[-1\]"),
        (header_of("|O", (1,)) + bytes(8), "Python objects"),
        (header_of([("a", "<i8")], (1,)) + bytes(8), "records"),
        (b"\x93NUMPY\3\0" + bytes(200), r"version 3\.0"),
        (b"\x93NUMPY\1\0\x60\0" + b"(" * 96, "header cannot be read"),
        (b"", "magic"),
        (b"PK\3\4" + bytes(100), "several arrays"),
    ],
)
def test_a_header_that_is_not_of_what_is_there(tmp_path: Path, content: bytes, says: str, mapped: bool) -> None:
    (tmp_path / "a.npy").write_bytes(content)
    with pytest.raises(ValueError, match=says):
        load_npy(tmp_path / "a.npy", mapped)


def test_a_pipe_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "a.npy")
    for place in (tmp_path / "a.npy", Path("/dev/zero"), tmp_path):
        with pytest.raises(OSError, match=r"Is no file|Is a directory"):
            load_npy(place)


def member(name: str, content: bytes) -> bytes:
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr(f"{name}.npy", content)
    return made.getvalue()


def test_an_archive_that_announces_more_than_it_can_hold(tmp_path: Path) -> None:
    path = tmp_path / "a.npz"
    content = bytearray(member("x", header_of("<i8", (2**26,))))
    # The size of the member in the directory: half a gigabyte of a hundred bytes.
    directory = content.index(b"PK\1\2")
    content[directory + 24 : directory + 28] = (2**29 + 128).to_bytes(4, "little")
    path.write_bytes(content)
    with open_npz(path) as npz, pytest.raises(ValueError, match=r"536871040 bytes cannot come from \d+"):
        npz.header("x")
    path.write_bytes(member("x", header_of("<i8", (2**40,)) + bytes(80)))
    with open_npz(path) as npz, pytest.raises(ValueError, match="announces 8796093022208 bytes"):
        npz["x"]
    with open_npz(path) as npz, pytest.raises(KeyError):
        npz["y"]


def test_more_than_the_free_memory(tmp_path: Path) -> None:
    require_free(1)
    with pytest.raises(MemoryError, match="GiB are free"):
        require_free(psutil.virtual_memory().total)
    # A file with a hole, as large as it says.
    size = 2 * psutil.virtual_memory().total
    header = header_of("|u1", (size,))
    (tmp_path / "a.npy").write_bytes(header)
    os.truncate(tmp_path / "a.npy", len(header) + size)
    with pytest.raises(MemoryError, match="GiB are free"):
        load_npy(tmp_path / "a.npy")


MATRIX = np.array([[0, 2, 0], [1, 0, 0], [0, 0, 0], [3, 0, 4]], dtype=np.float32)


def saved(path: Path, fmt: str, **changes: np.ndarray) -> Path:
    sp.save_npz(path, sp.coo_array(MATRIX).asformat(fmt))
    with np.load(path) as file:
        pieces = {**file, **changes}
    with path.open("wb") as sink:
        np.savez(sink, **pieces)
    return path


@pytest.mark.parametrize("fmt", ["csr", "csc", "coo"])
def test_every_format_comes_back(tmp_path: Path, fmt: str) -> None:
    with open_npz(saved(tmp_path / "x.npz", fmt)) as npz:
        assert np.array_equal(matrix_of(npz, 4).toarray(), MATRIX)


@pytest.mark.parametrize(
    ("fmt", "changes", "says"),
    [
        ("csr", {"indptr": np.array([0, 1, 2, 2, 0])}, "row pointer"),
        ("csr", {"indptr": np.array([0, 3, 2, 2, 4], dtype=np.uint64)}, "row pointer"),
        ("csr", {"indptr": np.array([0, 1, 2, 2, 9])}, "row pointer"),
        ("csr", {"indptr": np.array([0.0, 1, 2, 2, 4])}, "must be integers"),
        ("csr", {"indices": np.array([1, 0, 0, 3])}, "indices must be < 3"),
        ("csc", {"indices": np.array([1, -3, 0, 3])}, "indices must be >= 0"),
        ("coo", {"row": np.array([0, 1, 3, 4])}, "row index|axis 0 index"),
        ("csr", {"shape": np.array([2**62, 3])}, "below 2.31"),
        ("coo", {"shape": np.array([2**30, 3])}, "1073741824 rows, but there are 4 nodes"),
        ("csr", {"data": np.array(["a"] * 4)}, "data: must be numbers"),
        ("bsr", {}, "format 'bsr'"),
        ("dia", {}, "format 'dia'"),
    ],
)
def test_pieces_that_do_not_fit(tmp_path: Path, fmt: str, changes: dict[str, np.ndarray], says: str) -> None:
    with open_npz(saved(tmp_path / "x.npz", fmt, **changes)) as npz, pytest.raises(ValueError, match=says):
        matrix_of(npz, 4)


def test_a_folder_in_which_nothing_is_written_is_removed(tmp_path: Path) -> None:
    """With those above it that were made; one that was there stays, and what is in it."""
    for there, written, left in (("", [], []), ("a", [], ["a"]), ("", ["x"], ["a", "a/b", "a/b/.lock", "a/b/x"])):
        root = tmp_path / f"{there}-{len(written)}"
        (root / there).mkdir(parents=True)
        with writing(root / "a" / "b"):
            for name in written:
                (root / "a" / "b" / name).touch()
        assert sorted(str(path.relative_to(root)) for path in root.rglob("*")) == left
