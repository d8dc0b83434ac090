"""What methods with copilots share, on one that only averages them, and what all of them must hold."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from shoal.algorithms.base import Client, Output, Received, Trainer
from shoal.algorithms.client import FlatModel
from shoal.algorithms.methods.registry.load import describe, load
from shoal.algorithms.methods.shared.copilot import WithCopilot
from shoal.algorithms.protocol import MODEL, Ask, Reduce, Replies
from shoal.engine.config.config import Config
from shoal.engine.messages.models import require_mixable
from shoal.engine.rounds.server import Server
from shoal.storage.errors import ShoalError

Run = Callable[..., Server]
Keys = Mapping[str, Any]
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


def test_rounds_written_out(
    start: Run, with_copilots: Keys, plain_pairs: Callable[..., Any], assert_holds: Callable[..., None]
) -> None:
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


def test_private_model_without_distillation_equals_local(run: Run, with_copilots: Keys) -> None:
    """Each model drops by a stream of its own."""
    plain = {name: value for name, value in with_copilots.items() if name != "algorithm.copilot"}
    alone = run({**plain, "algorithm.name": "local", "engine.trainer": "autograd"}).state.clients
    beside = run({**with_copilots, "algorithm.name": f"{__file__}:Apart"}).state.clients
    for i, tree in alone.items():
        assert all(torch.equal(beside[i][name], t) for name, t in tree.items())


def test_what_the_copilot_is() -> None:
    assert Apart().models() == {"model": None, "copilot": {"name": "gcn"}}
    assert Apart({"name": "sgc", "hidden": 3}).models() == {"model": None, "copilot": {"name": "sgc", "hidden": 3}}


def test_a_download_replaces_the_copilot_alone(pair_of_tables: Callable[..., Client]) -> None:
    table = torch.full((3, 3), 1 / 3)
    client = pair_of_tables([0], table, table)
    own, w = client.model.w.clone(), client.models["copilot"].w.clone()
    assert Apart().receive(client, {}) == {}
    assert torch.equal(client.models["copilot"].w, w)
    down = {"w": w + 1}
    assert Apart().receive(client, down) is down
    assert torch.equal(client.models["copilot"].w, w + 1)
    assert torch.equal(client.model.w, own)
    up = Apart().upload(client, down, "train")
    assert up.weight == {"w": 3.0}
    assert torch.equal(up.entries["w"], w + 1)


@pytest.mark.parametrize("weight", [0.0, 0.5])
def test_a_cohort_without_weight_leaves_the_copilot(weight: float) -> None:
    server = {"w": torch.ones(2)}
    steps = Apart().round(server, None, [0])  # type: ignore[arg-type]
    ask = next(steps)
    assert isinstance(ask, Ask)
    assert (ask.phase, ask.up, list(ask.shared)) == ("train", {"w": Reduce.MEAN}, ["w"])
    with pytest.raises(StopIteration):
        steps.send(Replies([0], {"w": torch.zeros(2)}, {"w": torch.tensor(weight)}))
    assert server["w"].tolist() == ([0, 0] if weight else [1, 1])


@pytest.mark.parametrize("name", METHODS)
def test_a_resumed_run_goes_on_to_the_bit(start: Run, run: Run, with_copilots: Keys, name: str) -> None:
    """From what a checkpoint holds; after round 4 the last change of FedKD is that of a client that cannot train."""
    keys = {**with_copilots, "algorithm.name": name}
    whole = run(keys)
    for rounds in (1, 4):
        state = run(keys, rounds=rounds).state
        resumed = start(keys, state=type(state).from_tensors(*state.to_tensors()))
        for _ in range(rounds, 7):
            resumed.round()
        assert_same_state(resumed, whole)


def assert_same_state(left: Server, right: Server) -> None:
    (tensors, plain), (others, same) = (server.state.to_tensors() for server in (left, right))
    assert tensors.keys() == others.keys()
    assert plain == same
    assert all(torch.equal(tensors[name], others[name]) for name in tensors)


@pytest.mark.parametrize("name", METHODS)
def test_models_of_all_kinds_on_dense_and_sparse_features(
    run: Run, name: str, graphs: Mapping[str, Path], tmp_path: Path
) -> None:
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


@pytest.mark.parametrize("name", METHODS)
def test_labels_outside_the_training_rows_change_nothing(run: Run, name: str) -> None:
    plain, shuffled = (run({"algorithm.name": name}, rounds=2, graph=graph) for graph in ("plain", "shuffled"))
    for entry, tensor in plain.state.server.items():
        assert torch.equal(tensor, shuffled.state.server[entry]), entry


@pytest.mark.parametrize("name", METHODS)
def test_configs(configure: Callable[..., Config], start: Run, name: str) -> None:
    """A list of models is taken; steps of a part of the rows are not."""
    require_mixable(configure({"algorithm.name": name, "model": MODELS}), load(describe(name, {})))
    with pytest.raises(ShoalError, match=r"client 0: train.batch_size: .* leave it out"):
        start({"algorithm.name": name, "train.batch_size": 2}).round()
    with pytest.raises(ShoalError, match=r"algorithm: .* model 'copilot': model.layers"):
        start({"algorithm.name": name, "algorithm.copilot": {"name": "gcn", "layers": 0}})
    copilot = {"name": "gcn", "fanouts": [2, 2]}
    with pytest.raises(ShoalError, match=r"client 0: algorithm.copilot.fanouts: .* leave it out"):
        start({"algorithm.name": name, "algorithm.copilot": copilot}).round()
