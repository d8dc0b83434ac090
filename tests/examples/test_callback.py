"""The callback among the examples ends a run in the round that its metrics say, from any folder and after a resume."""

from pathlib import Path
from typing import Any

import pytest
from rooms import ROOT
from support.small_runs import small_run

import shoal


def config(folder: Path, **keys: Any) -> shoal.Config:
    plain = small_run(folder, name="example", rounds=8, propagation={"hops": 3}, train={"lr": 0.002})
    return shoal.load_config(plain, **keys)


def test_callback_ends_the_run_at_its_target(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = shoal.run(config(tmp_path)).metrics
    reached = whole["served.val.nodes"].to_pylist()
    wanted = (reached[0] + max(reached)) / 2
    first = next(number for number, value in enumerate(reached, 1) if value >= wanted)
    assert 1 < first < 8
    monkeypatch.chdir(ROOT)
    mine = [{"name": "examples/stop_at_accuracy.py:StopAt", "accuracy": wanted}]
    stopped = shoal.run(config(tmp_path, callbacks=mine))
    assert stopped.summary["rounds"] == first
    assert stopped.summary["stopped"].startswith("served validation accuracy ")
    assert stopped.metrics["loss"].to_pylist() == whole["loss"].to_pylist()[:first]
    # Each round is a run of its own here, cut off by its time.
    cut = config(tmp_path, callbacks=mine, run={"root": str(tmp_path / "cut"), "max_seconds": 1e-9})
    for number in range(1, first):
        with pytest.raises(KeyboardInterrupt):
            shoal.run(cut, resume=number > 1)
    assert shoal.run(cut, resume=True).metrics["loss"].to_pylist() == stopped.metrics["loss"].to_pylist()
