"""Newcomers never take part, and are scored by what the method gives them: compared with plain torch, and by hand."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import torch
from support.errors import refused
from support.fixtures import CountsOf, Make, ModuleOf, Start, Views
from support.plain_training import plain_steps
from support.same_bits import assert_same_runs
from torch import Tensor, nn

from shoal.algorithms.base import Client, Received, Trainer
from shoal.algorithms.methods.fedavg import FedAvg
from shoal.algorithms.rng import key
from shoal.engine.newcomers.newcomers import draw_newcomers
from shoal.engine.rounds.server import Server
from shoal.engine.runs.plan import RunPlan
from shoal.storage.shards.view import View

EPOCHS = 7
ADAM = {"train.lr": 0.02, "train.weight_decay": 0.01, "train.dropout": 0.0}
HALF = {"data.newcomers": 0.5, "evaluation.newcomer_epochs": EPOCHS, **ADAM}
NEWCOMERS = draw_newcomers(0.5, 6, 0)


def given_by(server: Server) -> Tensor:
    """Parameters that a newcomer is given, by the method's paper."""
    tree = server.state.server
    return {"FedAvg": tree.get("w"), "FedGTA": tree.get("warm")}.get(type(server.algorithm).__name__, server._initial)


def trained_from(server: Server, module: nn.Module, view: View) -> nn.Module:
    """A client's model after local training on whole batches, by torch."""
    optimizer = torch.optim.Adam(module.parameters(), lr=0.02, weight_decay=0.01)

    def logits(rows: Tensor) -> Tensor:
        found: Tensor = module([view.hop(k)[rows] for k in module.inputs]).logits_NC
        return found

    if len(view.train):
        plain_steps(logits, optimizer, view, key(0, server.state.round, view.client, "train"), EPOCHS)
    return module


@pytest.mark.parametrize(("method", "trainer"), [("fedavg", "autograd"), ("fedgta", "batched"), ("local", "autograd")])
def test_newcomers_are_scored_with_what_they_are_given_and_after_their_own_training(
    method: str,
    trainer: str,
    start: Start,
    views: Views,
    counts_of: CountsOf,
    module_of: ModuleOf,
) -> None:
    server = start({**HALF, "algorithm.name": method, "engine.trainer": trainer})
    for _ in range(3):
        line = server.round()
        assert not set(line["cohort"]) & set(NEWCOMERS)
    scores = server.state.scores
    assert scores["newcomers"].keys() == scores["newcomers_trained"].keys() == set(NEWCOMERS)
    for scope in ("trained", "deployed"):
        assert scores[scope].keys() == set(range(6)) - set(NEWCOMERS)
    given, data = given_by(server), views(server)
    changed = 0
    for i in NEWCOMERS:
        np.testing.assert_array_equal(scores["newcomers"][i], counts_of(server, data[i], given))
        trained = nn.utils.parameters_to_vector(trained_from(server, module_of(server, given), data[i]).parameters())
        np.testing.assert_array_equal(scores["newcomers_trained"][i], counts_of(server, data[i], trained.detach()))
        changed += not np.array_equal(scores["newcomers"][i], scores["newcomers_trained"][i])
    assert changed
    assert not set(server.state.clients) & set(NEWCOMERS)
    assert not set(server.state.inboxes) & set(NEWCOMERS)


@pytest.mark.exhaustive(2)
@pytest.mark.parametrize("method", ["fedavg", "scaffold", "fedproto", "fedgta", "gcfl_plus", "fedpg"])
def test_the_federation_is_that_of_its_members_alone(method: str, start: Start, tmp_path: Path) -> None:
    """A trace without the newcomers, who otherwise are clients like others, gives the same rounds."""
    online = np.ones((1, 6), dtype=np.int8)
    online[:, NEWCOMERS] = 0
    np.save(tmp_path / "trace.npy", online)
    keys = {**ADAM, "algorithm.name": method, "participation.count": 2}
    with_them = start({**keys, "data.newcomers": 0.5})
    without = start({**keys, "participation.trace": str(tmp_path / "trace.npy")})
    if method in ("scaffold", "gcfl_plus"):
        # They count the clients that have training items: |S| / N, and all of a cluster.
        without._known = without.infos.without_training(NEWCOMERS)
    for _ in range(4):
        lines = [server.round() for server in (with_them, without)]
        assert [lines[0][name] for name in ("cohort", "loss", "bytes_up", "bytes_down")] == [
            lines[1][name] for name in ("cohort", "loss", "bytes_up", "bytes_down")
        ]
    assert_same_runs(with_them, without)


def test_samples_are_of_members_and_newcomers_are_scored_whole(start: Start) -> None:
    server = start({**HALF, "evaluation.clients": 2, "evaluation.every": 2})
    assert "scopes" not in server.round()
    line = server.round()
    assert line["evaluated"] == 2
    assert not set(server.schedule.sample(2) or ()) & set(NEWCOMERS)
    whole = start(HALF)
    whole.round()
    assert line["scopes"]["newcomers"] == whole.round()["scopes"]["newcomers"]


@dataclass(frozen=True)
class Failing(FedAvg):
    """The first newcomer cannot train."""

    def train(self, client: Client, received: Received, trainer: Trainer, phase: str) -> float:
        if client.info.client == NEWCOMERS[0]:
            raise RuntimeError("cannot train")
        return super().train(client, received, trainer, phase)


def test_a_newcomer_that_fails_is_left_out_by_name(start: Start) -> None:
    server = start({**HALF, "algorithm.name": f"{__file__}:Failing", "engine.on_client_error": "skip"})
    line = server.round()
    assert list(line["failures"]) == [str(NEWCOMERS[0])]
    assert line["cohort"] == [i for i in range(6) if i not in NEWCOMERS]
    assert server.state.scores["newcomers_trained"].keys() == set(NEWCOMERS[1:])


def test_newcomers_are_drawn_by_the_seed_alone() -> None:
    drawn = [draw_newcomers(0.3, 10, seed) for seed in range(200)]
    assert all(len(set(each)) == 3 and list(each) == sorted(each) for each in drawn)
    counts = np.bincount(np.concatenate(drawn), minlength=10)
    # 200 draws of 3 of 10: mean 60, deviation 6.5.
    assert abs(counts - 60).max() < 30


def test_what_has_no_newcomers_is_refused(start: Start, configure: Make) -> None:
    with refused("data.newcomers", says="less than one"):
        start({"data.newcomers": 0.1})
    for method in ("fedsage_plus", "global"):
        with refused("data.newcomers"):
            RunPlan.of(configure({"data.newcomers": 0.5, "algorithm.name": method, "model.name": "sage"}))
    with refused("participation.count"):
        start({"data.newcomers": 0.5, "participation.count": 4})
    with refused("evaluation.clients"):
        start({"data.newcomers": 0.5, "evaluation.clients": 4})
