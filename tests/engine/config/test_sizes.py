"""Memory and cores of a machine, and of a container with fewer."""

import os
from pathlib import Path

import psutil
import pytest

from shoal.engine.config import sizes
from shoal.engine.config.sizes import machine_cores, machine_memory


def write_groups(groups: str, files: dict[str, str], folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Writes the groups of a process, and their files, where they are looked for."""
    own = folder / "own"
    own.write_text(groups)
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    monkeypatch.setattr(sizes, "OWN_CGROUPS", own)
    monkeypatch.setattr(sizes, "CGROUPS", folder)


@pytest.mark.parametrize(
    ("groups", "files", "expected"),
    [
        ("0::/\n", {"memory.max": "4096\n"}, 4096),
        ("0::/pods/one\n", {"memory.max": "max\n", "pods/memory.max": "9000\n", "pods/one/memory.max": "8000\n"}, 8000),
        ("0::/gone\n", {"memory.max": "max\n"}, None),
        ("5:cpu,memory:/one\n1:name=x:/\n", {"memory/one/memory.limit_in_bytes": "7000\n"}, 7000),
        ("5:memory:/\n", {"memory/memory.limit_in_bytes": "9223372036854771712\n"}, None),
    ],
    ids=["container", "nested", "no limit", "version 1", "version 1 without"],
)
def test_the_memory_of_a_container_is_its_limit(
    groups: str, files: dict[str, str], expected: int | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_groups(groups, files, tmp_path, monkeypatch)
    assert machine_memory() == (expected or psutil.virtual_memory().total)


@pytest.mark.parametrize(
    ("groups", "files", "expected"),
    [
        ("0::/\n", {"cpu.max": "300000 100000\n"}, 3),
        ("0::/pods/one\n", {"cpu.max": "max 100000\n", "pods/one/cpu.max": "250000 100000\n"}, 2),
        # Less than a core is one.
        ("0::/\n", {"cpu.max": "50000 100000\n"}, 1),
        ("0::/\n", {"cpu.max": "max 100000\n"}, 8),
        ("0::/\n", {"cpu.max": "6400000 100000\n"}, 8),
        ("4:cpu,cpuacct:/one\n", {"cpu/one/cpu.cfs_quota_us": "400000\n", "cpu/one/cpu.cfs_period_us": "100000\n"}, 4),
        ("4:cpu:/\n", {"cpu/cpu.cfs_quota_us": "-1\n", "cpu/cpu.cfs_period_us": "100000\n"}, 8),
    ],
    ids=["container", "nested", "half a core", "no limit", "more than there are", "version 1", "version 1 without"],
)
def test_the_cores_of_a_container_are_those_of_its_quota(
    groups: str, files: dict[str, str], expected: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_groups(groups, files, tmp_path, monkeypatch)
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: range(8))
    assert machine_cores() == expected
