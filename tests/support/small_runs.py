"""A plain config of a run that takes a second, in a folder, in this process."""

import re
from pathlib import Path
from typing import Any


def small_run(folder: Path, **changes: Any) -> dict[str, Any]:
    """FedAvg with SGC on four clients of a block model of 120 nodes, for three rounds; data and runs are in the folder.

    Of sections that change, the named keys do; other keys are replaced.
    """
    plain: dict[str, Any] = {
        "name": "small",
        "rounds": 3,
        "data": {"dataset": "sbm", "root": str(folder), "options": {"nodes": 120, "features": 8, "classes": 3}},
        "partition": {"clients": 4},
        "propagation": {"hops": 1},
        "model": {"name": "sgc"},
        "algorithm": {"name": "fedavg"},
        "evaluation": {"every": 1},
        "engine": {"backend": "local"},
        "run": {"root": str(folder / "runs"), "tensorboard": False},
    }
    for key, value in changes.items():
        both = isinstance(value, dict) and isinstance(plain.get(key), dict)
        plain[key] = {**plain[key], **value} if both else value
    return plain


def shortened(command: str) -> str:
    """Gives a documented command with one round wherever it says how many, a sweep without its page."""
    command = re.sub(r"\brounds=\d+", "rounds=1", command)
    return f"{command} --no-report" if command.startswith("shoal sweep") else command
