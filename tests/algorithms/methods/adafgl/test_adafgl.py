"""AdaFGL's parts by hand, what it is without its second phase, who comes late, and what it refuses."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from shoal.algorithms.client import Client
from shoal.algorithms.methods.adafgl.adafgl import AdaFGL, Received
from shoal.algorithms.methods.adafgl.branches import signed_messages
from shoal.algorithms.methods.adafgl.knowledge import homophily, knowledge, likeness, propagated
from shoal.algorithms.models.build import build
from shoal.algorithms.train_options import TrainOptions
from shoal.algorithms.training.local_training import LocalTrainer
from shoal.engine.rounds.server import Server
from shoal.storage.errors import ShoalError
from shoal.storage.store.view import View

Run = Callable[..., Server]
KEYS: dict[str, Any] = {"algorithm.name": "adafgl", "algorithm.shared_rounds": 2, "algorithm.hidden": 6}


def rng() -> torch.Generator:
    return torch.Generator().manual_seed(0)


def test_likeness_by_hand() -> None:
    p = torch.tensor([[1.0, 0.0], [0.6, 0.8], [0.0, 0.5]])
    expected = torch.tensor([[0, 0.6, 0], [0.6, 0, 0.8], [0, 0.8, 0]])
    torch.testing.assert_close(likeness(p), expected)
    assert likeness(p, 0.7).tolist() == [[0, 0, 0], [0, 0, 1], [0, 1, 0]]


@pytest.mark.parametrize(
    ("alike", "signs"),
    [
        # Of six entries the mean is 0.4; 0.9 is the most, 0.3 and 0 are less than the mean.
        ([[0, 0.9, 0.3], [0.9, 0, 0], [0.3, 0, 0]], [[1, 1, -0.25], [1, 1, -1], [-0.25, -1, 1]]),
        # Nobody is alike, or there is nobody else.
        ([[0, 0, 0], [0, 0, 0], [0, 0, 0]], [[1, 0, 0], [0, 1, 0], [0, 0, 1]]),
        ([[0]], [[1]]),
        # Two nodes are as alike as the mean pair: they hear nothing of each other.
        ([[0, 0.5], [0.5, 0]], [[1, 0], [0, 1]]),
    ],
)
def test_messages_by_hand(alike: list[list[float]], signs: list[list[float]]) -> None:
    y = torch.tensor([[1.0, 0.0], [0.0, 2.0], [3.0, -1.0]])[: len(alike)]
    r = torch.tensor(signs, dtype=torch.float32)
    expected = (y + (r.clamp_min(0) @ y).softmax(1) - ((-r).clamp_min(0) @ y).softmax(1)) / 2
    torch.testing.assert_close(signed_messages(y, torch.tensor(alike, dtype=torch.float32), 1.0), expected)


def test_messages_by_what_a_client_says_itself() -> None:
    """Cosines of softmax(y) are 1, c, c; with S they are mixed half and half, and the least alike pair counts -1."""
    y = torch.tensor([[1.0, 0.0], [1.0, 0.0], [0.0, 1.0]])
    q = y.softmax(1)
    c = float(2 * q[0, 0] * q[0, 1] / (q[0] ** 2).sum())
    alike = torch.tensor([[0, 0.2, 0.8], [0.2, 0, 0.1], [0.8, 0.1, 0]])
    mixed = {(0, 1): 0.6, (0, 2): (0.8 + c) / 2, (1, 2): (0.1 + c) / 2}
    mean, most = sum(mixed.values()) / 3, max(mixed.values())
    r = torch.eye(3)
    for (i, j), m in mixed.items():
        r[i, j] = r[j, i] = (m - mean) / (most - mean if m > mean else mean)
    expected = (y + (r.clamp_min(0) @ y).softmax(1) - ((-r).clamp_min(0) @ y).softmax(1)) / 2
    torch.testing.assert_close(signed_messages(y, alike, 0.5), expected)


@pytest.mark.parametrize("weight", [None, 3.0])
def test_knowledge_by_hand(make_view: Callable[..., View], weight: float | None) -> None:
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


def test_homophily_of_graphs_that_are_so_and_that_are_not(make_view: Callable[..., View]) -> None:
    inside = [(i, j) for i in range(8) for j in range(i) if (i < 4) == (j < 4)]
    across = [(i, j) for i in range(4) for j in range(4, 8)]
    label = [0] * 4 + [1] * 4
    alike = make_view(8, inside, label, list(range(8)), 2)
    for seed in range(3):
        order = torch.randperm(8, generator=torch.Generator().manual_seed(seed))
        both = len({label[i] for i in order[:4].tolist()}) == 2
        found = homophily(alike, torch.Generator().manual_seed(seed))
        assert found == 1 if both else found < 1
    assert homophily(make_view(8, across, label, list(range(8)), 2), rng()) == 0
    # Nobody is told anything: not even one of the nodes is right, whatever class comes first.
    assert homophily(make_view(8, [], label, list(range(8)), 2), rng()) == 0
    assert homophily(make_view(8, inside, label, [3], 2), rng()) == 0.5
    assert homophily(make_view(8, inside, label, [], 2), rng()) == 0.5


@pytest.mark.parametrize("model", ["gamlp", "gcn"])
def test_without_a_second_phase_it_is_fedavg_to_the_last_bit(run: Run, model: str) -> None:
    keys = {"train.dropout": 0.5, "participation.ratio": 0.7, "engine.trainer": "autograd", "model.name": model}
    fedavg = run({**keys, "algorithm.name": "fedavg"})
    off = run({**keys, "algorithm.name": "adafgl", "algorithm.shared_rounds": 6, "algorithm.most_nodes": 1})
    assert torch.equal(off.state.server["w"], fedavg.state.server["w"])
    for scope, by_client in fedavg.state.scores.items():
        for i, counts in by_client.items():
            np.testing.assert_array_equal(off.state.scores[scope][i], counts)


def test_half_of_the_rounds_are_shared_by_default(start: Run) -> None:
    server = start({"algorithm.name": "adafgl", "rounds": 5})
    moved, before = [], server.state.server["w"]
    for _ in range(5):
        server.round()
        moved.append(not torch.equal(server.state.server["w"], before))
        before = server.state.server["w"]
    assert moved == [True, True, True, False, False]


def test_cells_and_a_resume_change_no_bit(start: Run, run: Run) -> None:
    keys = {**KEYS, "participation.ratio": 0.7, "train.dropout": 0.5, "model.name": "gcn", "train.epochs": 1}
    whole = run(keys, rounds=4)
    resumed = start(keys, state=run(keys, rounds=3).state)
    resumed.round()
    for other in (resumed, run({**keys, "engine.cell_size": 3}, rounds=4)):
        assert whole.state.clients.keys() == other.state.clients.keys()
        for i, tree in whole.state.clients.items():
            assert tree.keys() == other.state.clients[i].keys()
            assert all(torch.equal(tensor, other.state.clients[i][name]) for name, tensor in tree.items())


@pytest.mark.parametrize("copies", [1, 12])
def test_sparse_features_change_nothing(
    start: Run,
    torch_clients: Callable[..., list[Any]],
    graphs: Mapping[str, Path],
    tmp_path: Path,
    copies: int,
) -> None:
    """They are written out, as dense ones are, but where they are wide."""
    arrays = {file.stem: np.load(file) for file in graphs["plain"].glob("*.npy")}
    arrays["x"] = np.tile(arrays["x"], copies) * (np.arange(arrays["x"].shape[1] * copies) % 3 + 1) / copies
    np.savez(tmp_path / "graph.npz", **arrays)
    found, written = [], []
    for layout in ("dense", "sparse"):
        data = {"data.path": str(tmp_path / "graph.npz"), "data.store": str(tmp_path / layout), "data.layout": layout}
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
    make_view: Callable[..., View],
    make_client: Callable[..., Client],
    cut: float,
    nodes: int,
    edges: list[tuple[int, int]],
    train: list[int],
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


def test_what_was_predicted_is_forgotten_by_training(
    make_view: Callable[..., View], make_client: Callable[..., Client]
) -> None:
    torch.manual_seed(0)
    view = make_view(4, [(0, 1), (1, 2)], [0, 1, 0, 1], [0, 1], 2)
    client, method = make_client(view, build("gcn", 4, 2, 0, 0.3, {"hidden": 8})), AdaFGL(hidden=5)
    trainer, received = LocalTrainer({"model": client.model.flat}, TrainOptions(), method), Received()
    method.train(client, received, trainer, "personal")
    before = method.predict(client, received, "all")
    method.train(client, received, trainer, "personal")
    assert not torch.equal(method.predict(client, received, "all"), before)


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        (
            {"algorithm.most_nodes": 29},
            r"algorithm\.most_nodes: client 0 has 30 nodes, .* of 29 nodes at most; .* several of 3,600 bytes .* each",
        ),
        ({"train.batch_size": 4}, r"train\.batch_size: AdaFGL's second phase takes all rows in one step"),
    ],
)
def test_what_it_cannot_have(start: Run, keys: dict[str, Any], message: str) -> None:
    with pytest.raises(ShoalError, match=f"^{message}") as caught:
        start({**KEYS, **keys})
    assert "\n" not in caught.value.line
    start({**KEYS, **keys, "algorithm.shared_rounds": 6})


@pytest.mark.parametrize(
    "wrong",
    [
        {"shared_rounds": 0},
        {"most_nodes": 0},
        {"steps": 0},
        {"hidden": 0},
        {"alpha": 1.1},
        {"beta": -1},
        {"cut": 1},
        {"preserve": -1},
    ],
)
def test_options_out_of_range_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=next(iter(wrong))):
        AdaFGL(**wrong)


def test_a_host_that_knows_another_models_answers_does_not_take_these(
    make_view: Callable[..., View], make_client: Callable[..., Client]
) -> None:
    """As hosts do that stay warm from one run to the next."""
    torch.manual_seed(0)
    view = make_view(4, [(0, 1), (1, 2)], [0, 1, 0, 1], [0, 1], 2)
    client, method = make_client(view, build("gcn", 4, 2, 0, 0.3, {"hidden": 8})), AdaFGL(hidden=5)
    first = method._known(client)
    assert method._known(client) is first
    client.model.load(client.model.w * 2)
    assert not torch.equal(method._known(client).p_NC, first.p_NC)
    torch.testing.assert_close(method._known(client).p_NC, client.model.logits().softmax(1))
