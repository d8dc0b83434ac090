"""A grid of runs: checked before the first, resumed, chosen by validation, and whatever one does the rest goes on."""

import json
import os
import re
import signal
import time
from io import StringIO
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pyarrow.csv
import pyarrow.parquet
import pytest
import torch
from rich.console import Console
from support.errors import refused
from support.fixtures import Status
from support.forked import SHOAL, start
from support.small_runs import small_config
from support.toy_method import NAME as TOY
from tensorboard.backend.event_processing.io_wrapper import GetLogdirSubdirectories

from shoal.engine.records import checkpoint
from shoal.engine.records.metrics import METRICS
from shoal.engine.records.run_folder import SUMMARY, read_summary, started
from shoal.kept_run import Run
from shoal.study.groups import Row
from shoal.study.study import Study
from shoal.study.sweep_folder import differing, read_rows, rows_of, run_title, title_of
from shoal.sweeps import sweep as sweep_module
from shoal.sweeps import sweep_view
from shoal.sweeps.sweep import Sweep, show_sweep_plan
from shoal.sweeps.sweep_view import SweepView, span
from shoal.tables.study_table import Layout, table_of
from shoal.tables.table_output import show_sweep

Capture = pytest.CaptureFixture[str]
# A method whose rounds after the first take their time, as long as a file is there.
SLOW = """
import time
from dataclasses import dataclass
from pathlib import Path
from shoal.algorithms.methods.fedavg import FedAvg

@dataclass(frozen=True)
class Slow(FedAvg):
    def round(self, server, ctx, cohort):
        if ctx.round > 1 and Path("{file}").exists():
            time.sleep(0.5)
        yield from super().round(server, ctx, cohort)
"""


@pytest.fixture
def config(tmp_path: Path) -> str:
    return small_config(tmp_path, name="swept", run={"checkpoint_every": 1})


def swept(config: str, *axes: str, **options: Any) -> Sweep:
    sweep = Sweep(Study(config, axes, **options))
    sweep.go()
    return sweep


def test_skips_finished_and_resumes_unfinished(config: str) -> None:
    axes = ("participation.ratio=0.5,1.0", "seed=0,1")
    first = swept(config, *axes)
    assert len({row.run for row in first.rows}) == 4
    done, unfinished = first.rows[0].path, first.rows[3].path
    final = (unfinished / "checkpoints" / "round-000003" / "state.safetensors").read_bytes()
    stamp = (done / METRICS).stat().st_mtime_ns
    (unfinished / SUMMARY).unlink()
    (unfinished / "checkpoints" / "round-000003").rename(unfinished / "gone")
    assert [row.state for row in read_rows(first.folder)] == ["finished"] * 3 + ["waiting"]
    again = Sweep(Study(config, axes))
    assert [row.state for row in again.rows] == ["finished"] * 3 + ["waiting"]
    assert again.go()
    assert (done / METRICS).stat().st_mtime_ns == stamp
    assert (unfinished / "checkpoints" / "round-000003" / "state.safetensors").read_bytes() == final
    scores = [(row.columns, row.figures["deployed.best.test"]) for row in again.rows]
    assert scores == [(row.columns, row.figures["deployed.best.test"]) for row in first.rows]


def test_the_tables_for_other_programs(config: str) -> None:
    sweep = swept(config, "algorithm=fedgta{eps:0.5},local", "seeds=2")
    assert title_of(sweep.folder) == "config: algorithm=fedgta{eps:0.5},local  seeds=2"
    rows = json.loads((sweep.folder / "table.json").read_text())
    assert [(row["algorithm"], row["algorithm.eps"], row["seed"], row["state"]) for row in rows] == [
        ("fedgta", 0.5, 0, "finished"), ("fedgta", 0.5, 1, "finished"),
        ("local", None, 0, "finished"), ("local", None, 1, "finished"),
    ]  # fmt: skip
    for row in rows:
        best = read_summary(Path(row["run"]))["scopes"]["deployed"]["best"]
        assert row["deployed.best.test"] == best["test"]["nodes"]
        assert row["deployed.best.val.f1"] == best["val"]["f1"]
        assert row["deployed.best.round"] == best["round"]
    parquet = pyarrow.parquet.read_table(sweep.folder / "table.parquet").to_pylist()
    assert parquet == rows
    of_csv = pyarrow.csv.read_csv(sweep.folder / "table.csv")
    assert of_csv["deployed.best.test"].to_pylist() == [row["deployed.best.test"] for row in rows]
    assert read_rows(sweep.folder) == sweep.rows


def test_table_with_global_has_one_mean_for_all(config: str) -> None:
    sweep = swept(config, "algorithm=local,global")
    rows = json.loads((sweep.folder / "table.json").read_text())
    assert [(row["algorithm"], row["clients"] > 1, row["mean"]) for row in rows] == [
        ("local", True, "rows"), ("global", False, "rows"),
    ]  # fmt: skip
    for row in rows:
        scores = Run(row["run"]).clients.to_pandas().query("scope == 'deployed'")
        counts = scores.groupby(["part", "round"])[["correct", "rows"]].sum()
        accuracy = counts["correct"] / counts["rows"]
        best = accuracy["val"].idxmax()
        assert row["deployed.best.round"] == best
        assert row["deployed.best.val"] == accuracy["val", best]
        assert row["deployed.best.test"] == accuracy["test", best]
    table = table_of(rows_of([sweep.folder]), Layout(("deployed.best.test",)))
    assert [row[-1] for row in table.rows] == [f"{100 * row['deployed.best.test']:.2f}" for row in rows]
    assert table.notes[-1].endswith(f"(rows); runs have 1 and {int(rows[0]['clients'])} clients")


def test_table_of_several_sweeps_separates_their_configs(config: str) -> None:
    folders = [swept(config, f"algorithm={name}", "seed=0,1", "rounds=1").folder for name in ("fedavg", "local")]
    table = table_of(rows_of(folders), Layout(("deployed.best.test",)))
    # A round of two methods may be below the most frequent class, which then has a row.
    assert (table.heads[0], [row[0] for row in table.rows][:2]) == ("method", ["FedAvg", "Local"])
    assert all("±" in row[-1] for row in table.rows[:2])


def test_options_without_effect_tell_no_runs_apart() -> None:
    plain = {"seed": "0", "schedule.name": "synchronous", "schedule.buffer": "10", "partition.method": "metis"}
    buffered = {**plain, "schedule.name": "fedbuff", "schedule.buffer": "25"}
    assert differing([plain, buffered]) == [{"schedule.name": "synchronous"}, {"schedule.name": "fedbuff"}]
    more = {**buffered, "schedule.buffer": "50"}
    assert differing([plain, buffered, more])[1:] == [
        {"schedule.name": "fedbuff", "schedule.buffer": "25"},
        {"schedule.name": "fedbuff", "schedule.buffer": "50"},
    ]
    # Whether a part of a list has an option is not known; an own name has it.
    for name in ("['index', 'metis']", "my_file.py:Own"):
        several = {"partition.method": name, "partition.options": "{}"}
        assert differing([several, {**several, "partition.options": "{a: 1}"}])[0] == {"partition.options": "{}"}


def test_runs_have_titles_that_tensorboard_shows(config: str) -> None:
    sweep = swept(config, "algorithm=fedgta{eps:0.5},local", "run.tensorboard=true", "rounds=1")
    titles = ["algorithm=fedgta,algorithm.eps=0.5", "algorithm=local"]
    links = [sweep.folder / "runs" / f"{title},run.tensorboard=true,rounds=1" for title in titles]
    assert sorted((sweep.folder / "runs").iterdir()) == sorted(links)
    assert [link.resolve() for link in links] == [row.path.resolve() for row in sweep.rows]
    assert sorted(GetLogdirSubdirectories(str(sweep.folder))) == sorted(str(link / "tensorboard") for link in links)
    # Moved together, they are found.
    moved = sweep.folder.parents[1].rename(sweep.folder.parents[2] / "moved")
    assert (moved / "sweeps" / sweep.folder.name / "runs" / links[0].name / METRICS).exists()


def test_a_title_is_the_name_of_a_file() -> None:
    for columns, title in (
        ({"partition.file": "a/b.npy", "seed": "0"}, r"partition\.file=a_b\.npy,seed=0-[0-9a-f]{8}"),
        ({"name": "x" * 300}, r"name=x{155}-[0-9a-f]{8}"),
        ({"partition.clients": "[3,3]"}, r"partition\.clients=\[3,3\]"),
    ):
        assert re.fullmatch(title, run_title(columns))


@pytest.mark.parametrize(
    ("axes", "places", "says"),
    [
        (["participation.ratio=0.5,2.0"], ["participation.ratio"], ""),
        (["algorithm=fedavg,fedprox,locl"], ["algorithm.name"], "'locl' is unknown"),
        (["algorithm=fedavg,fedgta{epz:0.5}"], ["algorithm.epz"], ""),
        (["model=sgc,gcn{hidden:true}"], ["model.hidden"], ""),
        (["data.dataset=sbm,sbmm"], ["data.dataset"], "'sbmm'"),
        (["rounds=2,3", "run.keep=1,2"], [], "are one run; leave one of them out of the sweep"),
    ],
)
def test_a_wrong_combination_stops_all(config: str, axes: list[str], places: list[str], says: str) -> None:
    with refused(*places, says=says):
        Sweep(Study(config, tuple(axes)))
    assert not Path(config).with_name("runs").exists()
    assert len(Sweep(Study(config, ("rounds=2,3", "engine.cell_size=1,2"))).rows) == 4


def test_sweep_failed_run_is_a_row(
    config: str, tmp_path: Path, status: Status, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One fails, the other is the same bit for bit at once and one after another, and is not run again.

    Its process takes no module of the working folder, which would come before the library of Python.
    """
    axis = f"algorithm={TOY}{{kind:raises,never,client:1}}"
    (tmp_path / "here").mkdir()
    for name in ("types", "json", "shoal"):
        text = f"open({str(tmp_path / 'ran')!r}, 'w')\nraise SystemExit('mine')\n"
        (tmp_path / "here" / f"{name}.py").write_text(text)
    monkeypatch.chdir(tmp_path / "here")
    assert status("sweep", config, axis, f"run.root={tmp_path / 'alone'}", "--no-report") == 1
    out, err = capsys.readouterr()
    assert "[2/2" in err
    assert "kind raises: failed: round 1, client 1: " in err
    assert "Traceback" not in err
    (line,) = [line for line in out.splitlines() if line.startswith("failed: ")]
    assert "no luck" in line
    assert "kind raises" in line
    assert status("sweep", config, axis, "--at-once", "2", "--no-report") == 1
    (one,), (other,) = (list((tmp_path / root / "sweeps").iterdir()) for root in ("alone", "runs"))
    first, second = read_rows(one), read_rows(other)
    assert [row.state for row in second] == ["failed", "finished"]
    assert "no luck" in second[0].error
    assert [row["error"] for row in json.loads((other / "table.json").read_text())] == [second[0].error, ""]
    assert not (tmp_path / "ran").exists()
    for before, after in zip(first, second):
        assert (before.state, before.error) == (after.state, after.error)
        files = [row.path / "checkpoints" / "round-000003" / "state.safetensors" for row in (before, after)]
        assert all(file.exists() for file in files) == (after.state == "finished")
        if after.state == "finished":
            assert files[0].read_bytes() == files[1].read_bytes()
    stamps = [(row.path / METRICS).stat().st_mtime_ns for row in second if row.state == "finished"]
    assert status("sweep", config, axis, "--no-report") == 1
    assert stamps == [(row.path / METRICS).stat().st_mtime_ns for row in second if row.state == "finished"]
    assert sorted(path.name for path in (other / "said").iterdir()) == sorted(f"{row.path.name}.txt" for row in second)


def test_runs_at_a_time_share_the_cores(config: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of seven cores two runs have three each, four have one; no more than clients; a number that is given stays."""
    monkeypatch.setattr(sweep_module, "machine_cores", lambda: 7)

    def given(at_once: int, *keys: str) -> list[str]:
        sweep = Sweep(Study(config, ("seed=0,1", *keys)), at_once)
        return sweep._share_of_machine(sweep.plans[0].config)

    on_ray = "engine.backend=ray"
    assert [given(at_once, on_ray) for at_once in (2, 4, 9)] == [[f"engine.hosts={hosts}"] for hosts in (3, 1, 1)]
    assert given(2, on_ray, "partition.clients=2") == ["engine.hosts=2"]
    assert given(2, on_ray, "engine.hosts=5") == given(2) == []
    # On GPUs each run has hosts on all, which have their part of one; of shares that are given, half of those that fit.
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 8)
    assert given(2, on_ray, "engine.device=cuda") == ["engine.hosts=8", "resources.gpus_per_host=0.5"]
    assert given(2, on_ray, "resources.gpus_per_host=0.25", "resources.cpus_per_host=0") == ["engine.hosts=16"]
    with refused("engine.hosts", says="auto takes all free cores, and 2 runs share them; give a number"):
        given(2, on_ray, "ray.address=auto")


@pytest.mark.parametrize("number", [signal.SIGKILL, pytest.param(signal.SIGINT, marks=pytest.mark.slow)])
def test_sweep_parallel_ended_resumes(config: str, tmp_path: Path, number: signal.Signals) -> None:
    """Ended while two are at work: both keep a checkpoint, the third is not begun; then all are finished."""
    method, held = tmp_path / "slow.py", tmp_path / "held"
    method.write_text(SLOW.format(file=held))
    held.touch()
    asked = (f"algorithm={method}:Slow", "rounds=20", "evaluation.every=20", "seeds=3")
    words = ("sweep", config, *asked, "--at-once", "2", "--no-report")
    process, runs = start(SHOAL, *words, printed=tmp_path / "printed"), tmp_path / "runs"
    deadline = time.monotonic() + 300
    while len({path.parent for path in runs.glob("swept-*/checkpoints/round-*")}) < 2 and time.monotonic() < deadline:
        time.sleep(0.05)
    below = psutil.Process(process.pid).children()
    os.kill(process.pid, number)
    process.join(60)
    said = (tmp_path / "printed").read_text()
    assert process.exitcode == (128 + signal.SIGINT if number == signal.SIGINT else -number), said
    assert (f"continue with: shoal sweep {config} " in said.splitlines()[-1]) == (number == signal.SIGINT)
    assert not psutil.wait_procs(below, timeout=60)[1]
    held.unlink()
    sweep = Sweep(Study(config, asked), at_once=2)
    assert [started(row.path) for row in sweep.rows] == [True, True, False]
    assert all(checkpoint.newest_round(row.path / "checkpoints") for row in sweep.rows[:2])
    assert [row.state for row in sweep.rows] == ["waiting"] * 3
    assert Sweep(Study(config, asked)).go()


@pytest.mark.parametrize("page", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_sweep_interrupted_shows_what_is_finished(config: str, tmp_path: Path, status: Status, page: bool) -> None:
    """By Ctrl-C in its third run: the table and the page of two runs, and the command of the sweep, which ends it."""
    method, held = tmp_path / "slow.py", tmp_path / "held"
    method.write_text(SLOW.format(file=held))
    held.touch()
    asked = [f"algorithm=fedavg,local,{method}:Slow", "rounds=9"]
    words = ("sweep", config, *asked, *([] if page else ["--no-report"]))
    process, runs = start(SHOAL, *words, printed=tmp_path / "printed"), tmp_path / "runs"
    deadline = time.monotonic() + 300
    while len({path.parent for path in runs.glob("swept-*/checkpoints/round-*")}) < 3 and time.monotonic() < deadline:
        time.sleep(0.05)
    os.kill(process.pid, signal.SIGINT)
    process.join(120)
    said = (tmp_path / "printed").read_text()
    assert process.exitcode == 128 + signal.SIGINT, said
    assert f"continue with: shoal sweep {config} {' '.join(asked)}" in said.splitlines()
    (folder,) = (runs / "sweeps").iterdir()
    rows = read_rows(folder)
    assert [row.state for row in rows] == ["finished", "finished", "waiting"]
    for row in rows[:2]:
        assert f"{100 * row.figures['deployed.best.test']:.2f}" in said
    if page:
        assert f"page: {folder}/report/index.html" in said
        assert "1 of 3 runs are not finished" in (folder / "report" / "index.html").read_text()
    held.unlink()
    assert status("sweep", config, *asked, "--no-report") == 0
    assert [row.state for row in read_rows(folder)] == ["finished"] * 3


def test_table_at_work_fills_and_time_left_counts_what_will_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of six runs two will not be chosen; the first took 10 s, preparing not among them."""
    clock = SimpleNamespace(now=100.0)
    monkeypatch.setattr(sweep_view, "time", SimpleNamespace(monotonic=lambda: clock.now))
    keys = [
        {"algorithm.name": name, "rounds": "9", "seed": seed} for name in ("fedavg", "a/b.py:Own") for seed in "012"
    ]
    rows = [Row(columns, state="waiting") for columns in keys]
    view = SweepView(rows, 4)
    assert view.seconds_left() is None
    view.begin(0)
    clock.now += 10
    rows[0] = Row(keys[0], {"deployed.best.test": 0.5})
    view.end(0)
    assert view.seconds_left() == 30
    view.begin(1)
    for now, left in ((4, 26), (30, 20)):
        clock.now = 110 + now
        assert view.seconds_left() == left
    rows[3] = Row(keys[3], state="failed", error="no luck")
    assert view.seconds_left() == 10
    shown = Console(file=StringIO(), width=80)
    shown.print(view.table())
    lines = [line.split() for line in shown.file.getvalue().splitlines()]  # type: ignore[attr-defined]
    assert lines[:3] == [
        ["method", "test", "(%)", "seconds", "runs"],
        ["FedAvg", "50.00", "10", "1/3,", "at", "work"],
        ["Own", "-", "-", "1", "failed"],
    ]
    assert " ".join(lines[3]) == "2 of 4 runs done; 10 s left"


def test_validation_chooses_with_few_seeds(config: str, capsys: pytest.CaptureFixture[str]) -> None:
    axes = ("algorithm=local,fedgta{eps:-1,0.5,1.01}", "seeds=3")
    study = Study(config, axes, choose="algorithm.eps", choose_seeds=2, choose_by="trained")
    sweep = Sweep(study)
    show_sweep_plan(sweep)
    # Three of local, three values by two seeds, and the chosen one by the third.
    assert "\n10 runs, 10 to go, " in capsys.readouterr().out
    sweep.go()
    said = next(line for line in capsys.readouterr().err.splitlines() if "chosen by" in line)
    assert said.startswith("algorithm fedgta, algorithm.eps chosen by trained validation: -1: ")
    by_eps: dict[str, list[float]] = {}
    for row in sweep.rows:
        if row.columns["algorithm"] == "fedgta" and row.columns["seed"] in ("0", "1"):
            by_eps.setdefault(row.columns["algorithm.eps"], []).append(row.figures["trained.best.val"])
    assert all(len(values) == 2 for values in by_eps.values())
    means = {eps: sum(values) / 2 for eps, values in by_eps.items()}
    chosen = max(means, key=means.__getitem__)
    for row in sweep.rows:
        mine = row.columns.get("algorithm.eps", chosen) == chosen
        assert row.state == ("finished" if mine else "not chosen")
        # The last seed was run with the chosen value alone.
        assert bool(row.figures) == (mine or row.columns["seed"] != "2")
    assert [row.state for row in read_rows(sweep.folder)] == [row.state for row in sweep.rows]
    capsys.readouterr()
    show_sweep_plan(Sweep(study))
    assert "\n10 runs, 0 to go, " in capsys.readouterr().out
    show_sweep(sweep.folder)
    assert "algorithm.eps is chosen by trained validation, over 2 seeds" in capsys.readouterr().out


def test_the_model_of_the_server_chooses_where_some_clients_miss_rounds(
    config: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Deployed models of few rounds would choose another rate than that with the best model at the server."""
    axes = ("algorithm=fedavg", "train.lr=0.001,0.05,0.5", "participation.count=1", "seeds=2")
    sweep = Sweep(Study(config, axes, choose="train.lr", choose_seeds=1))
    assert sweep.go()
    first = [row for row in sweep.rows if row.columns["seed"] == "0"]
    by_rate = {row.columns["train.lr"]: row.figures["global.best.val"] for row in first}
    chosen = max(by_rate, key=by_rate.__getitem__)
    assert [row.columns["train.lr"] for row in first if row.state == "finished"] == [chosen]
    scored = ", ".join(f"{rate}: {100 * score:.2f} %" for rate, score in by_rate.items())
    assert f"train.lr chosen by global validation: {scored}" in capsys.readouterr().err


def test_a_method_that_refuses_its_model_stops_all(config: str) -> None:
    """It does so before data is read, or with the data, which is there before the first run begins."""
    with refused("algorithm.hops", says="algorithm.hops: 2 needs propagation.hops of at least as many"):
        Sweep(Study(config, ("algorithm=fedavg,class_means", "seed=0,1")))
    assert not Path(config).with_name("runs").exists()
    # Data that cannot be had is the fault of its run alone.
    others = swept(config, "data.fractions=[0.2,0.4,0.4],[0.001,0.5,0.4]", "rounds=1")
    assert [row.state for row in others.rows] == ["finished", "failed"]


def test_the_plan_writes_nothing(config: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    show_sweep_plan(Sweep(Study(config, ("seeds=2",))))
    assert not (tmp_path / "runs").exists()
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[:4] for line in lines[1:3]] == [["seed", "0", "to", "run"], ["seed", "1", "to", "run"]]
    assert lines[3].startswith("2 runs, 2 to go, ")
    first = swept(config, "seeds=1").rows[0]
    read = json.loads((first.path / SUMMARY).read_text())["seconds"]["rounds"]
    capsys.readouterr()
    show_sweep_plan(Sweep(Study(config, ("seeds=2",))))
    lines = capsys.readouterr().out.splitlines()
    assert lines[1].split() == ["seed", "0", "finished", "-"]
    # As long as the one that is finished.
    assert lines[2].split() == ["seed", "1", "to", "run", *span(read).split()]
