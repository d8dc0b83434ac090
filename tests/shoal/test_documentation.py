"""docs/python.md is true: its program runs, its tables name what there is; so are the files for contributors."""

import re
import runpy
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import yaml
from rooms import ROOT

import shoal
from shoal.algorithms.train_options import SCHEDULES
from shoal.engine.callbacks.calls import CALLBACKS

TEXT = (ROOT / "docs" / "python.md").read_text()


def test_the_program_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (source,) = re.findall(r"```python\n(.*?)```", TEXT, flags=re.DOTALL)
    (tmp_path / "program.py").write_text(source)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SHOAL_DATA", str(tmp_path / "data"))
    said = runpy.run_path("program.py")
    assert said["rounds"].column_names == ["round", "loss", "deployed.test.nodes"]
    assert len({row["client"] for row in said["clients"]}) == 10
    assert said["models"]
    assert len(said["predictions"]) == 1797
    assert said["sweep"].complete
    assert (said["run"].path / "metrics.csv").exists()


def test_lists_are_complete() -> None:
    assert not [name for name in (*CALLBACKS, *SCHEDULES) if f"`{name}" not in TEXT]
    members = [name for name in vars(shoal.Run) if not name.startswith("_")]
    assert not [name for name in members if f"`{name}" not in TEXT]


def test_the_changes_name_the_version() -> None:
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    assert f"\n## {version}\n" in (ROOT / "CHANGELOG.md").read_text()


def test_hooks_before_a_commit_pass() -> None:
    hooks = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text())["repos"][0]["hooks"]
    assert [hook["id"] for hook in hooks] == ["ruff-check", "ruff-format", "rooms"]
    # Rooms are drawn by `test_imports.py`.
    *checks, rooms = [hook["entry"].split() for hook in hooks]
    assert (ROOT / rooms[-1]).exists()
    for words in checks:
        command = [*_tool(words[0]), *words[1:], "shoal/__init__.py", "examples/quickstart.ipynb"]
        assert subprocess.run(command, cwd=ROOT, capture_output=True).returncode == 0


def _tool(name: str) -> list[str]:
    """The program beside this Python, as a shell of its environment finds it."""
    return [str(Path(sys.executable).parent / name)]
