"""`benchmarks/gpu.py` on a machine without a GPU, at its smallest sizes."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]


def figures(out: Path, *arguments: str) -> dict[str, Any]:
    command = [sys.executable, "benchmarks/gpu.py", "--out", str(out), "--device", "cpu", "--smallest", *arguments]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True, timeout=500)
    return json.loads((out / "gpu.json").read_text())


@pytest.mark.slow
def test_gpu_stages_on_a_processor_are_done_or_named(tmp_path: Path) -> None:
    found = figures(tmp_path, "--stages", "paths", "faults")
    assert found["device"] == "cpu"
    assert {name: stage["state"] for name, stage in found["stages"].items()} == {"paths": "done", "faults": "done"}
    bare, loop, stacked = found["stages"]["paths"]["rows"]
    assert (bare["path"], loop["path"], stacked["path"]) == ("bare loop", "autograd", "batched")
    assert bare["ms a client"] > 0
    assert 0 < stacked["launches a client"] < loop["launches a client"]
    assert found["stages"]["faults"]["rows"][0]["found"] == "not done: they need a GPU"
    assert "paths: done" in (tmp_path / "gpu.txt").read_text()


@pytest.mark.slow
def test_gpu_stage_without_time_is_named(tmp_path: Path) -> None:
    found = figures(tmp_path, "--stages", "versions", "--minutes", "0")
    assert found["stages"]["versions"]["state"] == "left out: no time left"


@pytest.mark.slow
def test_gpu_stages_all_run(tmp_path: Path) -> None:
    for name, stage in figures(tmp_path)["stages"].items():
        assert stage["state"] == "done", name
        assert not [row for row in stage["rows"] if "error" in row], name
