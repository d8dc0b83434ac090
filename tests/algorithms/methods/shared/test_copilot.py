"""What methods with copilots share, on one that only averages them, and what all of them must hold."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from support.fixtures import Check, Keys, Make, Start
from torch import Tensor

from shoal.algorithms.base import Client, Output, Received, Trainer
from shoal.algorithms.client import FlatModel
from shoal.algorithms.methods.shared.copilot import WithCopilot
from shoal.algorithms.protocol import MODEL
from shoal.engine.rounds.server import Server

METHODS = ["fml", "fedkd"]
MODELS = [{"name": "gcn", "hidden": 8}, {"name": "gamlp", "hidden": 12, "init": "own"}, {"name": "sgc"}]


@dataclass(frozen=True)
class Apart(WithCopilot):
    """Both models learn from labels alone."""

    def train(self, client: Client, received: Received, trainer: Trainer, phase: str) -> float:
        trainer.fit(client, received, "copilot")
        return trainer.fit(client, received)


def apart(out: dict[str, Output], y: Tensor) -> dict[str, Tensor]:
    return {name: F.cross_entropy(answer.logits_NC, y) for name, answer in out.items()}


def test_rounds_written_out(start: Start, with_copilots: Keys, plain_pairs: Make, assert_holds: Check) -> None:
    """Absent clients keep both models, and one that comes back has the server's copilot; their own ones predict."""
    server = start({**with_copilots, "algorithm.name": f"{__file__}:Apart"})
    clients, w = plain_pairs(server), server.state.server["w"]
    assert torch.equal(w, server._build("copilot").w.detach())
    for number in range(1, 8):
        before = dict(server.state.clients)
        line, cohort = server.round(), server.cohort(number)
        for i in cohort:
            clients[i].receive(w)
            if len(clients[i].y):
                clients[i].train(number, "train", partial(apart, y=clients[i].y))
            torch.testing.assert_close(server.state.clients[i]["copilot.w"], clients[i].copilot_w, rtol=1e-3, atol=1e-5)
        for i in before.keys() - set(cohort):
            assert all(torch.equal(server.state.clients[i][name], t) for name, t in before[i].items())
        assert (line["bytes_up"], line["bytes_down"]) == (4 * 65 * len(cohort), 4 * 64 * len(cohort))
        w = torch.stack([clients[i].copilot_w for i in cohort]).mean(0)
        torch.testing.assert_close(server.state.server["w"], w, rtol=1e-3, atol=1e-5)
        w = server.state.server["w"]
        assert_holds(server, clients)


@pytest.mark.parametrize("name", METHODS)
def test_models_of_all_kinds_dense_or_sparse(run: Start, name: str, graphs: Mapping[str, Path], tmp_path: Path) -> None:
    """A copilot and models that pass messages, and such that read hops."""
    np.savez(tmp_path / "graph.npz", **{file.stem: np.load(file) for file in graphs["plain"].glob("*.npy")})
    keys = {"algorithm.name": name, "model": MODELS, "participation.ratio": 0.7, "train.dropout": 0.3}
    files = {"data.path": str(tmp_path / "graph.npz"), "data.store": str(tmp_path / "store"), "data.layout": "sparse"}
    servers = [run(keys, rounds=3), run({**keys, **files}, rounds=3)]
    assert servers[1]._built["copilot"][0].flat.sparse
    assert len({len(tree["model.w"]) for tree in servers[0].state.clients.values()}) == 3
    for i in servers[0].state.clients:
        assert_alike([server.state.clients[i]["model.w"] for server in servers], [model_of(s, i) for s in servers])
    assert_alike([server.state.server["w"] for server in servers], [s._built["copilot"][0].flat for s in servers])


def model_of(server: Server, client: int) -> FlatModel:
    return server._built[MODEL][server.infos[client].model].flat


def assert_alike(vectors: list[Tensor], models: list[FlatModel]) -> None:
    """Parameter by parameter, in whatever order they lie; Adam makes much of small differences."""
    for one, other in zip(*(model.parts(w) for w, model in zip(vectors, models)), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-2, atol=2e-3)
