import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
import xxhash
from support.errors import refused

from shoal.storage.store import arrow_file
from shoal.storage.store.arrow_file import FileRecord, MappedFile, fixed_rows, require_content
from shoal.storage.store.manifest import NAME, read_manifest
from shoal.storage.store.writer import Journal


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
    assert mapped.names == ["x"]
    assert mapped.matrix("x").dtype == x.dtype
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
    path = tmp_path / "file.arrow"
    path.write_bytes(np.random.default_rng(0).bytes(5000))
    with refused(path, says="truncated or not an Arrow file"):
        MappedFile(path, "test")
    table = pa.table(columns())
    with pa.ipc.new_file(str(path), table.schema) as writer:
        writer.write_table(table)
    arrow_file.write(tmp_path / "other.arrow", "other", columns())
    for foreign in (path, tmp_path / "other.arrow"):
        with refused(foreign, says="not a test of format 1"):
            MappedFile(foreign, "test")
    with refused(tmp_path, says="Is a directory"):
        MappedFile(tmp_path, "test")


def test_a_compressed_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "file.arrow"
    schema = pa.schema([("n", pa.int64())], metadata={"shoal.kind": "test", "shoal.format": "1"})
    table = pa.table([pa.array(np.zeros(1000, dtype=np.int64))], schema=schema)
    with pa.ipc.new_file(str(path), schema, options=pa.ipc.IpcWriteOptions(compression="lz4")) as writer:
        writer.write_table(table)
    with refused(path, says="compressed;"):
        MappedFile(path, "test").primitive("n")


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
import torch  # a host has it before it opens files
from pathlib import Path
from shoal.storage.store.arrow_file import MappedFile
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


@pytest.mark.parametrize(
    ("lacking", "line"),
    [
        (
            "memory",
            "Cannot allocate memory; free memory, or raise vm.max_map_count if this process maps very many files",
        ),
        ("files", "Too many open files; raise the limit of open files (ulimit -n)"),
    ],
)
def test_what_a_process_may_have_no_more_of(tmp_path: Path, lacking: str, line: str) -> None:
    path = tmp_path / "a.arrow"
    with path.open("wb") as file:
        file.truncate(1 << 26)
    command = [sys.executable, "-c", LIMITED, str(path), lacking]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    assert done.stdout == f"{path}: cannot be read: {line}\n"


def test_what_a_disk_cannot_read(tmp_path: Path) -> None:
    path = tmp_path / "a.arrow"
    path.symlink_to("/proc/self/mem")
    for read in (lambda: require_content(path, FileRecord(0, "")), lambda: Journal(path)):
        with refused(path, says="cannot be read: Input/output error; look at the disk"):
            read()
    (tmp_path / NAME).symlink_to("/proc/self/mem")
    with refused(tmp_path / NAME, says="Input/output error; look at the disk"):
        read_manifest(tmp_path)
