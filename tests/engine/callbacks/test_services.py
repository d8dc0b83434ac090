"""What TensorBoard, MLflow and Weights & Biases themselves read of a run that was resumed, where they are installed."""

from pathlib import Path
from typing import Any

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.plugins.hparams.plugin_data_pb2 import HParamsPluginData

from shoal.engine.callbacks.callback import Running
from shoal.engine.callbacks.tensorboard import TensorBoard

KEYS = {"algorithm.name": "fedgta", "train.lr": 0.5, "model": ["gcn", None], "seed": 3, "train.nesterov": False}


def line(number: int, loss: float | None, scopes: dict[str, Any] | None = None) -> dict[str, Any]:
    of_round = {"round": number, "cohort": [0, 1], "loss": loss, "notes": {"a term's": 2.0}}
    sizes = {"bytes_up": 10 * number, "bytes_down": 7, "seconds": {"round": 0.5 * number}}
    return of_round | sizes | ({} if scopes is None else {"scopes": scopes})


def events_of(folder: Path, *lines: dict[str, Any]) -> EventAccumulator:
    """Events of a run of these lines, which was resumed before the last."""
    board, running = TensorBoard(), Running(folder, {}, KEYS, 9)
    for first, last in ((0, -1), (-1, None)):
        board.start(running)
        for each in lines[first:last]:
            board.after_round(running, each)
    board.end(running, None)
    events = EventAccumulator(str(folder / "tensorboard"))
    events.Reload()
    return events


def scalars(events: EventAccumulator) -> dict[str, list[tuple[int, float]]]:
    return {tag: [(event.step, event.value) for event in events.Scalars(tag)] for tag in events.Tags()["scalars"]}


def test_tensorboard(tmp_path: Path) -> None:
    scopes = {
        "deployed": {"val": {"nodes": 0.5, "f1": 0.1}, "test": {"nodes": 0.75}},
        "global": {"val": {"nodes": 0.1}},
    }
    events = events_of(tmp_path, line(1, 0.25), line(2, None, scopes))
    assert scalars(events) == {
        "bytes/up": [(1, 10), (2, 20)],
        "bytes/down": [(1, 7), (2, 7)],
        "seconds/round": [(1, 0.5), (2, 1.0)],
        # A round in which nobody trained has no loss.
        "loss": [(1, 0.25)],
        "accuracy_val/deployed": [(2, 0.5)],
        "accuracy_test/deployed": [(2, 0.75)],
        "accuracy_val/global": [(2, pytest.approx(0.1))],
    }
    content = events.PluginTagToContent("hparams")["_hparams_/session_start_info"]
    found = HParamsPluginData.FromString(content).session_start_info.hparams
    assert set(found) == set(KEYS)
    assert (found["algorithm.name"].string_value, found["model"].string_value) == ("fedgta", "['gcn', None]")
    assert (found["train.lr"].number_value, found["seed"].number_value) == (0.5, 3)
    assert found["train.nesterov"].HasField("bool_value")


def test_tensorboard_of_domains(tmp_path: Path) -> None:
    """Their mean, and each by its name."""
    rates = {"de": {"accuracy": 0.25}, "pt": {"accuracy": 0.75}}
    both = {"nodes": 0.125, "clients": 0.5, "f1_clients": 0.375, "balanced": 0.625, "auc": None, "domains": rates}
    found = scalars(events_of(tmp_path, line(3, None, {"domains": {"both": both}})))
    assert {tag: values for tag, values in found.items() if "domains" in tag} == {
        "accuracy_both/domains": [(3, 0.5)],
        "f1_clients_both/domains": [(3, 0.375)],
        "balanced_both/domains": [(3, 0.625)],
        "accuracy_both/domains/de": [(3, 0.25)],
        "accuracy_both/domains/pt": [(3, 0.75)],
    }


def line_of(number: int) -> dict[str, Any]:
    scopes = {"scopes": {"deployed": {"test": {"nodes": number / 4}}}} if number % 2 == 0 else {}
    return {"round": number, "cohort": [0, 1], "loss": 1 / number, "notes": {"a term's": 2.0}, **scopes}


def twice(make: Any, folder: Path) -> None:
    """Rounds 1 and 2, and after a kill 3 and 4."""
    for first in (1, 3):
        callback = make()
        running = Running(folder, {}, KEYS, 4, _lines=lambda first=first: [line_of(n) for n in range(1, first)])
        callback.start(running)
        for number in (first, first + 1):
            callback.after_round(running, line_of(number))
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
        "deployed.test.nodes": [(2, 0.5), (4, 1.0)],
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
        missing = [text for text in (b"algorithm.name", b"fedgta", b"deployed.test.nodes") if text not in found]
        assert not missing, (file.name, len(found), missing)
