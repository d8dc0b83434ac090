"""Runs that are equal to the bit."""

from pathlib import Path

from shoal.engine.records.metrics import read_metrics
from shoal.engine.records.run_folder import read_summary
from shoal.engine.runs.export import export
from shoal.kept_run import Run


def require_same_runs(one: Path, other: Path) -> None:
    """Models, predictions, digests of uploads, scores of clients and losses are equal, to the bit."""
    for name in ("models.safetensors", "predictions.arrow"):
        assert (export(one) / name).read_bytes() == (export(other) / name).read_bytes()
    for name in ("uploads.arrows", "clients.arrows"):
        assert (one / name).read_bytes() == (other / name).read_bytes()
    lines = [[(line["round"], line["cohort"], line["loss"]) for line in read_metrics(run)] for run in (one, other)]
    assert lines[0] == lines[1]
    assert Run(one).clients.equals(Run(other).clients)
    assert read_summary(one)["scopes"] == read_summary(other)["scopes"]
