"""Tables of real runs, every cell, mark and p, against the runs' own files, read as JSON and computed by NumPy."""

import csv
import io
import json
import re
from pathlib import Path

import numpy as np
import pytest
import yaml
from scipy import stats
from support.fixtures import Check, Refused
from support.small_runs import small_config

from shoal.engine.records.run_folder import CONFIG
from shoal.study.sweep_folder import rows_of

METHODS, RATIOS, SEEDS = {"local": "Local", "fedavg": "FedAvg", "fedgta": "Ours"}, ("0.5", "1.0"), ("0", "1", "2")


def best_test(run: Path, scope: str = "deployed") -> float:
    """The test score of a scope in the first round of its best validation, by the lines of the rounds."""
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    scores = [line["scopes"][scope] for line in lines if "scopes" in line]
    best = scores[int(np.argmax([score["val"]["nodes"] for score in scores]))]["test"]["nodes"]
    assert json.loads((run / "summary.json").read_text())["scopes"][scope]["best"]["test"]["nodes"] == best
    return float(best)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("tables")


def test_a_sweep_to_latex_by_two_commands(folder: Path, shoal: Check, capsys: pytest.CaptureFixture[str]) -> None:
    config = small_config(folder, name="tabled", rounds=2, run={"checkpoint_every": 2})
    axes = (f"algorithm={','.join(METHODS)}", f"participation.ratio={','.join(RATIOS)}", "seeds=3")
    shoal("sweep", config, *axes, "--no-report")
    (sweep,) = (folder / "runs" / "sweeps").iterdir()
    score, of_server = {}, {}
    for run in (folder / "runs").glob("tabled-*"):
        of = yaml.safe_load((run / "config.yaml").read_text())
        key = of["algorithm"]["name"], str(float(of["participation"]["ratio"])), str(of["seed"])
        score[key] = best_test(run)
        if key[0] == "fedavg":
            of_server[key] = best_test(run, "global")
    assert len(score) == 18
    of_cell = {(m, r): np.array([score[m, r, seed] for seed in SEEDS]) for m in METHODS for r in RATIOS}
    labels = ["--label", "fedgta=Ours"]
    shoal("table", sweep, "--format", "latex", *labels, "--caption", "Accuracy", "--out", folder / "t.tex")
    latex = (folder / "t.tex").read_text()
    # Half of the clients miss a round, so the server's model, which FedAvg alone has, stands before deployed ones.
    assert r"\multicolumn{4}{c}{participation rate}" in latex
    assert "& 0.5 global & 1.0 global & 0.5 deployed & 1.0 deployed" in re.sub(" +", " ", latex)
    rows = [[cell.strip() for cell in line.rstrip(" \\").split("&")] for line in latex.splitlines() if "pm" in line]
    assert [row[0] for row in rows] == list(METHODS.values())
    for column, ratio in enumerate(RATIOS, 1):
        values = np.array([of_server["fedavg", ratio, seed] for seed in SEEDS])
        text = rf"{100 * values.mean():.2f} $\pm$ {100 * values.std(ddof=1):.2f}"
        assert [row[column] for row in rows] == ["-", text, "-"]
    for column, ratio in enumerate(RATIOS, 3):
        shown = {m: f"{100 * of_cell[m, ratio].mean():.2f}" for m in METHODS}
        levels = sorted(set(shown.values()), key=float, reverse=True)
        for row, m in zip(rows, METHODS):
            text = rf"{shown[m]} $\pm$ {100 * of_cell[m, ratio].std(ddof=1):.2f}"
            marks = {levels[0]: rf"\textbf{{{text}}}"} | ({levels[1]: rf"\underline{{{text}}}"} if levels[1:] else {})
            assert row[column] == marks.get(shown[m], text)
    capsys.readouterr()
    shoal("table", sweep, "--format", "csv", "--against", "fedavg", "--ties", "exact")
    found = list(csv.DictReader(io.StringIO(capsys.readouterr().out)))
    assert [line["figure"] for line in found] == ["global.best.test", "deployed.best.test"] * 6
    found = [line for line in found if line["figure"] == "deployed.best.test"]
    for line in found:
        m, ratio = line["algorithm"], line["participation.ratio"]
        apart = of_cell[m, ratio] - of_cell["fedavg", ratio]
        numbers = [float(line[key]) for key in ("mean", "sd", "difference", "difference_sd")]
        assert numbers == pytest.approx([
            of_cell[m, ratio].mean(), of_cell[m, ratio].std(ddof=1), apart.mean(), apart.std(ddof=1)
        ])  # fmt: skip
        if m != "fedavg" and apart.std() > 0:
            t = apart.mean() / (apart.std(ddof=1) / np.sqrt(3))
            assert float(line["p"]) == pytest.approx(2 * stats.t.sf(abs(t), 2))
        means = sorted({of_cell[other, ratio].mean() for other in METHODS}, reverse=True)
        assert line["mark"] == {0: "best", 1: "second"}.get(means.index(of_cell[m, ratio].mean()), "")
    shoal("table", sweep, "--against", "fedavg", *labels)
    terminal = capsys.readouterr().out
    for m, name in METHODS.items():
        (line,) = [line for line in terminal.splitlines() if line.startswith(f"{name} ")]
        for ratio, cell in zip(RATIOS, re.split(r"\s{2,}", line)[3:]):
            if m != "fedavg":
                apart = of_cell[m, ratio] - of_cell["fedavg", ratio]
                assert cell.startswith(f"{100 * apart.mean():+.2f} ± {100 * apart.std(ddof=1):.2f} (p ")


def test_options_of_tables_that_do_not_fit(folder: Path, refused: Refused) -> None:
    (sweep,) = (folder / "runs" / "sweeps").iterdir()
    failed = folder / "failed"
    failed.mkdir()
    assert "neither a run nor a sweep" in refused("table", sweep, failed)
    (failed / CONFIG).touch()
    assert [row.state for row in rows_of([sweep, failed])] == ["finished"] * 18
    for arguments, line in (
        (["--latex-label", "tab:x"], "--latex-label: is for --format latex, found terminal"),
        (["--wide", "--figure", "rounds"], "--wide, --figure: --wide names its figures"),
        (["--label", "fedgta"], "--label fedgta: has the form NAME=SHOWN"),
    ):
        assert line in refused("table", sweep, *arguments)
