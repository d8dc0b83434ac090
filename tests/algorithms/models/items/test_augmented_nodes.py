"""Graphs with new neighbours: edges by hand, features by dense products, models by the same graph written out."""

from itertools import pairwise

import numpy as np
import pytest
import torch
from support.fixtures import MakeClient, MakeView
from support.sparse_rows import sparse as as_sparse

from shoal.algorithms.models.build import build
from shoal.algorithms.models.inputs.neighbourhood import operator_over
from shoal.algorithms.models.items.augmented_nodes import AugmentedFeatures, AugmentedNodes, with_new_neighbours

COUPLED = ("gcn", "sage", "gat", "gin", "gcnii", "transformer", "disengcn")
EDGES = [(0, 1), (0, 3), (1, 2), (2, 3), (3, 4)]
COUNTS = [2, 0, 1, 0, 3, 1]


def test_edges_of_any_graph() -> None:
    rng = np.random.default_rng(0)
    for _ in range(20):
        n = int(rng.integers(1, 9))
        a = np.triu(rng.random((n, n)) < 0.4, 1)
        a = a | a.T
        counts = rng.integers(0, 4, size=n)
        indptr = np.concatenate([[0], np.cumsum(a.sum(1))]).astype(np.int32)
        starts, columns = with_new_neighbours(indptr, np.nonzero(a)[1].astype(np.int32), counts)
        size = n + counts.sum()
        expected = np.zeros((size, size), dtype=bool)
        expected[:n, :n] = a
        for new, owner in enumerate(v for v in range(n) for _ in range(counts[v])):
            expected[owner, n + new] = expected[n + new, owner] = True
        found = [sorted(set(columns[x:y].tolist())) for x, y in pairwise(starts)]
        assert found == [np.flatnonzero(row).tolist() for row in expected]
        assert all((np.diff(columns[x:y]) > 0).all() for x, y in pairwise(starts))


@pytest.mark.parametrize("sparse", [False, True])
def test_products_and_their_gradients(sparse: bool) -> None:
    torch.manual_seed(0)
    x = torch.randn(4, 3).clamp_min(0)
    new, weight = torch.randn(2, 3, requires_grad=True), torch.randn(3, 5, requires_grad=True)
    features = AugmentedFeatures(as_sparse(x) if sparse else x, new)
    assert (len(features), features.shape) == (6, (6, 3))
    assert torch.equal(features.to_dense(), torch.cat([x, new]))
    assert features.float() is features
    of = torch.randn(6, 5)
    found = torch.autograd.grad((features @ weight * of).sum(), (new, weight))
    expected = torch.autograd.grad((torch.cat([x, new]) @ weight * of).sum(), (new, weight))
    torch.testing.assert_close(features @ weight, torch.cat([x, new]) @ weight)
    for one, other in zip(found, expected):
        torch.testing.assert_close(one, other)


@pytest.mark.parametrize("name", COUPLED)
@pytest.mark.parametrize("head", ["linear", "conv"])
def test_answers_as_in_the_written_graph(make_view: MakeView, make_client: MakeClient, name: str, head: str) -> None:
    """All nodes, parts, some rows; what the client has of new nodes is no answer."""
    torch.manual_seed(0)
    owners = np.repeat(np.arange(6), COUNTS)
    x = np.random.default_rng(0).standard_normal((6 + len(owners), 3)).astype(np.float32)
    label = [0, 1, 0, 1, 0, 1]
    view = make_view(6, EDGES, label, [0, 2], 2, x[:6])
    written = [*EDGES, *((int(owner), 6 + new) for new, owner in enumerate(owners))]
    whole = make_view(len(x), written, [*label, *[0] * len(owners)], [0, 2], 2, x)
    options = {"hidden": 8} if name in ("transformer", "disengcn") else {"hidden": 8, "head": head}
    client = make_client(view, build(name, 3, 2, 0, 0.0, options))
    other = make_client(whole, build(name, 3, 2, 0, 0.0, options))
    other.model.load(client.model.w)
    plain = client.model.logits()
    coupled = client.model.coupled
    assert coupled is not None
    operator = operator_over(coupled.operator, *with_new_neighbours(*view.csr, np.array(COUNTS)))
    new = torch.from_numpy(x[6:])
    client.model.answer_in(AugmentedNodes(view, AugmentedFeatures(view.whole(0), new), operator, coupled))
    expected = other.model.logits()[:6]
    assert client.model.logits().shape == (6, 2)
    torch.testing.assert_close(client.model.logits(), expected)
    assert not torch.allclose(client.model.logits(), plain, atol=1e-3)
    client.model.drop_logits()
    torch.testing.assert_close(client.model.logits_of("test"), expected[[1, 3, 4, 5]])
    client.model.module.eval()
    rows = torch.tensor([5, 0])
    torch.testing.assert_close(client.model.forward(rows)().logits_NC, expected[rows])
    torch.testing.assert_close(client.model(client.model.gathered("train")).logits_NC, expected[[0, 2]])
    torch.testing.assert_close(client.model(client.model.gathered("all")).logits_NC, expected)
    of_themselves = client.model(client.model.standalone(new)).logits_NC
    torch.testing.assert_close(
        of_themselves, make_client(view, client.model.module).model(other.model.standalone(new))[0]
    )
