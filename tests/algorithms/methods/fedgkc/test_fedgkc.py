"""What FedGKC promises beside its equations: cohorts of one, switches, clients that lack something, wrong options."""

from typing import Any

import numpy as np
import pytest
import torch
from support.fixtures import Start
from support.same_bits import assert_same_runs

from shoal.algorithms.protocol import MODEL
from shoal.engine.rounds.server import Server

GKC = {"algorithm.name": "fedgkc", "algorithm.copilot": {"name": "gcn", "hidden": 8}}
OFF = {**GKC, "algorithm.alpha": 1.0, "algorithm.beta": 0.0, "algorithm.self_distillation": False}
MODELS = [
    {"name": "gamlp", "hidden": 8},
    {"name": "gcn", "hidden": 8, "init": "own"},
    {"name": "gat", "hidden": 8, "heads": 2},
    {"name": "gin", "hidden": 8},
    {"name": "gcnii", "hidden": 8},
    {"name": "sgc"},
]
SEVERAL = {"model": MODELS, "heterogeneity.rule": "round-robin", "heterogeneity.embedding": 8, "train.dropout": 0.3}


def weights(server: Server, name: str = MODEL) -> list[torch.Tensor]:
    return [kept[f"{name}.w"] for _, kept in sorted(server.state.clients.items())]


@pytest.fixture
def alone(tmp_path: Any) -> dict[str, Any]:
    """Keys: client 2 is the whole cohort of the first two rounds, client 5, without a training row, of the third."""
    trace = np.zeros((3, 6), dtype=bool)
    trace[[0, 1, 2], [2, 2, 5]] = True
    np.save(tmp_path / "online.npy", trace)
    return {"participation.trace": str(tmp_path / "online.npy")}


@pytest.mark.parametrize("weighting", ["kama", "size", "uniform"])
def test_the_copilot_of_a_cohort_of_one_comes_back_exactly(start: Start, alone: dict[str, Any], weighting: str) -> None:
    server = start({**GKC, **alone, "algorithm.weights": weighting})
    for client in (2, 2, 5):
        server.round()
        assert torch.equal(server.state.server["w"], server.state.clients[client]["copilot.w"])


@pytest.mark.parametrize("batch", [None, 4])
def test_labels_alone_are_local_to_the_bit(run: Start, batch: int | None) -> None:
    keys = {**SEVERAL, "train.batch_size": batch}
    local = run({**keys, "algorithm.name": "local", "engine.trainer": "autograd"}, rounds=3)
    found = run({**keys, **OFF}, rounds=3)
    assert all(map(torch.equal, weights(found), weights(local)))
    # Copilots were trained and averaged all the same.
    assert not torch.equal(found.state.server["w"], found.state.clients[0]["copilot.w"])
    nothing = run({**keys, **OFF, "algorithm.mutual": "none"}, rounds=3)
    assert all(map(torch.equal, weights(nothing), weights(local)))


def test_what_rounding_leaves_of_a_weight_is_no_weight(run: Start) -> None:
    # 1 - 0.8 - 0.2 is not 0 in floating point.
    keys = {**SEVERAL, **GKC, "algorithm.self_distillation": False, "algorithm.mutual": "scores"}
    found = run({**keys, "algorithm.alpha": 0.8, "algorithm.beta": 0.2}, rounds=2)
    untrained = found.job.initial(found._built[MODEL][5], MODEL, 5)
    assert torch.equal(weights(found)[5], untrained)


def test_a_client_without_training_rows_is_taught(run: Start) -> None:
    keys = {**SEVERAL, **GKC, "algorithm.self_distillation": False}
    found = run(keys, rounds=2)
    for name in (MODEL, "copilot"):
        initial = found.job.initial(found._built[name][-1], name, 5)
        assert not torch.equal(weights(found, name)[5], initial)
    by_labels = run({**SEVERAL, **OFF}, rounds=2)
    assert torch.equal(weights(by_labels)[5], by_labels.job.initial(by_labels._built[MODEL][5], MODEL, 5))


def test_a_resumed_run_goes_on_to_the_bit(start: Start, run: Start) -> None:
    keys = {**SEVERAL, **GKC, "participation.ratio": 0.5, "algorithm.ramp": 3}
    resumed = start(keys, state=run(keys, rounds=3).state)
    resumed.round()
    assert_same_runs(run(keys, rounds=4), resumed)
