"""A run as a user starts, stops and resumes it."""

import json
import os
import shutil
import signal
import time
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import yaml
from support.errors import refused as is_refused
from support.fixtures import Check, Configure, Refused
from support.forked import SHOAL, start
from support.small_runs import small_run
from support.toy_method import NAME as TOY
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from shoal.engine.config import run_identity
from shoal.engine.config.config import Config, load_config, parse_config
from shoal.engine.config.config_text import SEAL, with_seal
from shoal.engine.preparing.prepare import prepare
from shoal.engine.records.checkpoint import load_newest
from shoal.engine.records.inputs import GRAPHS
from shoal.engine.records.metrics import METRICS, read_metrics
from shoal.engine.records.run_folder import SUMMARY, RunFolder, failure_of, read_summary
from shoal.engine.runs.export import export
from shoal.engine.runs.plan import plan_of
from shoal.engine.runs.run import run
from shoal.engine.screen.tables import console, show_run
from shoal.pages.report import report
from shoal.storage.store.client_table import SplitRecord
from shoal.storage.store.store import Store
from shoal.study.sweep_folder import rows_of
from shoal.tables.study_table import Layout, table_of


@pytest.fixture
def config(tmp_path: Path) -> Path:
    path = tmp_path / "config.yaml"
    run_keys = {"tensorboard": True, "checkpoint_every": 2, "keep": 2}
    plain = small_run(tmp_path, rounds=6, partition={"clients": 5}, evaluation={"every": 4}, run=run_keys)
    path.write_text(yaml.safe_dump(plain))
    return path


def test_run_folder_holds_everything(config: Path) -> None:
    folder = run(load_config(config))
    lines = read_metrics(folder)
    assert [line["round"] for line in lines] == [1, 2, 3, 4, 5, 6]
    # The last round is evaluated although it is no multiple of four.
    assert [line["round"] for line in lines if "scopes" in line] == [4, 6]
    assert sorted(p.name for p in (folder / "checkpoints").iterdir()) == ["round-000004", "round-000006"]
    assert load_config(folder) == load_config(config)
    assert read_summary(folder)["bytes"]["up"] == sum(line["bytes_up"] for line in lines)
    assert all(line["scalars_up"] == line["bytes_up"] / 4 > 0 for line in lines)
    assert read_summary(folder)["synthetic"] is True
    events = EventAccumulator(str(folder / "tensorboard"))
    events.Reload()
    losses = [event.value for event in events.Scalars("loss")]
    assert losses == pytest.approx([line["loss"] for line in lines], rel=1e-6)
    before = {path: path.stat().st_mtime_ns for path in folder.rglob("*") if path.is_file()}
    assert run(load_config(config)) == folder
    assert before == {path: path.stat().st_mtime_ns for path in folder.rglob("*") if path.is_file()}


def test_cells_are_larger_where_they_are_trained_in_batches(config: Path) -> None:
    cuda = "engine.device=cuda"
    choices = ([], [cuda], [cuda, "engine.trainer=autograd"], [cuda, "engine.cell_size=7"])
    sizes = [plan_of(load_config(config, keys)).cell_size for keys in choices]
    assert sizes == ["auto", "auto, in batches", "auto", 7]


def test_an_interrupted_run_ends_its_round_and_resumes(config: Path) -> None:
    many = ["rounds=100", "run.tensorboard=false", "run.checkpoint_every=9", "evaluation.every=100"]
    printed = config.with_name("printed")
    # Where the tests themselves ignore the signal, as by nohup, the run would, too.
    hears = "import signal; signal.signal(signal.SIGHUP, signal.SIG_DFL); "
    process = start(hears + SHOAL, "run", config, *many, printed=printed)
    deadline = time.monotonic() + 60
    while not list(config.parent.glob("runs/*/metrics.jsonl")):
        assert time.monotonic() < deadline
        assert process.is_alive()
        time.sleep(0.01)
    os.kill(process.pid, signal.SIGHUP)
    process.join(120)
    assert process.exitcode == 128 + signal.SIGHUP
    assert "--resume" in printed.read_text()
    (folder,) = config.parent.glob("runs/*")
    stopped = len(read_metrics(folder))
    assert 0 < stopped < 100
    assert (folder / "checkpoints" / f"round-{stopped:06d}").is_dir()
    run(load_config(folder, many), resume=True)
    assert [line["round"] for line in read_metrics(folder)] == list(range(1, 101))
    record = json.loads((folder / "summary.json").read_text())
    assert record["rounds"] == 100


def test_a_run_killed_before_its_first_round_is_resumed_from_the_start(config: Path) -> None:
    folder = run(load_config(config))
    expected = [line["loss"] for line in read_metrics(folder)]
    for name in ("metrics.jsonl", "summary.json"):
        (folder / name).unlink()
    shutil.rmtree(folder / "checkpoints")
    assert run(load_config(config), resume=True) == folder
    assert [line["loss"] for line in read_metrics(folder)] == expected


def test_run_of_other_defaults_or_numbers_is_refused(config: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = run(load_config(config))
    sound = (folder / "config.yaml").read_text()
    (folder / "config.yaml").write_text(with_seal(sound.rpartition(SEAL)[0].replace("lr: 0.01", "lr: 0.5")))
    for resume in (False, True):
        with is_refused(folder, says="was run with other values of train.lr (0.5 -> 0.01)"):
            run(load_config(config), resume=resume)
        (folder / SUMMARY).unlink(missing_ok=True)
    (folder / "config.yaml").write_text(sound)
    monkeypatch.setattr(run_identity, "NUMBERS", run_identity.NUMBERS + 1)
    with is_refused(folder, says="the unfinished run was made by a version of Shoal with other numbers"):
        run(load_config(config), resume=True)
    assert run(load_config(config)) != folder


def test_resume_with_a_changed_config_or_a_lost_shard(tiny: Path, refused: Refused, shoal: Check) -> None:
    shoal("run", tiny)
    (run,) = (tiny.parent / "runs").iterdir()
    (run / SUMMARY).unlink()
    (run / METRICS).write_text((run / METRICS).read_text().splitlines()[0] + "\n")
    assert f"{run}: the unfinished run differs from this config in train.lr (0.01 -> 0.5)" in refused(
        "run", tiny, "train.lr=0.5", "--resume"
    )
    # A refusal leaves no folder of the run that it refuses.
    assert list(run.parent.iterdir()) == [run]
    assert all(word in refused("run", tiny) for word in ("--resume", "--fresh"))
    assert "--resume, --fresh: one goes on with the run" in refused("run", tiny, "--resume", "--fresh")
    assert (run / METRICS).exists()
    shoal("run", tiny, "run.keep=9", "--resume")
    (shard,) = (tiny.parent / "store" / "clients").glob("*.arrow")
    os.truncate(shard, 1000)
    line = refused("run", tiny, "seed=1")
    assert f"{shard}: client 0: 1000 bytes, the manifest says" in line
    shard.unlink()
    assert f"{shard}: client 0: missing; run `shoal prepare`" in refused("run", tiny, "seed=1")


def run_failing(folder: Path, options: dict[str, Any], **changes: Any) -> Path:
    plain = small_run(folder, algorithm={"name": TOY, **options}, **{"rounds": 2, **changes})
    return run(parse_config(plain, "test"))


@pytest.mark.parametrize(
    ("kind", "message"),
    [("raises", "RuntimeError: no luck"), ("nan", "NaN or infinity in 'w'"), ("other", "gives no 'w'")],
)
def test_client_error_skips_the_client_or_ends_the_run(tmp_path: Path, kind: str, message: str) -> None:
    with is_refused(says=message):
        run_failing(tmp_path, {"kind": kind})
    folder = run_failing(tmp_path, {"kind": kind}, engine={"backend": "local", "on_client_error": "skip"}, seed=1)
    lines = read_metrics(folder)
    assert [line["cohort"] for line in lines] == [[0, 1, 3], [0, 1, 3]]
    assert all(message.split(":")[0] in line["failures"]["2"] for line in lines)
    assert "Traceback" in (folder / "run.log").read_text()
    assert np.isfinite(lines[-1]["loss"])
    assert read_summary(folder)["scopes"]["global"]["final"]["test"]["rows"] > 0


def test_a_client_that_was_left_out_is_shown_wherever_the_numbers_are(tmp_path: Path) -> None:
    folder = run_failing(tmp_path, {}, engine={"backend": "local", "on_client_error": "skip"})
    assert read_summary(folder)["left_out"] == {"visits": 2, "clients": 1}
    with console.capture() as captured:
        show_run(folder)
    assert "left out: 2 visits of 1 clients" in captured.get()
    assert "left_out.visits" in table_of(rows_of([folder]), Layout(wide=True)).heads
    assert "some clients failed" in table_of(rows_of([folder]), Layout()).notes[-1]
    assert "visits left out" in report([folder], tmp_path / "page", kinds=("svg",)).read_text()


def test_rounds_before_a_failure_are_kept(tmp_path: Path) -> None:
    with is_refused(says="round 3, client 0"):
        run_failing(tmp_path, {"client": 0, "visits": 3}, rounds=5)
    (folder,) = (tmp_path / "runs").iterdir()
    assert [path.name for path in (folder / "checkpoints").iterdir()] == ["round-000002"]
    assert str(failure_of(folder)).startswith("failed in round 3: client 0: ")
    with closing(RunFolder(folder)) as again:
        again.begin(load_config(folder))
    assert failure_of(folder) is None


@pytest.fixture
def over_domains(configure: Configure, three_domains: Any, tmp_path: Path) -> Configure:
    def over_domains(name: str, **keys: Any) -> Config:
        run_keys = {"run.root": str(tmp_path / name), "run.tensorboard": False, "run.checkpoint_every": 1}
        plain = {**three_domains.keys, **run_keys, "data.store": str(tmp_path / "store"), "rounds": 7}
        return configure({**plain, **{key.replace("__", "."): value for key, value in keys.items()}})

    return over_domains


def stopped(config: Config) -> None:
    with pytest.raises(KeyboardInterrupt):
        run(config)


def test_domains_stopped_and_resumed(over_domains: Configure, tmp_path: Path) -> None:
    through = run(over_domains("through"))
    stopped(over_domains("parts", run__max_seconds=1e-9))
    parts = run(over_domains("parts"), resume=True)
    found, expected = ([line["scopes"] for line in read_metrics(folder)] for folder in (parts, through))
    assert found == expected
    summary = read_summary(parts)
    assert summary["scopes"] == read_summary(through)["scopes"]
    domains = summary["scopes"]["domains"]
    assert domains["last_five"]["rounds"] == [3, 4, 5, 6, 7]
    means = [line["domains"]["both"]["balanced"] for line in expected]
    assert domains["last_five"]["balanced"] == pytest.approx(sum(means[2:]) / 5)
    best = max(range(7), key=lambda number: expected[number]["domains"]["val"]["clients"])
    assert domains["best"] == {"round": best + 1, **expected[best]["domains"]}
    kept = load_newest(parts / "checkpoints")
    assert kept is not None
    assert kept.state.scores["domains"][5].shape == (3, 4, 4)
    assert summary["inputs"][GRAPHS] == kept.inputs[GRAPHS]
    # The rates follow from what is exported, with nothing of ours in between.
    table = pa.ipc.open_file(export(through) / "predictions-domains.arrow").read_all().to_pandas()
    last = domains["final"]["test"]
    of_test = table[table.part == "test"]
    right = of_test.domains == of_test.label
    by_domain = right.groupby(of_test.domain, observed=False).mean()
    assert by_domain.to_dict() == {name: found["accuracy"] for name, found in last["domains"].items()}
    assert by_domain.mean() == pytest.approx(last["clients"])
    assert len(table) == sum(graph.nodes for graph in Store(tmp_path / "store").manifest.domains)
    assert table.node.is_unique
    assert "deployed" in pa.ipc.open_file(through / "export/predictions.arrow").schema.names


def test_other_whole_graphs_are_no_way_on(over_domains: Configure) -> None:
    config = over_domains("parts", run__max_seconds=1e-9)
    stopped(config)
    graphs = Store(prepare(config).path).domain_graphs()
    record = graphs.manifest.splits["public"]
    manifest = replace(
        graphs.manifest, splits={"public": SplitRecord(record.counts, record.unreachable + 1, record.files)}
    )
    manifest.write(graphs.path)
    with is_refused(says="the prepared whole graphs changed since this run started"):
        run(config, resume=True)
    # Made again they are what they were.
    shutil.rmtree(graphs.path)
    run(over_domains("parts"), resume=True)
