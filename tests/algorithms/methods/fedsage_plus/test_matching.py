"""Hidden nodes, the nearest of them, and how far generated nodes are from these, by loops over nodes in NumPy."""

import numpy as np
import pytest
import torch
from support.fixtures import MakeView
from support.sparse_rows import sparse as as_sparse

from shoal.algorithms.methods.fedsage_plus import matching
from shoal.algorithms.methods.fedsage_plus.generator import GeneratedFeatures
from shoal.algorithms.methods.fedsage_plus.impaired import impaired
from shoal.algorithms.methods.fedsage_plus.matching import nearest_hidden, nearest_lost, others_loss, own_loss
from shoal.storage.store.view import View

NODES, FEATURES, MOST, WIDTH = 14, 3, 4, 2


@pytest.fixture
def view(make_view: MakeView) -> View:
    rng = np.random.default_rng(2)
    # The last two nodes have no edge.
    edges = [(i, j) for i in range(NODES - 2) for j in range(i) if rng.random() < 0.4]
    x = rng.standard_normal((NODES, FEATURES)).astype(np.float32)
    return make_view(NODES, edges, rng.integers(3, size=NODES).tolist(), [0, 3, 5, 8, 13], 3, x)


def dense(view: View) -> np.ndarray:
    return view.adjacency.to_dense().numpy() > 0


class Made:
    """Generated neighbours of some nodes, and their features `[M, F]` in double precision."""

    def __init__(self, count: np.ndarray, seed: int) -> None:
        rng = np.random.default_rng(seed)
        root, layer = rng.standard_normal((len(count), WIDTH)), rng.standard_normal((FEATURES, MOST, WIDTH))
        self.of = [(v, p) for v, many in enumerate(count) for p in range(many)]
        self.root, self.layer = root, layer
        self.x = np.array([layer[:, p] @ root[v] for v, p in self.of]).reshape(-1, FEATURES)
        self.received = torch.tensor(root, dtype=torch.float32), torch.tensor(layer, dtype=torch.float32)
        for part in self.received:
            part.requires_grad_()
        self.features = GeneratedFeatures(*self.received, torch.from_numpy(count))

    def assert_gradients(self, gradient: np.ndarray) -> None:
        """Those of roots and layers are as that of the features says."""
        of_root, of_layer = np.zeros_like(self.root), np.zeros_like(self.layer)
        for (v, p), of_x in zip(self.of, gradient):
            of_root[v] += of_x @ self.layer[:, p]
            of_layer[:, p] += np.outer(of_x, self.root[v])
        for part, expected in zip(self.received, (of_root, of_layer)):
            np.testing.assert_allclose(part.grad, expected, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("block", [matching.BLOCK, 5 * WIDTH, 1])
def test_the_clients_own_loss(view: View, monkeypatch: pytest.MonkeyPatch, block: int) -> None:
    """Values, and gradients, with any number of pairs at a time."""
    monkeypatch.setattr(matching, "BLOCK", block)
    a, x, matched = dense(view), view.x.double().numpy(), []
    for seed in range(4):
        shown = impaired(view, 0.5, seed)
        hidden = shown.hidden_H.tolist()
        rows = [v for v in range(NODES) if v not in hidden]
        count = np.random.default_rng(seed).integers(0, MOST, size=len(rows))
        made = Made(count, seed)
        new = made.x
        gradient, total, number = np.zeros_like(new), 0.0, 0
        for v, many in zip(rows, count):
            mine = [u for u in hidden if a[v, u]]
            for _ in range(many):
                matched.append(bool(mine))
                if mine:
                    apart = [np.mean((new[number] - x[u]) ** 2) for u in mine]
                    total += min(apart) / len(rows)
                    nearest = x[mine[int(np.argmin(apart))]]
                    gradient[number] = 2 * (new[number] - nearest) / FEATURES / len(rows)
                number += 1
        loss = own_loss(made.features, shown)
        loss.backward()
        assert float(loss.detach()) == pytest.approx(total, rel=1e-5)
        made.assert_gradients(gradient)
    assert 0 < sum(matched) < len(matched)


@pytest.mark.parametrize("block", [matching.BLOCK, 1])
def test_of_two_equally_near_the_first_counts(make_view: MakeView, monkeypatch: pytest.MonkeyPatch, block: int) -> None:
    monkeypatch.setattr(matching, "BLOCK", block)
    x = np.array([[0.0], [1.0], [-1.0], [1.0], [5.0]], dtype=np.float32)
    view = make_view(5, [(4, 1), (4, 2), (4, 3), (0, 3)], [0] * 5, [4], 1, x)
    seed = next(s for s in range(2000) if impaired(view, 0.79, s).hidden_H.tolist() == [1, 2, 3])
    shown = impaired(view, 0.79, seed)
    # The nodes that are shown are 0 and 4; of equally near ones 3 is never the first of node 4's.
    new = GeneratedFeatures(torch.ones(2, 1), torch.tensor([[[0.2], [0.0], [-0.1]]]), torch.tensor([1, 3]))
    found, hidden = nearest_lost(new, new.seen(shown.x_HF), shown)
    assert (found.tolist(), shown.hidden_H[hidden].tolist()) == ([0, 1, 2, 3], [3, 1, 1, 2])
    of_all = nearest_hidden(new, new.seen(shown.x_HF), shown)
    assert shown.hidden_H[of_all].tolist() == [1, 1, 1, 2]


@pytest.mark.parametrize("block", [matching.BLOCK, 2 * 9, 1])
@pytest.mark.parametrize("sparse", [True, False])
def test_the_loss_by_the_nodes_of_others(view: View, monkeypatch: pytest.MonkeyPatch, block: int, sparse: bool) -> None:
    monkeypatch.setattr(matching, "BLOCK", block)
    shown = impaired(view, 0.4, 0)
    if sparse:
        shown = shown._replace(x_HF=as_sparse(shown.x_HF))
    made, rows, x = Made(np.array([3, 0, 2, 4]), 0), shown.hidden_H.tolist(), view.x.double().numpy()
    gradient, total, nearest = np.zeros_like(made.x), 0.0, []
    for number, one in enumerate(made.x):
        apart = [np.mean((one - x[u]) ** 2) for u in rows]
        nearest.append(int(np.argmin(apart)))
        total += min(apart) / 4
        gradient[number] = 2 * (one - x[rows[nearest[-1]]]) / FEATURES / 4
    assert len(set(nearest)) > 2
    assert nearest_hidden(made.features, made.features.seen(shown.x_HF), shown).tolist() == nearest
    loss = others_loss(made.features, 4, shown)
    loss.backward()
    assert float(loss.detach()) == pytest.approx(total, rel=1e-5)
    made.assert_gradients(gradient)
