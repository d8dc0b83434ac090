"""Combinations of a sweep that share first rounds: trained once a base, and equal to plain runs and to forks."""

import html
import json
import re
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from support.errors import refused
from support.needs import needs
from support.same_runs import require_same_runs
from support.small_runs import small_config, stopped_after

from shoal.engine.config.config import load_config
from shoal.engine.records.metrics import read_metrics
from shoal.engine.records.run_folder import parent_of
from shoal.engine.runs.run import run
from shoal.pages.report import report
from shoal.past.fork import fork
from shoal.past.forked_sweep import ForkedSweep
from shoal.storage.errors import ShoalError
from shoal.study.study import Study, read_study
from shoal.sweeps.sweep import show_sweep_plan

# Uploads that are made again are compared with their digests.
pytestmark = needs("digests")
KEPT = {"checkpoint_every": 2, "keep": 9, "keep_digests": True, "keep_records": True}
AXES = ("train.lr=0.01,0.2", "seeds=2")


@pytest.fixture
def config(tmp_path: Path) -> str:
    half = {"participation": {"ratio": 0.5}, "train": {"lr": 0.01}}
    return small_config(tmp_path, name="swept", rounds=5, run=KEPT, **half)


def forked(config: str, *axes: str, at: int = 3, at_once: int = 1, **chosen: Any) -> ForkedSweep:
    return ForkedSweep(Study(config, axes, fork_at=at, **chosen), at, at_once)


def test_shared_rounds_are_trained_once_a_seed_and_change_no_bit(config: str, rounds_trained: list[int]) -> None:
    sweep = forked(config, *AXES)
    assert sweep.go()
    assert rounds_trained == [1, 2, 3] * 2 + [4, 5] * 4
    rounds_trained.clear()
    assert forked(config, *AXES).go()
    assert rounds_trained == []
    bases = [Path(parent["run"]) for row in sweep.rows if (parent := parent_of(row.path)) and parent["round"] == 3]
    assert bases == [bases[0], bases[1]] * 2
    assert [len(read_metrics(base)) for base in bases[:2]] == [3, 3]
    assert [row["train.lr"] for row in json.loads((sweep.folder / "table.json").read_text())] == [0.01, 0.01, 0.2, 0.2]
    for row in sweep.rows[:2]:
        require_same_runs(row.path, run(load_config(config, [f"seed={row.columns['seed']}", "name=plain"])))
    assert read_metrics(sweep.rows[2].path)[:3] == read_metrics(bases[0])
    assert fork(bases[0], 3, ["train.lr=0.2"]) == sweep.rows[2].path
    require_same_runs(sweep.rows[2].path, fork(bases[0], 3, ["train.lr=0.2", "name=other"]))


@pytest.mark.parametrize("last", [pytest.param(2, marks=pytest.mark.slow), 4])
def test_killed_it_goes_on(config: str, rounds_trained: list[int], last: int) -> None:
    """In the shared rounds, and behind them: no round that has a checkpoint is trained again, and bits are the same."""
    with stopped_after(last, KeyboardInterrupt()), pytest.raises(KeyboardInterrupt):
        forked(config, "train.lr=0.01,0.2").go()
    sweep = forked(config, "train.lr=0.01,0.2")
    assert sweep.go()
    assert rounds_trained == [1, 2, 3, 4, 5, 4, 5]
    require_same_runs(sweep.rows[0].path, run(load_config(config, ["name=plain"])))


def test_what_no_fork_can_change_has_shared_rounds_of_its_own(config: str, rounds_trained: list[int]) -> None:
    sweep = forked(config, "model=sgc,gamlp", "train.lr=0.01,0.2", at=4)
    assert sweep.go()
    assert rounds_trained == [1, 2, 3, 4] * 2 + [5] * 4
    assert len({parent["run"] for row in sweep.rows if (parent := parent_of(row.path))}) == 2


def test_validation_chooses_among_forks(config: str, rounds_trained: list[int]) -> None:
    sweep = forked(config, *AXES, choose="train.lr", choose_seeds=1)
    assert sweep.go()
    assert sorted(row.state for row in sweep.rows) == ["finished"] * 2 + ["not chosen"] * 2
    assert rounds_trained == [1, 2, 3, 4, 5, 4, 5, 1, 2, 3, 4, 5]


@pytest.mark.slow
def test_several_at_once_have_the_same_bits(config: str, tmp_path: Path) -> None:
    runs = [
        [row.path for row in sweep.rows]
        for root, at_once in (("one", 1), ("two", 2))
        if (sweep := forked(config, AXES[0], f"run.root={tmp_path / root}", at_once=at_once)).go()
    ]
    for one, two in zip(*runs, strict=True):
        require_same_runs(one, two)
    # What every process printed is kept, that of bases too.
    bases = {Path(parent["run"]).name for run in runs[1] if (parent := parent_of(run))}
    (said,) = (tmp_path / "two").glob("sweeps/*/said")
    assert {file.stem for file in said.iterdir()} == {*bases, *(run.name for run in runs[1])}
    assert all(file.read_text() for file in said.iterdir())


def test_the_plan_counts_shared_rounds_once(config: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    show_sweep_plan(forked(config, *AXES))
    assert not (tmp_path / "runs").exists()
    states = [re.split(r"  +", line)[:2] for line in capsys.readouterr().out.splitlines()[1:-1]]
    assert states[:2] == [["rounds 1 to 3, seed 0", "shared"], ["rounds 1 to 3, seed 1", "shared"]]
    assert [state for _, state in states[2:]] == ["to run"] * 4
    sweep = forked(config, *AXES)
    assert sweep.shares == pytest.approx([0.4] * 4)
    assert [share for _, _, share in sweep.before] == [0.6, 0.6]
    assert sweep.go()
    assert not forked(config, *AXES).before


def test_a_base_that_fails_is_the_error_of_its_forks(config: str) -> None:
    sweep = forked(config, "train.lr=0.01,0.2")
    with stopped_after(1, ShoalError("no more")):
        assert not sweep.go()
    assert [(row.state, row.error) for row in sweep.rows] == [("failed", "no more")] * 2
    assert forked(config, "train.lr=0.01,0.2").go()


def test_what_cannot_be_forked_is_refused_before_it_trains(
    config: str, tmp_path: Path, rounds_trained: list[int], status: Callable[..., int]
) -> None:
    with refused("--fork-at", says="5 rounds"):
        forked(config, *AXES, at=5)
    with refused("algorithm scaffold", says="algorithm.name: scaffold keeps"):
        forked(config, "algorithm=fedavg,scaffold").go()
    for other in ("--forecast", "--search=optuna"):
        assert status("sweep", config, AXES[0], "--fork-at", "3", other) == 2
    assert rounds_trained == []
    assert list((tmp_path / "runs").glob("swept-*")) == []


def test_the_key_of_a_file_and_the_command_of_a_page(config: str, tmp_path: Path, status: Callable[..., int]) -> None:
    file = tmp_path / "study.yaml"
    file.write_text(yaml.safe_dump({"config": config, "axes": {"train.lr": [0.01, 0.2]}, "fork_at": 3}))
    assert read_study(str(file), [], None, 2, "deployed").fork_at == 3
    assert status("sweep", str(file), "--no-report") == 0
    (folder,) = (tmp_path / "runs" / "sweeps").iterdir()
    assert folder == forked(config, "train.lr=0.01,0.2").folder
    page = report([folder], None, kinds=("svg",)).read_text()
    (command,) = re.findall(r'<pre class="command">(.*?)</pre>', page)
    assert shlex.split(html.unescape(command))[-1] == "--fork-at=3"
    assert forked(config, "train.lr=0.01,0.2").command.endswith(" --fork-at 3")
