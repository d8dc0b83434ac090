"""A grid of runs: expanded in order, finished runs skipped, unfinished ones resumed, one table."""

from pathlib import Path

import pytest
import yaml

from engine.commands.sweep import expand, sweep
from engine.records.metrics import METRICS
from engine.records.run_folder import SUMMARY
from engine.screen.report import console, show_sweep
from storage.errors import ShoalError


@pytest.fixture
def config(tmp_path: Path) -> str:
    path = tmp_path / "config.yaml"
    plain = {
        "name": "swept",
        "rounds": 3,
        "data": {"dataset": "sbm", "root": str(tmp_path), "options": {"nodes": 200, "features": 8, "classes": 3}},
        "partition": {"clients": 4},
        "propagation": {"hops": 1},
        "model": {"name": "sgc"},
        "algorithm": {"name": "fedavg"},
        "engine": {"backend": "local"},
        "run": {"root": str(tmp_path / "runs"), "checkpoint_every": 1, "tensorboard": False},
    }
    path.write_text(yaml.safe_dump(plain))
    return str(path)


def test_expand() -> None:
    assert expand(["a=1,2", "b.c=x,y"]) == [
        {"a": "1", "b.c": "x"},
        {"a": "1", "b.c": "y"},
        {"a": "2", "b.c": "x"},
        {"a": "2", "b.c": "y"},
    ]
    with pytest.raises(ShoalError, match=r"key\.sub=a,b,c"):
        expand(["a="])


def test_skips_finished_and_resumes_unfinished(config: str) -> None:
    grid = ["participation.ratio=0.5,1.0", "seed=0,1"]
    first = sweep(config, grid)
    assert len({run for run, _ in first}) == 4
    finished, unfinished = first[0][0], first[3][0]
    final = (unfinished / "checkpoints" / "round-000003" / "state.safetensors").read_bytes()
    stamp = (finished / METRICS).stat().st_mtime_ns
    (unfinished / SUMMARY).unlink()
    (unfinished / "checkpoints" / "round-000003").rename(unfinished / "gone")
    assert sweep(config, grid) == first
    assert (finished / METRICS).stat().st_mtime_ns == stamp
    assert (unfinished / SUMMARY).exists()
    assert (unfinished / "checkpoints" / "round-000003" / "state.safetensors").read_bytes() == final


def test_table_takes_seeds_together(config: str) -> None:
    with console.capture() as captured:
        show_sweep(sweep(config, ["participation.ratio=0.5,1.0", "seed=0,1"]))
    lines = [line.split() for line in captured.get().splitlines()]
    rows = [line for line in lines if line and line[0] in ("0.5", "1.0")]
    assert [row[:2] for row in rows] == [["0.5", "2"], ["1.0", "2"]]
    assert all(row.count("±") == 3 for row in rows)


def test_a_wrong_config_stops_before_the_first_run(config: str, tmp_path: Path) -> None:
    with pytest.raises(ShoalError, match="ratio"):
        sweep(config, ["participation.ratio=0.5,2.0"])
    assert not (tmp_path / "runs").exists()


def test_a_grid_of_too_many_runs_is_not_written_out() -> None:
    values = ",".join(map(str, range(1000)))
    assert len(expand([f"seed={values}"])) == 1000
    with pytest.raises(ShoalError, match=r"^rounds=0,1,2.*: a sweep has at most 1,000 runs; give fewer values$"):
        expand([f"seed={values}", f"rounds={values}", f"train.epochs={values}", f"data.split_seed={values}"])
