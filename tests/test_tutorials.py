"""Tutorials run as they are written: each in an empty folder, its files saved, its commands one after another."""

import csv
import os
import re
import runpy
import shlex
import subprocess
from pathlib import Path

import pytest
from rooms import ROOT
from support.errors import refused
from support.fixtures import Check, Status
from support.small_runs import shortened

from shoal.algorithms.methods.registry.load import describe, load
from shoal.cli.projects import list_projects, start_project
from shoal.engine.config.config import load_config
from shoal.pages.report import report
from shoal.tables.papers import read_paper

FOLDER = ROOT / "docs" / "tutorials"
# What each leaves in its folder.
LEAVES = {
    "500-clients": "runs/sweeps/*/report/index.html",
    "cluster": "cluster/one/cluster-*/summary.json",
    "cora": "table.tex",
    "figure": "participation.pdf",
    "own-graph": "own-graph/runs/sweeps/*/table.csv",
    "own-method": "own-method/runs/sweeps/*/table.csv",
}
# Those run by default as well, with one round, and without the page of a sweep; they then leave its table.
SHORT = ("500-clients", "own-graph", "own-method")
TABLE = "runs/sweeps/*/table.csv"
# What is smaller then in files that a tutorial has in full.
SMALLER = {r"(?m)^rounds: \d+": "rounds: 2", r"\bscale: [\d.]+": "scale: 0.0003", r"\bclients: 500": "clients: 50"}
# The head of a run has these words where most clients have nothing to train on.
UNTRAINED = "never train"
CORA = Path(os.environ.get("SHOAL_DATA", "/")) / "planetoid" / "Cora"


@pytest.fixture
def follow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, status: Status) -> Check:
    """Saves the files of a tutorial and performs its commands, in their order; `short` changes numbers of rounds."""

    def perform(line: str) -> None:
        """Performs a line of a shell; programs of Python in this process, which has loaded what takes seconds."""
        words = [
            str(path) for word in shlex.split(line) for path in (sorted(Path().glob(word)) if "*" in word else [word])
        ]
        if words[0] == "cd":
            monkeypatch.chdir(words[1])
        elif words[0] == "shoal":
            assert status(*words[1:]) == 0, line
        elif words[0] == "python":
            runpy.run_path(words[1])
        else:
            subprocess.run(words, check=True)

    def follow(name: str, short: bool = False) -> None:
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
        page = (FOLDER / f"{name}.md").read_text()
        for language, title, text in re.findall(r'(?ms)^```(\w+)(?: title="(.*?)")?\n(.*?)^```', page):
            if title:
                for large, small in SMALLER.items() if short else ():
                    text = re.sub(large, small, text)
                Path(title).write_text(text)
            for line in text.splitlines() if language == "bash" and not title else ():
                perform(shortened(line) if short else line)
                if short and line.startswith("shoal init"):
                    (config,) = Path(name).glob("*.yaml")
                    config.write_text(re.sub(r"(?m)^rounds: \d+", "rounds: 2", config.read_text()))
        assert list(empty.rglob(TABLE) if short else empty.glob(LEAVES[name]))

    return follow


@pytest.mark.parametrize("name", SHORT)
def test_tutorial_runs_with_fewer_rounds(name: str, follow: Check, capsys: pytest.CaptureFixture[str]) -> None:
    follow(name, short=True)
    assert UNTRAINED not in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.parametrize("name", [path.stem for path in FOLDER.glob("*.md")])
def test_tutorial_runs(name: str, follow: Check, capsys: pytest.CaptureFixture[str]) -> None:
    """Its clients train; what it shows of participation comes out, to half a point on another processor."""
    follow(name)
    assert UNTRAINED not in capsys.readouterr().err
    if shown := figures_shown(name):
        (table,) = Path().glob(TABLE)
        with table.open(newline="") as file:
            rows = list(csv.DictReader(file))
        reached = {
            (row["algorithm"], scope, row["participation.ratio"]): 100 * float(score)
            for row in rows
            for scope in ("global", "deployed")
            if (score := row[f"{scope}.best.test"])
        }
        assert reached == pytest.approx(shown, abs=0.5)


def test_five_commands_lead_to_a_curve_that_rises(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, status: Status
) -> None:
    """Installing, activating, a sweep over participation, its page, LaTeX: here of one method and one seed."""
    readme, makefile = ((ROOT / name).read_text() for name in ("README.md", "Makefile"))
    assert "make run" in readme
    assert re.search(r"(?ms)^run:.*^\t@echo 'source \.venv/bin/activate'$", makefile)
    lines = re.findall(r"(?m)^shoal .*$", (FOLDER / "figure.md").read_text())
    (sweep,) = (line for line in lines if line.startswith("shoal sweep"))
    (table,) = (line for line in lines if line.startswith("shoal table"))
    monkeypatch.chdir(tmp_path)
    words = sweep.replace("algorithm=local,fedavg,fedgta", "algorithm=fedavg").replace("seeds=2", "seeds=1").split()
    assert "--report" in words
    assert status(*(word.replace("--report", "--no-report") for word in words[1:])) == 0
    (folder,) = Path("runs/sweeps").iterdir()
    page = report([folder], None, kinds=("svg",)).read_text()
    assert "Test accuracy of the global model at best validation, by participation rate" in page
    with (folder / "table.csv").open(newline="") as file:
        reached = {float(row["participation.ratio"]): float(row["global.best.test"]) for row in csv.DictReader(file)}
    assert reached[0.2] < reached[0.5] < reached[1.0]
    assert status(*table.replace("runs/sweeps/*", str(folder)).split()[1:]) == 0
    latex = Path("table.tex").read_text()
    assert "0.2 global" in latex
    assert "\\toprule" in latex
    assert all(f"{100 * score:.2f}" in latex for score in reached.values())


def figures_shown(name: str) -> dict[tuple[str, str, str], float]:
    """Figures of the table of a tutorial, by method, scope and rate of participation; none if it has no such table.

    A row names its scope after the method, as `deployed`, which is meant where it names none.
    """
    lines = (FOLDER / f"{name}.md").read_text().splitlines()
    table = [line.strip("| ").split(" | ") for line in lines if re.fullmatch(r"\|.* [\d.]+ \|", line)]
    if not table:
        return {}
    (_, *rates), *rows = table
    figures = {}
    for method, *row in rows:
        scope = re.search(r"`(\w+)`", method)
        key = method.partition(",")[0].lower(), scope[1] if scope else "deployed"
        figures |= {(*key, rate): float(value) for rate, value in zip(rates, row, strict=True)}
    return figures


def test_every_project_is_right(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its configs are read from its folder, and the files that its commands name are in it, or made by them."""
    names = [line.split()[0] for line in list_projects()[:-1]]
    assert names == ["cluster", "own-graph", "own-method", "paper", "quickstart"]
    for name in names:
        written, _, *commands = start_project(name, tmp_path / name)
        with refused(tmp_path / name):
            start_project(name, tmp_path / name)
        monkeypatch.chdir(tmp_path / name)
        files = {path.name for path in Path().iterdir()}
        assert all(file in written for file in files)
        assert len(commands) == 3
        assert {
            word for line in commands for word in line.split() if word.endswith((".yaml", ".py", ".sbatch"))
        } <= files
        for file in files - {"paper.yaml"}:
            if file.endswith(".yaml"):
                method = load_config(file).algorithm
                load(describe(method.name, method.options))
    assert set(read_paper(str(tmp_path / "paper" / "paper.yaml")).tables) == {"table1"}


def test_tutorials_are_short() -> None:
    assert not [path.name for path in FOLDER.glob("*.md") if len(path.read_text().splitlines()) > 60]
    assert {path.stem for path in FOLDER.glob("*.md")} == set(LEAVES)
