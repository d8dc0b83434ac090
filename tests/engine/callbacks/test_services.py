"""What MLflow and Weights & Biases read of a run that was resumed, where they are installed."""

from pathlib import Path
from typing import Any

import pytest

from shoal.engine.callbacks.callback import Running

KEYS = {"algorithm.name": "fedgta", "train.lr": 0.5, "model": ["gcn", None]}


def line(number: int) -> dict[str, Any]:
    scopes = {"scopes": {"served": {"test": {"nodes": number / 4}}}} if number % 2 == 0 else {}
    return {"round": number, "cohort": [0, 1], "loss": 1 / number, "notes": {"a term's": 2.0}, **scopes}


def twice(make: Any, folder: Path) -> None:
    """Rounds 1 and 2, and after a kill 3 and 4."""
    for first in (1, 3):
        callback = make()
        running = Running(folder, {}, KEYS, 4, _lines=lambda first=first: [line(n) for n in range(1, first)])
        callback.start(running)
        for number in (first, first + 1):
            callback.after_round(running, line(number))
        callback.end(running, {"rounds": 4} if first == 3 else None)


def test_mlflow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("mlflow", reason="the extra mlflow is not installed")
    from mlflow.tracking import MlflowClient

    from shoal.engine.callbacks.mlflow_run import MLflowRun

    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    twice(MLflowRun, tmp_path / "name-12345678")
    client = MlflowClient(tracking_uri=f"sqlite:///{tmp_path}/mlflow.db")
    place = client.get_experiment_by_name("shoal").experiment_id
    (found,) = client.search_runs([place])
    assert (found.info.run_name, found.info.status) == ("name-12345678", "FINISHED")
    assert found.data.params == {"algorithm.name": "fedgta", "train.lr": "0.5", "model": "['gcn', None]"}
    history = {name: [(m.step, m.value) for m in client.get_metric_history(found.info.run_id, name)] for name in
               found.data.metrics}  # fmt: skip
    assert history == {
        "loss": [(n, 1 / n) for n in (1, 2, 3, 4)],
        "notes.a term_s": [(n, 2.0) for n in (1, 2, 3, 4)],
        "served.test.nodes": [(2, 0.5), (4, 1.0)],
    }


def test_wandb(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wandb = pytest.importorskip("wandb", reason="the extra wandb is not installed")
    from shoal.engine.callbacks.wandb_run import WandbRun

    monkeypatch.chdir(tmp_path)
    folder = tmp_path / "name-12345678"
    folder.mkdir()
    twice(WandbRun, folder)
    # Its own process writes the files, and may still be at it.
    wandb.teardown()
    files = sorted((folder / "wandb").glob("offline-run-*/run-name-12345678.wandb"))
    assert len(files) == 2
    # Records as protocol buffers: names and texts of keys and numbers stand in them as they are.
    for file in files:
        found = file.read_bytes()
        missing = [text for text in (b"algorithm.name", b"fedgta", b"served.test.nodes") if text not in found]
        assert not missing, (file.name, len(found), missing)
