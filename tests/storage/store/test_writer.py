"""Arrow files as any reader has them, and the journal of those that were written."""

import os
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
import xxhash
from support.errors import refused

from shoal.storage.files.checksummed_json import sealed
from shoal.storage.shards import arrow_file
from shoal.storage.shards.arrow_file import FileRecord, MappedFile, fixed_rows, record_of, require_content
from shoal.storage.store.manifest import NAME, read_manifest
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


def test_a_pack_waits_for_the_disk_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    writer, waited, fsync = StoreWriter(tmp_path, IDENTITY), [], os.fsync
    monkeypatch.setattr(os, "fsync", lambda number: waited.append(number) or fsync(number))
    columns = {"node": pa.array(np.arange(3))}
    record = writer.once(FILE, partial(arrow_file.write_pack, kind="shard", clients=[columns, columns]))
    assert len(waited) == 1
    # What another process reads of the journal is there all the same.
    assert StoreWriter(tmp_path, IDENTITY).finished(FILE) == record


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


def test_bytes_of_a_folder(tmp_path: Path) -> None:
    writer = StoreWriter(tmp_path, IDENTITY)
    for path in ("clients/0", "clients/1", "clients/2", "hops/a/0", "other"):
        writer.once(Path(path), Source())
    (tmp_path / "clients/1").unlink()
    assert [writer.bytes_finished(Path(folder)) for folder in ("clients", "hops/a", "hops")] == [14, 7, 0]


@pytest.mark.parametrize(
    "line", [b"\xff", b'{"a": 1}', b"", b"{", b'{"a": NaN}', b"{}", sealed({"path": "a"}).encode()]
)
def test_a_foreign_line_is_named(tmp_path: Path, line: bytes) -> None:
    path = tmp_path / PROGRESS
    StoreWriter(tmp_path, IDENTITY)
    before = path.read_bytes()
    path.write_bytes(before + line + b"\n" + before)
    with refused(path, says="delete it and run"):
        StoreWriter(tmp_path, IDENTITY)
    if b"path" not in line:
        with refused(path, says="line 2 is damaged"):
            Journal(path)


def columns(rows: int = 5) -> dict[str, pa.Array]:
    numbers = np.arange(rows, dtype=np.int64)
    lists = pa.ListArray.from_arrays(pa.array(np.arange(rows + 1, dtype=np.int32)), pa.array(numbers.astype(np.int32)))
    matrix = fixed_rows(np.arange(3 * rows, dtype=np.float32).reshape(rows, 3))
    return {"number": pa.array(numbers), "list": lists, "matrix": matrix}


def test_any_arrow_reader_reads_what_is_written(tmp_path: Path) -> None:
    path = tmp_path / "folder" / "file.arrow"
    record = arrow_file.write(path, "test", columns())
    content = path.read_bytes()
    assert (record.bytes, record.xxh3) == (len(content), xxhash.xxh3_128_hexdigest(content))
    table = pa.ipc.open_file(str(path)).read_all()
    assert table.column("number").to_pylist() == [0, 1, 2, 3, 4]
    assert table.column("list").to_pylist() == [[0], [1], [2], [3], [4]]
    assert table.column("matrix").to_pylist()[1] == [3.0, 4.0, 5.0]
    assert [p.name for p in path.parent.iterdir()] == ["file.arrow"]


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_columns_come_back_writable(tmp_path: Path, dtype: str) -> None:
    path = tmp_path / "file.arrow"
    # Transposed, so that its rows do not lie in memory as they are written.
    x = np.random.default_rng(0).standard_normal((4, 7)).astype(dtype).T
    arrow_file.write(path, "test", {"x": fixed_rows(x)})
    before, descriptors = path.read_bytes(), len(os.listdir("/proc/self/fd"))
    mapped = MappedFile(path, "test")
    assert (mapped.names, mapped.matrix("x").dtype) == (["x"], x.dtype)
    np.testing.assert_array_equal(mapped.matrix("x"), x)
    mapped.matrix("x")[:] = 1
    assert mapped.matrix("x").min() == 1
    assert path.read_bytes() == before
    np.testing.assert_array_equal(MappedFile(path, "test").matrix("x"), x)
    assert len(os.listdir("/proc/self/fd")) == descriptors


@pytest.mark.parametrize("size", [0, 1, 100, -100, -1])
def test_truncated(tmp_path: Path, size: int) -> None:
    path = tmp_path / "file.arrow"
    record = arrow_file.write(path, "test", columns())
    path.write_bytes(path.read_bytes()[:size])
    with refused(path, says="truncated or not an Arrow file"):
        MappedFile(path, "test")
    for read in (lambda: MappedFile(path, "test", record), lambda: require_content(path, record)):
        with refused(path, says=f"the manifest says {record.bytes}"):
            read()
    path.unlink()
    for read in (lambda: MappedFile(path, "test"), lambda: require_content(path, record)):
        with refused(path, says="missing"):
            read()


def test_foreign_files(tmp_path: Path) -> None:
    path, schema = tmp_path / "file.arrow", pa.schema([("n", pa.int64())])
    table, other = pa.table([pa.array(np.zeros(1000, dtype=np.int64))], schema), "not a test of format 1"
    ours = schema.with_metadata({"shoal.kind": "test", "shoal.format": "1"})
    for written, compression, says in ((schema, None, other), (ours, "lz4", "compressed;")):
        with pa.ipc.new_file(str(path), written, options=pa.ipc.IpcWriteOptions(compression=compression)) as writer:
            writer.write_table(table.cast(written))
        with refused(path, says=says):
            MappedFile(path, "test").primitive("n")
    arrow_file.write(path, "other", columns())
    with refused(path, says=other):
        MappedFile(path, "test")
    path.write_bytes(np.random.default_rng(0).bytes(5000))
    with refused(path, says="truncated or not an Arrow file"):
        MappedFile(path, "test")
    with refused(tmp_path, says="Is a directory"):
        MappedFile(tmp_path, "test")


def test_a_column_that_is_missing_or_of_another_type(tmp_path: Path) -> None:
    path = tmp_path / "file.arrow"
    arrow_file.write(path, "test", columns())
    mapped = MappedFile(path, "test")
    for read, name, says in (
        (mapped.matrix, "x", "is missing"),
        (mapped.lists, "number", "is int64"),
        (mapped.primitive, "list", "is list<"),
    ):
        with refused(path, says=f"column {name!r} {says}"):
            read(name)


LIMITED = """
import re, resource, sys
from pathlib import Path
from shoal.storage.shards.arrow_file import MappedFile
from shoal.storage.errors import ShoalError
if sys.argv[2] == "memory":
    used = 1024 * int(re.search(r"VmSize:\\s+(\\d+)", Path("/proc/self/status").read_text())[1])
    resource.setrlimit(resource.RLIMIT_AS, (used + 2**20, used + 2**20))
else:
    resource.setrlimit(resource.RLIMIT_NOFILE, (3, 3))
try:
    MappedFile(Path(sys.argv[1]), "test")
except ShoalError as error:
    print(error.line)
"""


LACKING = {"memory": "Cannot allocate memory; free memory,", "files": "Too many open files; raise the limit"}


@pytest.mark.parametrize("lacking", LACKING)
def test_what_a_process_may_have_no_more_of(tmp_path: Path, lacking: str) -> None:
    path = tmp_path / "a.arrow"
    with path.open("wb") as file:
        file.truncate(1 << 26)
    command = [sys.executable, "-c", LIMITED, str(path), lacking]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    assert done.stdout.startswith(f"{path}: cannot be read: {LACKING[lacking]}")


def test_what_a_disk_cannot_read(tmp_path: Path) -> None:
    path = tmp_path / "a.arrow"
    path.symlink_to("/proc/self/mem")
    for read in (lambda: require_content(path, FileRecord(0, "")), lambda: Journal(path)):
        with refused(path, says="cannot be read: Input/output error; look at the disk"):
            read()
    (tmp_path / NAME).symlink_to("/proc/self/mem")
    with refused(tmp_path / NAME, says="Input/output error; look at the disk"):
        read_manifest(tmp_path)
