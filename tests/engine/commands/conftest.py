"""A small config as a file, and the command in this process."""

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from engine.commands.main import command

PLAIN: dict[str, Any] = {
    "name": "tiny",
    "rounds": 2,
    "data": {"dataset": "sbm", "options": {"nodes": 120, "features": 8, "classes": 3}},
    "partition": {"method": "metis", "clients": 4},
    "propagation": {"hops": 1},
    "model": {"name": "sgc"},
    "algorithm": {"name": "fedavg"},
    "engine": {"backend": "local"},
    "run": {"tensorboard": False},
}


@pytest.fixture
def tiny(tmp_path: Path) -> Path:
    """A sound config whose store and runs lie in a folder of the test."""
    plain = {**PLAIN, "data": {**PLAIN["data"], "root": str(tmp_path), "store": str(tmp_path / "store")}}
    plain["run"] = {**PLAIN["run"], "root": str(tmp_path / "runs")}
    path = tmp_path / "config.yaml"
    path.write_text(yaml.safe_dump(plain))
    return path


@pytest.fixture
def status(monkeypatch: pytest.MonkeyPatch) -> Callable[..., int]:
    """Runs a command and gives its exit status."""

    def run(*arguments: object) -> int:
        monkeypatch.setattr(sys, "argv", ["shoal", *map(str, arguments)])
        with pytest.raises(SystemExit) as end:
            command()
        return int(end.value.code or 0)

    return run


@pytest.fixture
def refused(capsys: pytest.CaptureFixture[str], status: Callable[..., int]) -> Callable[..., str]:
    """Runs a command that must fail, and returns its one line."""

    def run(*arguments: object) -> str:
        capsys.readouterr()
        assert status(*arguments) == 2
        (line,) = [text for text in capsys.readouterr().err.splitlines() if text.startswith("shoal: ")]
        return line

    return run


@pytest.fixture
def shoal(status: Callable[..., int]) -> Callable[..., None]:
    """Runs a command that must succeed."""

    def run(*arguments: object) -> None:
        assert status(*arguments) == 0

    return run
