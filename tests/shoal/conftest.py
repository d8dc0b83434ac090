"""A config as a dict, one finished run of it for all tests, and what a command prints."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support.small_runs import small_run

import shoal


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """A small run in this process, whose store and folder lie in a folder of the module."""
    root = tmp_path_factory.mktemp("shoal")
    return small_run(root, name="tiny", data={"store": str(root / "store")}, evaluation={"every": 2})


@pytest.fixture(scope="module")
def finished(small: dict[str, Any]) -> "shoal.Run":
    """Its run."""
    return shoal.run(small)


@pytest.fixture
def printed(status: Callable[..., int], capsys: pytest.CaptureFixture[str]) -> Callable[..., str]:
    """Runs a command that must succeed, and gives what it prints, its lines joined."""

    def printed(*arguments: object) -> str:
        capsys.readouterr()
        assert status(*arguments) == 0
        return " ".join(capsys.readouterr().out.split())

    return printed


@pytest.fixture
def elsewhere(small: dict[str, Any], tmp_path: Path) -> dict[str, Any]:
    """The same with runs in a folder of the test."""
    return {**small, "run": {**small["run"], "root": str(tmp_path / "runs")}}
