"""AdaFGL's parts by hand, what it is without its second phase, who comes late, and what it refuses."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from support.both_layouts import both_layouts
from support.fixtures import MakeClient, MakeView, PlainClients, Start
from support.same_bits import assert_same_runs, assert_same_scores

from shoal.algorithms.client import Client
from shoal.algorithms.methods.adafgl.adafgl import AdaFGL, Received
from shoal.algorithms.methods.adafgl.knowledge import knowledge, propagated
from shoal.algorithms.models.build import build
from shoal.algorithms.train_options import TrainOptions
from shoal.algorithms.training.local_training import LocalTrainer

KEYS: dict[str, Any] = {"algorithm.name": "adafgl", "algorithm.shared_rounds": 2, "algorithm.hidden": 6}


@pytest.mark.parametrize("weight", [None, 3.0])
def test_knowledge_by_hand(make_view: MakeView, weight: float | None) -> None:
    x = np.array([[1.0, 0.0], [0.0, 2.0], [4.0, 4.0]], dtype=np.float32)
    weights = None if weight is None else np.full((3, 3), weight, dtype=np.float32)
    view = make_view(3, [(0, 1)], [0, 1, 1], [0], 2, x, weights)
    edge = 0.25 * (weight or 1)
    p = torch.tensor([[1.0, 0.0], [0.0, 1.0], [0.0, 1.0]])
    found = knowledge(view, p, 0.25, 1, 0.5)
    m = np.array([[1, edge, 0], [edge, 1, 0.75], [0, 0.75, 1]])
    root = m.sum(1) ** -0.5
    hops = np.concatenate([x, (root[:, None] * m * root) @ x], 1)
    np.testing.assert_allclose(found.hops_NG, hops, rtol=1e-6)
    assert not found.mixed_NN.numel()
    products = propagated(found, view.whole(0), [torch.eye(4), torch.full((4, 4), 2.0)])
    np.testing.assert_allclose(torch.cat(products, 1), np.concatenate([hops, hops @ np.full((4, 4), 2)], 1), rtol=1e-6)


@pytest.mark.parametrize("model", ["gamlp", "gcn"])
def test_without_a_second_phase_it_is_fedavg_to_the_last_bit(run: Start, model: str) -> None:
    keys = {"train.dropout": 0.5, "participation.ratio": 0.7, "engine.trainer": "autograd", "model.name": model}
    fedavg = run({**keys, "algorithm.name": "fedavg"})
    off = run({**keys, "algorithm.name": "adafgl", "algorithm.shared_rounds": 6, "algorithm.most_nodes": 1})
    assert torch.equal(off.state.server["w"], fedavg.state.server["w"])
    assert_same_scores(fedavg, off)


def test_half_of_the_rounds_are_shared_by_default(start: Start) -> None:
    server = start({"algorithm.name": "adafgl", "rounds": 5})
    moved, before = [], server.state.server["w"]
    for _ in range(5):
        server.round()
        moved.append(not torch.equal(server.state.server["w"], before))
        before = server.state.server["w"]
    assert moved == [True, True, True, False, False]


def test_cells_and_a_resume_change_no_bit(start: Start, run: Start) -> None:
    keys = {**KEYS, "participation.ratio": 0.7, "train.dropout": 0.5, "model.name": "gcn", "train.epochs": 1}
    whole = run(keys, rounds=4)
    resumed = start(keys, state=run(keys, rounds=3).state)
    resumed.round()
    for other in (resumed, run({**keys, "engine.cell_size": 3}, rounds=4)):
        assert_same_runs(whole, other, server=False)


@pytest.mark.parametrize("copies", [1, 12])
def test_sparse_features_change_nothing(
    start: Start, torch_clients: PlainClients, graphs: Mapping[str, Path], tmp_path: Path, copies: int
) -> None:
    """They are written out, as dense ones are, but where they are wide."""
    found, written = [], []
    for data in both_layouts(graphs["plain"], tmp_path, copies):
        server = start({**KEYS, **data})
        for _ in range(4):
            server.round()
        found.append(server.state.clients)
        view = torch_clients(server)[0].view
        known = knowledge(view, torch.ones(view.nodes, 3), 0.5, 3, 0.9)
        assert bool(known.hops_NG.numel()) != bool(known.mixed_NN.numel())
        written.append(bool(known.hops_NG.numel()))
    assert written == [True, copies == 1]
    for i in range(5):
        torch.testing.assert_close(found[1][i]["branches"], found[0][i]["branches"], rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize(
    ("nodes", "edges", "train"), [(1, [], [0]), (4, [], [0, 1, 2]), (5, [(0, 1)], [3]), (5, [(0, 1), (1, 2)], [0, 2])]
)
@pytest.mark.parametrize("cut", [0.0, 0.999])
def test_graphs_that_have_nearly_nothing(
    make_view: MakeView, make_client: MakeClient, cut: float, nodes: int, edges: list[tuple[int, int]], train: list[int]
) -> None:
    """One node, no edges, one training node; class 2 is nobody's."""
    torch.manual_seed(0)
    view = make_view(nodes, edges, [i % 2 for i in range(nodes)], train, 3)
    client = make_client(view, build("gcn", view.features, 3, 0, 0.3, {"hidden": 8}))
    method = AdaFGL(hidden=5, cut=cut)
    trainer = LocalTrainer({"model": client.model.flat}, TrainOptions(epochs=3), method)
    assert np.isfinite(method.train(client, Received(), trainer, "personal"))
    assert client.state["branches"].isfinite().all()
    scores = method.predict(client, Received(), "all")
    assert scores.shape == (nodes, 3)
    torch.testing.assert_close(scores.sum(1), torch.ones(nodes))
    assert torch.equal(method.predict(client, Received(), "test"), scores[view.test])


@pytest.fixture
def client(make_view: MakeView, make_client: MakeClient) -> Client:
    torch.manual_seed(0)
    view = make_view(4, [(0, 1), (1, 2)], [0, 1, 0, 1], [0, 1], 2)
    return make_client(view, build("gcn", 4, 2, 0, 0.3, {"hidden": 8}))


def test_what_was_predicted_is_forgotten_by_training(client: Client) -> None:
    method, received = AdaFGL(hidden=5), Received()
    trainer = LocalTrainer({"model": client.model.flat}, TrainOptions(), method)
    method.train(client, received, trainer, "personal")
    before = method.predict(client, received, "all")
    method.train(client, received, trainer, "personal")
    assert not torch.equal(method.predict(client, received, "all"), before)


def test_a_host_that_knows_another_models_answers_does_not_take_these(client: Client) -> None:
    """As hosts do that stay warm from one run to the next."""
    method = AdaFGL(hidden=5)
    first = method._known(client)
    assert method._known(client) is first
    client.model.load(client.model.w * 2)
    assert not torch.equal(method._known(client).p_NC, first.p_NC)
    torch.testing.assert_close(method._known(client).p_NC, client.model.logits().softmax(1))
