"""Numbers of bytes, as people read them; memory and cores of a machine."""

import os
from collections.abc import Iterator
from pathlib import Path

import psutil

CGROUPS = Path("/sys/fs/cgroup")
OWN_CGROUPS = Path("/proc/self/cgroup")


def size(count: float) -> str:
    """Formats bytes for people, in powers of 1024."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if count < 1024:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1024
    return f"{count:.1f} TiB"


def machine_memory() -> int:
    """Reads the bytes of memory of the machine, or of the container (cgroup, of either version) of this process."""
    # A group without a limit has a word, or a huge number.
    texts = [file.read_text().strip() for file in _of_groups("memory", "memory.max", "memory.limit_in_bytes")]
    return min([psutil.virtual_memory().total, *(int(text) for text in texts if text.isdigit())])


def machine_cores() -> int:
    """Counts the cores that this process may use: those of the machine, by its affinity and its container's quota."""
    limits = [len(os.sched_getaffinity(0))]
    for file in _of_groups("cpu", "cpu.max", "cpu.cfs_quota_us"):
        # The newer file has both numbers; without a limit the first is a word, or -1.
        quota, *period = file.read_text().split()
        period = period or file.with_name("cpu.cfs_period_us").read_text().split()
        limits += [int(quota) // int(period[0])] if quota.isdigit() else []
    return max(1, min(limits))


def _of_groups(controller: str, name: str, former: str) -> Iterator[Path]:
    """Yields a file of the process's groups and of those around them; `former` is its name in version 1 of cgroups."""
    if not OWN_CGROUPS.exists():
        return
    for line in OWN_CGROUPS.read_text().splitlines():
        _, controllers, path = line.split(":", 2)
        if not controllers:
            root, file = CGROUPS, name
        elif controller in controllers.split(","):
            root, file = CGROUPS / controller, former
        else:
            continue
        # In a container the path may be that outside of it: its own group is then the root.
        parts = Path(path.lstrip("/")).parts
        files = (root.joinpath(*parts[:depth], file) for depth in range(len(parts) + 1))
        yield from (file for file in files if file.exists())
