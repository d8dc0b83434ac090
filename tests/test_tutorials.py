"""Tutorials run as they are written: each in an empty folder, its files saved, its commands one after another."""

import os
import re
import runpy
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from rooms import ROOT

from shoal.engine.cli.main import command as main

FOLDER = ROOT / "docs" / "tutorials"
# What each leaves in its folder.
LEAVES = {
    "500-clients": "runs/sweeps/*/report/index.html",
    "cluster": "cluster/one/cluster-*/summary.json",
    "cora": "table.tex",
    "figure": "participation.pdf",
    "own-graph": "own-graph/runs/sweeps/*/table.csv",
    "own-method": "own-method/runs/sweeps/*/report/index.html",
}
QUICK = ("own-graph", "own-method")
CORA = Path(os.environ.get("SHOAL_DATA", "/")) / "planetoid" / "Cora"


@pytest.mark.parametrize(
    "name",
    [pytest.param(path.stem, marks=() if path.stem in QUICK else pytest.mark.slow) for path in FOLDER.glob("*.md")],
)
def test_tutorial_runs(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data, empty = tmp_path / "data", tmp_path / "empty"
    empty.mkdir()
    if name == "cora":
        if not CORA.exists():
            pytest.skip(f"{CORA} is missing: set SHOAL_DATA to a folder of published files")
        (data / "planetoid").mkdir(parents=True)
        (data / "planetoid" / "Cora").symlink_to(CORA)
    monkeypatch.chdir(empty)
    monkeypatch.setenv("SHOAL_DATA", str(data))
    monkeypatch.setenv("MPLBACKEND", "agg")
    for language, title, text in re.findall(r'(?ms)^```(\w+)(?: title="(.*?)")?\n(.*?)^```', page(name)):
        if title:
            Path(title).write_text(text)
        elif language == "bash":
            for line in text.splitlines():
                perform(line, monkeypatch)
    assert list(empty.glob(LEAVES[name]))


def perform(line: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A line of a shell; programs of Python in this process, which has loaded what takes seconds."""
    words = [str(path) for word in shlex.split(line) for path in (sorted(Path().glob(word)) if "*" in word else [word])]
    if words[0] == "cd":
        monkeypatch.chdir(words[1])
    elif words[0] == "shoal":
        monkeypatch.setattr(sys, "argv", words)
        with pytest.raises(SystemExit) as end:
            main()
        assert not end.value.code, line
    elif words[0] == "python":
        runpy.run_path(words[1])
    else:
        subprocess.run(words, check=True)


def test_tutorials_are_short() -> None:
    assert not [path.name for path in FOLDER.glob("*.md") if len(path.read_text().splitlines()) > 60]
    assert {path.stem for path in FOLDER.glob("*.md")} == set(LEAVES)


def page(name: str) -> str:
    return (FOLDER / f"{name}.md").read_text()
