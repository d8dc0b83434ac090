"""Of which clients a machine has the data: those whose files lie where it looks, be it a shared or a local disk."""

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from engine.records.environment import environment
from engine.wire.job import Job
from storage.manifest import NAME
from storage.store import hops_path, shard_path, split_path


@dataclass(frozen=True)
class Sight:
    """What a host says of itself when a job is opened on it.

    Attributes:
        machine: Address of its machine.
        clients: Those whose files it sees.
        environment: What its last bits depend on.
    """

    machine: str
    clients: frozenset[int]
    environment: dict[str, Any]


def look(job: Job, machine: str) -> Sight:
    """Looks here for shard, split and hops of every client; their content is checked when they are opened."""
    wanted = [shard_path(0), split_path(job.split, 0), *([hops_path(job.kernel, 0)] if job.kernel else [])]
    here = (job.store_path / NAME).exists()
    found = [_clients(job.store_path / path.parent) for path in wanted] if here else []
    return Sight(machine, frozenset.intersection(*found) if found else frozenset(), environment(job.device))


def _clients(folder: Path) -> frozenset[int]:
    # One listing instead of a look at every file: a shared file system answers each in a millisecond.
    names = os.listdir(folder) if folder.is_dir() else []
    return frozenset(int(name.removesuffix(".arrow")) for name in names if name.removesuffix(".arrow").isdigit())
