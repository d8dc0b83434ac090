"""What clients of different models share: coupled and decoupled ones, whole graphs and drawn neighbours."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from shoal.algorithms.client import Client
from shoal.algorithms.models.build import build
from shoal.algorithms.models.inputs.neighbourhood import all_nodes
from shoal.engine.rounds.server import Server
from shoal.storage.store.view import View

COUPLED = ("gcn", "sage", "gat", "gin", "gcnii")
MODELS = [
    {"name": "gcn", "hidden": 8},
    {"name": "gat", "hidden": 8, "fanouts": [3, 2]},
    {"name": "gin", "hidden": 8},
    {"name": "sage", "hidden": 8, "fanouts": [-1, 2]},
    {"name": "gcnii", "hidden": 8},
    {"name": "sgc"},
]
MIXED = {"model": MODELS, "heterogeneity.rule": "round-robin", "heterogeneity.embedding": 8, "train.dropout": 0.3}
PG = {"algorithm.name": "fedpg"}
LG = {"algorithm.name": "lg_fedavg"}
GEN = {"algorithm.name": "fedgen", "algorithm.server_steps": 3, "algorithm.server_batch": 8}
METHODS = [
    ({"algorithm.name": "fedproto"}, {"algorithm.lam": 0.0}),
    ({"algorithm.name": "feddistill"}, {"algorithm.gamma": 0.0}),
    ({"algorithm.name": "fedtgp"}, {"algorithm.lam": 0.0}),
    (PG, {"algorithm.mu": 0.0}),
    ({**PG, "algorithm.alignment": "prototype"}, {"algorithm.mu": 0.0}),
    ({**PG, "algorithm.alignment": "prototype", "algorithm.attention": "node"}, {"algorithm.mu": 0.0}),
    ({"algorithm.name": "class_means"}, {"algorithm.weight": 0.0}),
]  # fmt: skip


def weights(server: Server) -> list[torch.Tensor]:
    return [server.state.clients[i]["model.w"] for i in sorted(server.state.clients)]


@pytest.mark.exhaustive(4)
@pytest.mark.parametrize(("method", "without"), METHODS)
def test_a_term_for_every_model(run: Callable[..., Server], method: dict[str, Any], without: dict[str, Any]) -> None:
    # A method with a term is trained by autograd, whatever the term weighs.
    local = weights(run({**MIXED, "algorithm.name": "local", "engine.trainer": "autograd"}, rounds=3))
    for mine, other in zip(local, weights(run({**MIXED, **method, **without}, rounds=3)), strict=True):
        assert torch.equal(mine, other)
    aligned = weights(run({**MIXED, **method}, rounds=3))
    assert all(w.isfinite().all() for w in aligned)
    # The last client has no training nodes and stays as it is.
    changed = [not torch.equal(mine, other) for mine, other in zip(local, aligned)]
    assert changed == [True] * 5 + [False]


def test_a_generator_for_every_model(run: Callable[..., Server]) -> None:
    plain = weights(run({**MIXED, **LG, "engine.trainer": "autograd"}, rounds=3))
    off = run({**MIXED, **GEN, "algorithm.alpha": 0.0, "algorithm.beta": 0.0}, rounds=3)
    for mine, other in zip(plain, weights(off), strict=True):
        assert torch.equal(mine, other)
    for weight in ("alpha", "beta"):
        taught = weights(run({**MIXED, **GEN, f"algorithm.{weight}": 0.0}, rounds=3))
        assert all(w.isfinite().all() for w in taught)
        # The last client has no training nodes, but the classifier of the others.
        assert not any(torch.equal(mine, other) for mine, other in zip(plain, taught))


@pytest.mark.exhaustive(4)
@pytest.mark.parametrize("method", [*(method for method, _ in METHODS), LG, GEN])
def test_a_resumed_run_goes_on_to_the_bit(
    start: Callable[..., Server], run: Callable[..., Server], method: dict[str, Any]
) -> None:
    keys = {**MIXED, **method, "participation.ratio": 0.7}
    resumed = start(keys, state=run(keys, rounds=2).state)
    resumed.round()
    whole = run(keys, rounds=3)
    for mine, other in zip(weights(resumed), weights(whole), strict=True):
        assert torch.equal(mine, other)
    for name, tensor in resumed.state.server.items():
        assert torch.equal(tensor, whole.state.server[name]), name


def client_of(view: View, name: str, make_client: Callable[..., Client], **options: Any) -> Client:
    torch.manual_seed(0)
    client = make_client(view, build(name, 3, 2, 2, 0.0, {"hidden": 8, **options}))
    client.model.module.eval()
    return client


@pytest.mark.parametrize("name", COUPLED)
def test_alike_are_pairs_of_the_same_features(
    name: str, make_view: Callable[..., View], make_client: Callable[..., Client]
) -> None:
    x = np.random.default_rng(0).standard_normal((4, 3)).astype(np.float32)
    view = make_view(8, [(i, i + 4) for i in range(4)], [0] * 8, [0], 2, np.concatenate([x, x]))
    client = client_of(view, name, make_client)
    expected = client.model.logits()
    torch.testing.assert_close(client.model(client.model.standalone(torch.from_numpy(x))).logits_NC, expected[:4])


@pytest.mark.parametrize("options", [{}, {"fanouts": [-1, -1]}])
@pytest.mark.parametrize("name", COUPLED)
def test_some_rows_are_rows_of_the_whole(
    name: str, options: dict[str, Any], make_view: Callable[..., View], make_client: Callable[..., Client]
) -> None:
    rng = np.random.default_rng(1)
    edges = np.argwhere(np.triu(rng.random((15, 15)) < 0.3, 1))
    view = make_view(15, edges, [0] * 15, [0], 2, rng.standard_normal((15, 3)).astype(np.float32))
    client = client_of(view, name, make_client, **options)
    rows = torch.tensor([3, 0, 9])
    coupled = client.model.coupled
    assert coupled is not None
    expected = client.model(all_nodes(view, coupled.operator, 2)).embedding_NH[rows]
    found = client.model.forward(rows)().embedding_NH
    assert found.requires_grad
    torch.testing.assert_close(found, expected)
