"""The best constant class against accuracies of every class, counted by hand and on a run."""

from pathlib import Path

import numpy as np
import pytest
from support.small_runs import small_run

from shoal.engine.config.config import parse_config
from shoal.engine.records.run_folder import read_summary
from shoal.engine.runs.run import run
from shoal.engine.scores.counts import constant_shares
from shoal.engine.scores.table import ScoreTable


def counts(*test_support: int) -> np.ndarray:
    """Counts of one client: test rows by class; validation has other ones."""
    counts_PKC = np.zeros((2, 3, len(test_support)), dtype=np.int64)
    counts_PKC[0, 0] = 9, 0, 0
    counts_PKC[1, 0] = test_support
    return counts_PKC


def test_another_class_is_best_for_another_mean() -> None:
    table = ScoreTable.of({0: counts(8, 2, 0), 1: counts(0, 1, 0), 3: counts(0, 1, 1), 4: counts(0, 0, 0)})
    shares = constant_shares(table, np.array([10, 100, 5, 50, 7]))
    assert shares == {
        # Class 0: 8 of 13 rows. Class 1: (10 * 0.2 + 100 + 50 * 0.5) / 160 of nodes, (0.2 + 1 + 0.5) / 3 of clients.
        "rows": pytest.approx(8 / 13),
        "nodes": pytest.approx(127 / 160),
        "clients": pytest.approx(1.7 / 3),
    }
    assert constant_shares(table, np.array([1, 2])) == {}
    assert constant_shares(ScoreTable.of({0: counts(0, 0, 0)}), np.array([3])) == {}


def test_a_model_that_never_learns_has_at_most_the_share_of_the_summary(tmp_path: Path) -> None:
    """With a rate of nearly 0 each client's scores are those of the start, whose class may be any."""
    plain = small_run(tmp_path, rounds=1)
    plain["train"] = {**plain.get("train", {}), "lr": 1e-20}
    summary = read_summary(run(parse_config(plain, "x.yaml")))
    assert summary["constant"].keys() == {"deployed", "global", "trained"}
    labels = summary["constant"]["global"]
    assert labels == summary["constant"]["deployed"]
    assert 0.25 <= labels["rows"] < 1
    again = parse_config({**plain, "evaluation": {"metrics": ["f1"]}}, "x.yaml")
    assert "constant" not in read_summary(run(again))
