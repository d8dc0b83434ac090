"""Events as TensorBoard itself reads them."""

from pathlib import Path
from typing import Any

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.plugins.hparams.plugin_data_pb2 import HParamsPluginData

from shoal.engine.callbacks.callback import Running
from shoal.engine.callbacks.tensorboard import TensorBoard


def line(number: int, loss: float | None, **more: Any) -> dict[str, Any]:
    seconds = {"round": 0.5 * number}
    return {"round": number, "loss": loss, "bytes_up": 10 * number, "bytes_down": 7, "seconds": seconds, **more}


def written(folder: Path, keys: dict[str, Any], *lines: dict[str, Any]) -> None:
    """Events of a run of these lines, which was resumed before the last."""
    board, running = TensorBoard(), Running(folder, {}, keys, 9)
    board.start(running)
    for each in lines[:-1]:
        board.after_round(running, each)
    board.start(running)
    for each in lines[-1:]:
        board.after_round(running, each)
    board.end(running, None)


def test_scalars_of_every_round(tmp_path: Path) -> None:
    scopes = {"served": {"val": {"nodes": 0.5, "f1": 0.1}, "test": {"nodes": 0.75}}, "global": {"val": {"nodes": 0.1}}}
    written(tmp_path, {}, line(1, 0.25), line(2, None, scopes=scopes))
    events = EventAccumulator(str(tmp_path / "tensorboard"))
    events.Reload()
    found = {tag: [(event.step, event.value) for event in events.Scalars(tag)] for tag in events.Tags()["scalars"]}
    assert found == {
        "bytes/up": [(1, 10), (2, 20)],
        "bytes/down": [(1, 7), (2, 7)],
        "seconds/round": [(1, 0.5), (2, 1.0)],
        # A round in which nobody trained has no loss.
        "loss": [(1, 0.25)],
        "accuracy_val/served": [(2, 0.5)],
        "accuracy_test/served": [(2, 0.75)],
        "accuracy_val/global": [(2, pytest.approx(0.1))],
    }


def test_domains_are_their_mean_and_each_by_its_name(tmp_path: Path) -> None:
    rates = {"de": {"accuracy": 0.25}, "pt": {"accuracy": 0.75}}
    both = {"nodes": 0.125, "clients": 0.5, "f1_clients": 0.375, "balanced": 0.625, "auc": None, "domains": rates}
    written(tmp_path, {}, line(3, None, scopes={"domains": {"both": both}}))
    events = EventAccumulator(str(tmp_path / "tensorboard"))
    events.Reload()
    tags = [tag for tag in events.Tags()["scalars"] if "domains" in tag]
    assert {tag: events.Scalars(tag)[0].value for tag in tags} == {
        "accuracy_both/domains": 0.5,
        "f1_clients_both/domains": 0.375,
        "balanced_both/domains": 0.625,
        "accuracy_both/domains/de": 0.25,
        "accuracy_both/domains/pt": 0.75,
    }


def test_the_keys_of_a_run(tmp_path: Path) -> None:
    keys = {
        "algorithm.name": "fedgta",
        "algorithm.eps": 0.5,
        "seed": 3,
        "train.nesterov": False,
        "model": ["gcn", None],
    }
    written(tmp_path, keys)
    events = EventAccumulator(str(tmp_path / "tensorboard"))
    events.Reload()
    content = events.PluginTagToContent("hparams")["_hparams_/session_start_info"]
    start = HParamsPluginData.FromString(content).session_start_info
    assert start.hparams["algorithm.name"].string_value == "fedgta"
    assert start.hparams["algorithm.eps"].number_value == 0.5
    assert start.hparams["seed"].number_value == 3
    assert start.hparams["train.nesterov"].HasField("bool_value")
    assert start.hparams["model"].string_value == "['gcn', None]"
    assert set(start.hparams) == set(keys)
