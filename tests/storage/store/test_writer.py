from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
from support.errors import refused

from shoal.storage.files.checksummed_json import sealed
from shoal.storage.store.arrow_file import FileRecord, record_of
from shoal.storage.store.writer import PROGRESS, Journal, StoreWriter

IDENTITY = {"dataset": {"dataset": "small"}, "partition": {"clients": 3}}
FILE = Path("clients") / "00000.arrow"


class Source:
    """Writes files and counts how often."""

    def __init__(self) -> None:
        self.writes = 0

    def __call__(self, path: Path) -> FileRecord:
        self.writes += 1
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"content")
        return record_of(path)


@pytest.mark.parametrize("damage", [Path.unlink, *(partial(Path.write_bytes, data=d) for d in (b"conten", b"Content"))])
def test_a_file_that_vanished_or_changed_is_written_again(tmp_path: Path, damage: Callable[[Path], object]) -> None:
    source, said = Source(), []
    writer = StoreWriter(tmp_path, IDENTITY)
    first = writer.once(FILE, source)
    assert writer.once(FILE, source) == StoreWriter(tmp_path, IDENTITY).once(FILE, source) == first
    assert source.writes == 1
    damage(tmp_path / FILE)
    writer = StoreWriter(tmp_path, IDENTITY, said.append)
    assert writer.finished(FILE) is writer.finished(FILE) is None
    assert said == ([] if damage is Path.unlink else [f"{tmp_path / FILE}: not as it was written, made again"])
    assert writer.once(FILE, source) == writer.once(FILE, source) == first
    assert source.writes == 2


def test_a_file_is_logged_only_when_it_is_complete(tmp_path: Path) -> None:
    def interrupted(path: Path) -> FileRecord:
        Source()(path)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        StoreWriter(tmp_path, IDENTITY).once(FILE, interrupted)
    source = Source()
    StoreWriter(tmp_path, IDENTITY).once(FILE, source)
    assert source.writes == 1


def test_a_log_cut_at_any_byte_loses_only_what_was_cut(tmp_path: Path) -> None:
    names = [Path(f"{number}.arrow") for number in range(3)]
    writer = StoreWriter(tmp_path, IDENTITY)
    for name in names:
        writer.once(name, Source())
    log = (tmp_path / PROGRESS).read_bytes()
    ends = [at + 1 for at, byte in enumerate(log) if byte == ord("\n")]
    for cut in sorted({*range(0, len(log), 17), *ends, *(end - 1 for end in ends)}):
        (tmp_path / PROGRESS).write_bytes(log[:cut])
        source = Source()
        again = StoreWriter(tmp_path, IDENTITY)
        for name in names:
            again.once(name, source)
        assert source.writes == sum(end > cut for end in ends[1:])
        assert (tmp_path / PROGRESS).read_bytes() == log


def test_an_unfinished_store_of_something_else(tmp_path: Path) -> None:
    StoreWriter(tmp_path, IDENTITY)
    with refused(tmp_path, says="holds an unfinished store of another"):
        StoreWriter(tmp_path, {**IDENTITY, "partition": {"clients": 4}})


@pytest.mark.parametrize("line", [b"{", b"\xff\xfe", b"7", b"{}", sealed({"path": "a"}).encode()])
def test_a_damaged_log(tmp_path: Path, line: bytes) -> None:
    StoreWriter(tmp_path, IDENTITY)
    with (tmp_path / PROGRESS).open("ab") as log:
        log.write(line + b"\n")
    with refused(tmp_path / PROGRESS, says="); delete it and run"):
        StoreWriter(tmp_path, IDENTITY)


def test_bytes_of_a_folder(tmp_path: Path) -> None:
    writer = StoreWriter(tmp_path, IDENTITY)
    for path in ("clients/0", "clients/1", "clients/2", "hops/a/0", "other"):
        writer.once(Path(path), Source())
    (tmp_path / "clients/1").unlink()
    assert [writer.bytes_finished(Path(folder)) for folder in ("clients", "hops/a", "hops")] == [14, 7, 0]


@pytest.mark.parametrize("line", [b"\xff", b'{"a": 1}', b"7", b"", b"{", b'{"a": NaN}'])
def test_a_foreign_line_is_named(tmp_path: Path, line: bytes) -> None:
    path = tmp_path / "j"
    Journal(path).append({"a": 1})
    before = path.read_bytes()
    path.write_bytes(before + line + b"\n" + before)
    with refused(path, says="line 2 is damaged"):
        Journal(path)
    with refused(path, says="; do this"):
        Journal(path, "do this")
