"""A file that the system does not let be read or mapped is not called damaged, whatever it is that is lacking."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from shoal.storage.errors import ShoalError
from shoal.storage.store import arrow_file
from shoal.storage.store.arrow_file import FileRecord, fixed_rows, require_content

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
    with pytest.raises(ShoalError, match=rf"^{path}: cannot be read: Input/output error; look at the disk .*$"):
        require_content(path, FileRecord(0, ""))


def test_a_file_that_is_missing_or_changed(tmp_path: Path) -> None:
    path = tmp_path / "a.arrow"
    with pytest.raises(ShoalError, match=rf"^{path}: missing; run `shoal prepare` again$"):
        require_content(path, FileRecord(0, ""))

    record = arrow_file.write(path, "test", {"x": fixed_rows(np.ones((2, 3)))})
    require_content(path, record)
    path.write_bytes(path.read_bytes() + b"x")
    with pytest.raises(
        ShoalError, match=rf"^{path}: \d+ bytes, the manifest says {record.bytes}; .*delete the file .*$"
    ):
        require_content(path, record)
