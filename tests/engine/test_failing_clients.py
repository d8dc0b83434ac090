"""A client whose code or upload fails ends the run or is left out of the round, and never reaches the aggregate."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from algorithms.base import Client, Given, Upload
from algorithms.methods.fedavg import FedAvg
from engine.commands.run import run
from engine.records.run_folder import read_metrics, read_summary
from engine.rounds.server import Server
from engine.settings.config import parse_config
from storage.errors import ShoalError
from storage.view import View

METHOD = """
from dataclasses import dataclass
import torch
from algorithms.methods.fedavg import FedAvg
from algorithms.protocol import Upload

@dataclass(frozen=True)
class Failing(FedAvg):
    kind: str = "raises"

    def upload(self, client, given, phase):
        sent = super().upload(client, given, phase)
        client.state["visits"] = client.state.get("visits", torch.zeros(())) + 1
        if client.info.client != 2:
            return sent
        if self.kind == "raises":
            raise RuntimeError("no luck")
        if self.kind == "nan":
            return Upload({"w": sent.entries["w"] * float("nan")}, sent.weight)
        return Upload({"other": sent.entries["w"]}, sent.weight)
"""


def start_run(folder: Path, **changes: Any) -> Path:
    (folder / "failing.py").write_text(METHOD)
    plain = {
        "name": "failing",
        "rounds": 2,
        "data": {"dataset": "sbm", "root": str(folder), "options": {"nodes": 200, "features": 8, "classes": 3}},
        "partition": {"clients": 4},
        "propagation": {"hops": 1},
        "model": {"name": "sgc"},
        "algorithm": {"name": f"{folder / 'failing.py'}:Failing"},
        "engine": {"backend": "local"},
        "run": {"root": str(folder / "runs"), "tensorboard": False},
    }
    return run(parse_config({**plain, **changes}, "test"))


@pytest.mark.parametrize(
    ("kind", "message"),
    [("raises", "RuntimeError: no luck"), ("nan", "NaN or infinity in 'w'"), ("other", "gives no 'w'")],
)
def test_left_out_or_the_end(tmp_path: Path, kind: str, message: str) -> None:
    algorithm = {"name": f"{tmp_path / 'failing.py'}:Failing", "kind": kind}
    with pytest.raises(ShoalError, match=rf"round 1, client 2: .*{message}"):
        start_run(tmp_path, algorithm=algorithm)
    folder = start_run(
        tmp_path, algorithm=algorithm, name="skipping", engine={"backend": "local", "on_client_error": "skip"}
    )
    lines = read_metrics(folder)
    assert [line["cohort"] for line in lines] == [[0, 1, 3], [0, 1, 3]]
    assert all(message.split(":")[0] in line["failures"]["2"] for line in lines)
    assert "Traceback" in (folder / "run.log").read_text()
    assert np.isfinite(lines[-1]["loss"])
    assert read_summary(folder)["scopes"]["global"]["last"]["test"]["rows"] > 0


def test_rounds_before_a_failure_are_kept(tmp_path: Path) -> None:
    method = METHOD.replace("if client.info.client != 2:", "if client.state['visits'] < 3:")
    (tmp_path / "late.py").write_text(method)
    algorithm = {"name": f"{tmp_path / 'late.py'}:Failing"}
    with pytest.raises(ShoalError, match="round 3, client 0"):
        start_run(tmp_path, algorithm=algorithm, rounds=5)
    (folder,) = (tmp_path / "runs").iterdir()
    assert [path.name for path in (folder / "checkpoints").iterdir()] == ["round-000002"]


def test_nobody_answers(tmp_path: Path) -> None:
    with pytest.raises(ShoalError, match="no client of the cohort answered"):
        start_run(
            tmp_path, train={"lr": 1e30, "optimizer": "sgd"}, engine={"backend": "local", "on_client_error": "skip"}
        )


def test_a_round_in_which_nobody_is_online(tmp_path: Path) -> None:
    np.save(tmp_path / "trace.npy", np.array([[1, 1, 0, 1], [0, 0, 0, 0]]))
    trace = {"trace": str(tmp_path / "trace.npy")}
    folder = start_run(tmp_path, algorithm={"name": "fedgta"}, participation=trace, rounds=4)
    lines = read_metrics(folder)
    assert [line["cohort"] for line in lines] == [[0, 1, 3], [], [0, 1, 3], []]
    assert lines[0]["scopes"]["served"] == lines[1]["scopes"]["served"]
    assert lines[1]["bytes_up"] == 0


def test_out_of_time(tmp_path: Path) -> None:
    limited = {"root": str(tmp_path / "runs"), "tensorboard": False, "max_seconds": 1e-6}
    with pytest.raises(KeyboardInterrupt):
        start_run(tmp_path, algorithm={"name": "fedavg"}, run=limited)
    (folder,) = (tmp_path / "runs").iterdir()
    assert len(read_metrics(folder)) == 1
    assert (folder / "checkpoints" / "round-000001").is_dir()


@dataclass(frozen=True)
class SecondVisit(FedAvg):
    """FedAvg whose client 2 fails at its second visit, or whenever it is asked for its scores once it was trained."""

    at: str = "upload"

    def upload(self, client: Client, given: Given, phase: str) -> Upload:
        visits = client.state.get("visits", torch.zeros(()))
        client.state["visits"] = visits + 1
        if client.info.client == 2 and self.at == "upload" and visits > 0:
            raise RuntimeError("no luck")
        return super().upload(client, given, phase)

    def predict(self, client: Client, given: Given, part: str) -> Tensor:
        if client.info.client == 2 and self.at == "predict" and "visits" in client.state:
            raise RuntimeError("no luck")
        return super().predict(client, given, part)


@pytest.mark.parametrize("at", ["upload", "predict"])
def test_a_client_that_failed_keeps_no_older_score_as_if_it_were_new(
    start: Callable[..., Server], views: Callable[..., list[View]], counts_of: Callable[..., np.ndarray], at: str
) -> None:
    keys = {"algorithm.name": f"{__file__}:SecondVisit", "algorithm.at": at, "engine.on_client_error": "skip"}
    server = start({**keys, "rounds": 4, "evaluation.every": 2})
    # Counts of before the first round: those of a client that trained since are older than its model.
    server.state.scores["trained"] = {2: np.full((2, 3, 4), 7)}
    server.state.scores["served"] = {i: np.full((2, 3, 4), 7) for i in range(6)}
    server.round()
    after_one = server.state.server["w"].clone()
    line = server.round()
    assert list(line["failures"]) == ["2"]
    scores = server.state.scores
    assert 2 not in scores["trained"]
    if at == "upload":
        np.testing.assert_array_equal(scores["served"][2], counts_of(server, views(server)[2], after_one))
    else:
        assert 2 not in scores["served"]
    assert scores["served"].keys() >= {0, 1, 3, 4, 5}
    assert all((counts < 7).any() for scope in scores.values() for counts in scope.values())
    assert set(line["scopes"]) == {"trained", "served", "global"}


def test_one_that_failed_before_it_trained_again_keeps_what_it_has(start: Callable[..., Server]) -> None:
    keys = {"algorithm.name": f"{__file__}:SecondVisit", "engine.on_client_error": "skip", "evaluation.every": 1}
    server = start(keys)
    server.round()
    before = server.state.scores["trained"][2]
    server.round()
    assert server.state.scores["trained"][2] is before
