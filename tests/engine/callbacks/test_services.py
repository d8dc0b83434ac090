"""What TensorBoard, MLflow and Weights & Biases themselves read of a run that was resumed, where they are installed."""

import os
import struct
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from support.small_runs import small_run
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.plugins.hparams.plugin_data_pb2 import HParamsPluginData

from shoal.engine.callbacks.callback import Running
from shoal.engine.callbacks.tensorboard import TensorBoard
from shoal.engine.records.metrics import read_metrics

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
    named = {"algorithm.name": "fedgta", "train.lr": "0.5", "model": "['gcn', None]"}
    assert found.data.params == {**named, "seed": "3", "train.nesterov": "False"}
    history = {name: [(m.step, m.value) for m in client.get_metric_history(found.info.run_id, name)] for name in
               found.data.metrics}  # fmt: skip
    assert history == {
        "loss": [(n, 1 / n) for n in (1, 2, 3, 4)],
        "notes.a term_s": [(n, 2.0) for n in (1, 2, 3, 4)],
        "deployed.test.nodes": [(2, 0.5), (4, 1.0)],
    }


# Its run is left to the hook that W&B registers for the end of the process.
LEFT_OPEN = """
from dataclasses import dataclass
from typing import Any
from shoal import Callback

@dataclass
class LeftOpen(Callback):
    run: Any = None

    def after_round(self, run, line):
        import wandb

        self.run = self.run or wandb.init(
            mode="offline", dir=str(run.path), id=run.path.name, settings=wandb.Settings(silent=True)
        )
        self.run.log({"loss": line["loss"], "deployed.test.nodes": 1.0}, step=line["round"])
"""


def records_of(file: Path) -> list[Any]:
    """The records of a file of Weights & Biases: a header of 7 bytes, then a log as LevelDB has it."""
    from wandb.proto.wandb_internal_pb2 import Record

    content, place, parts, found = file.read_bytes(), 7, b"", []
    while place + 7 <= len(content):
        # A block has 32 KiB; less than the header of a record is left empty at its end.
        if 32768 - place % 32768 < 7:
            place += 32768 - place % 32768
        _, length, kind = struct.unpack_from("<IHB", content, place)
        parts += content[place + 7 : place + 7 + length]
        place += 7 + length
        # Whole, or the last part.
        if kind in (1, 4):
            found.append(Record.FromString(parts))
            parts = b""
    return found


@pytest.mark.parametrize(
    ("closes", "backend"),
    [(False, "local"), *(pytest.param(closes, "ray", marks=pytest.mark.slow) for closes in (0, 1))],
)
def test_wandb_has_all_rounds_at_the_end_of_the_command(tmp_path: Path, closes: bool, backend: str) -> None:
    """Its own process writes them, also those of a run that is left to its exit hook, which says nothing."""
    pytest.importorskip("wandb", reason="the extra wandb is not installed")
    (tmp_path / "own.py").write_text(LEFT_OPEN)
    name = "wandb" if closes else f"{tmp_path / 'own.py'}:LeftOpen"
    config = small_run(tmp_path, callbacks=[{"name": name}], engine={"backend": backend})
    (tmp_path / "config.yaml").write_text(yaml.safe_dump(config))
    command = [sys.executable, "-m", "shoal", "run", str(tmp_path / "config.yaml")]
    env = {key: value for key, value in os.environ.items() if not key.startswith("WANDB_")}
    ended = subprocess.run(command, check=True, capture_output=True, text=True, env=env)
    assert "Traceback" not in ended.stderr
    (run,) = (tmp_path / "runs").iterdir()
    (file,) = (run / "wandb").glob(f"offline-run-*/run-{run.name}.wandb")
    records = records_of(file)
    rounds = [record.history for record in records if record.WhichOneof("record_type") == "history"]
    loss = [[item.value_json for item in each.item if ("loss" in (item.key, *item.nested_key))] for each in rounds]
    assert [[float(value) for value in values] for values in loss] == [[line["loss"]] for line in read_metrics(run)]
    assert [record.exit.exit_code for record in records if record.WhichOneof("record_type") == "exit"] == [0]
