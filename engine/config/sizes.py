"""Numbers of bytes: as people read them, and those of a machine's memory."""

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
    return min([psutil.virtual_memory().total, *_cgroup_limits()])


def _cgroup_limits() -> list[int]:
    """Limits of the process's groups and of those around them; a group without one has a word, or a huge number."""
    if not OWN_CGROUPS.exists():
        return []
    files = []
    for line in OWN_CGROUPS.read_text().splitlines():
        _, controllers, path = line.split(":", 2)
        if not controllers:
            root, name = CGROUPS, "memory.max"
        elif "memory" in controllers.split(","):
            root, name = CGROUPS / "memory", "memory.limit_in_bytes"
        else:
            continue
        # In a container the path may be that outside of it: its own group is then the root.
        parts = Path(path.lstrip("/")).parts
        files += [root.joinpath(*parts[:depth], name) for depth in range(len(parts) + 1)]
    texts = [file.read_text().strip() for file in files if file.exists()]
    return [int(text) for text in texts if text.isdigit()]
