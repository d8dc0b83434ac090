"""A client that kills its host, and a client whose data no host can read: named, without harm to others."""

import os
from collections.abc import Callable

import pytest
import torch
import yaml
from integration.runs import PATIENCE, Runs

from shoal.engine.records.checkpoint import load_newest
from shoal.engine.records.metrics import read_metrics

METHOD = """
import os
from dataclasses import dataclass
from shoal.algorithms.methods.fedavg import FedAvg

@dataclass(frozen=True)
class Deadly(FedAvg):
    deadly: int = -1
    raises: bool = False

    def upload(self, client, received, phase):
        if client.info.client == self.deadly:
            if self.raises:
                raise RuntimeError
            os._exit(1)
        return super().upload(client, received, phase)
"""
ROUNDS = 2
ON_RAY = ("engine.backend=ray", "engine.hosts=2", "participation.ratio=1", "engine.cell_size=4")


@pytest.fixture
def start(tmp_path_factory: pytest.TempPathFactory) -> Callable[[], Runs]:
    """Gives a folder for one run of the method above."""

    def start() -> Runs:
        folder = tmp_path_factory.mktemp("deadly")
        (folder / "deadly.py").write_text(METHOD)
        runs = Runs(folder, tmp_path_factory.getbasetemp() / "data")
        config = yaml.safe_load(runs.config.read_text())
        algorithm = {"name": f"{folder / 'deadly.py'}:Deadly"}
        runs.config.write_text(yaml.safe_dump({**config, "algorithm": algorithm, "rounds": ROUNDS}))
        return runs

    return start


def refusal(runs: Runs, *arguments: str) -> str:
    process = runs.start(*ON_RAY, *arguments)
    _, errors = process.communicate(timeout=PATIENCE)
    assert process.returncode == 2, errors.decode()
    return errors.decode().splitlines()[-1]


def test_client_that_kills_its_host_is_named(start: Callable[[], Runs]) -> None:
    line = refusal(start(), "algorithm.deadly=6", "engine.retries=2")
    assert "round 1, client 6: lost with host" in line
    assert "loss 3" in line


@pytest.mark.slow
def test_client_that_kills_its_host_is_skipped(start: Callable[[], Runs]) -> None:
    """The rest goes on with the numbers of a run in which that client merely fails."""
    arguments = (*ON_RAY, "algorithm.deadly=6", "engine.on_client_error=skip", "engine.retries=2")
    killed = start().finish(*arguments)
    failed = start().finish(*arguments, "engine.backend=local", "algorithm.raises=true")
    logs = [read_metrics(run) for run in (killed, failed)]
    for line, other in zip(*logs, strict=True):
        assert line["cohort"] == other["cohort"] == [i for i in range(12) if i != 6]
        assert "client 6: lost with host" in line["failures"]["6"]
        assert line["loss"] == other["loss"]
        assert line.get("scopes") == other.get("scopes")
    states = [load_newest(run / "checkpoints").state.to_tensors()[0] for run in (killed, failed)]  # type: ignore[union-attr]
    assert states[0].keys() == states[1].keys()
    assert all(torch.equal(tensor, states[1][name]) for name, tensor in states[0].items())


@pytest.mark.slow
def test_unreadable_shard_is_named(start: Callable[[], Runs]) -> None:
    runs = start()
    whole = runs.finish("engine.backend=local")
    (store,) = whole.parents[1].glob("data*/stores/sbm-*")
    os.rename(store / "clients" / "00007.arrow", store / "away")
    try:
        line = refusal(runs)
    finally:
        os.rename(store / "away", store / "clients" / "00007.arrow")
    assert f"{store}: clients 7: no host can read their files (shard, split, hops);" in line
    assert list(runs.folder.glob("same-*/metrics.jsonl")) == [whole / "metrics.jsonl"]
