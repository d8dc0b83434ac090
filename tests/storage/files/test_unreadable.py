"""A file that the system does not let be read or mapped is not called damaged, whatever it is that is lacking."""

import subprocess
import sys
from pathlib import Path

import pytest
from support.errors import refused

from shoal.storage.store.arrow_file import FileRecord, require_content
from shoal.storage.store.manifest import NAME, read_manifest
from shoal.storage.store.writer import Journal

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
