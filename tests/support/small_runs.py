"""A plain config of a run that takes a second, in a folder, in this process; its file, its run, its end by an error."""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml

from shoal.engine.config.config import parse_config
from shoal.engine.hosts.backend import LocalBackend
from shoal.engine.runs.run import run


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


def small_config(folder: Path, **changes: Any) -> str:
    """Writes the config into the folder, which is made if it is not there, and gives the file's path."""
    folder.mkdir(exist_ok=True)
    path = folder / "config.yaml"
    path.write_text(yaml.safe_dump(small_run(folder, **changes)))
    return str(path)


def run_small(folder: Path, **changes: Any) -> Path:
    """Runs the config to its end, and gives the run's folder."""
    return run(parse_config(small_run(folder, **changes), "a small run"))


@contextmanager
def stopped_after(number: int, error: BaseException) -> Iterator[None]:
    """Raises an error where a run in this process would go on behind the round of this number."""
    before = LocalBackend.round

    def round_or_error(self: LocalBackend, watch: Any) -> dict[str, Any]:
        if self.state().round == number:
            raise error
        return before(self, watch)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(LocalBackend, "round", round_or_error)
        yield


def shortened(command: str) -> str:
    """Gives a documented command with one round wherever it says how many, a sweep without its page."""
    command = re.sub(r"\brounds=\d+", "rounds=1", command)
    return f"{command} --no-report" if command.startswith("shoal sweep") else command
