"""Coupled backbones with weights of edges beside PyG, without edges, and their attention by its definition."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from support.coupled_models import CLASSES, FEATURES, HIDDEN, NAMES, edge_features, every_backbone, make
from support.fixtures import MakeView
from support.reset_models import assert_reset_as_fresh
from torch import nn
from torch_geometric.nn import GCN2Conv, GCNConv

from shoal.algorithms.models.build import build
from shoal.algorithms.models.inputs.neighbourhood import Neighbourhood, all_nodes, sample_neighbourhood
from shoal.algorithms.models.layers.edge_attention import attend, by_torch
from shoal.storage.graph.sparse_matrix import SparseMatrix
from shoal.storage.shards.view import View


def around(model: nn.Module, view: View) -> Neighbourhood:
    return all_nodes(view, model.operator, len(model.convs))


@every_backbone
@pytest.mark.parametrize("nodes", [1, 3])
def test_a_client_without_edges_trains(name: str, nodes: int, make_view: MakeView) -> None:
    x = np.random.default_rng(1).standard_normal((nodes, FEATURES)).astype(np.float32)
    alone = make_view(nodes, [], [0] * nodes, [0], CLASSES, x)
    model = make(name)
    for inputs in (
        around(model, alone),
        sample_neighbourhood(alone, model.operator, [2, 2], alone.train, np.random.default_rng(0)),
    ):
        out = model(inputs)
        out.logits_NC.sum().backward()
        assert out.logits_NC.isfinite().all()
        assert all(p.grad is not None and p.grad.isfinite().all() for p in model.parameters())


def weighed(weights: np.ndarray | None, make_view: MakeView) -> View:
    edges = [*((i, (i + 1) % 8) for i in range(8)), (0, 3), (0, 5), (2, 6), (8, 9)]
    x = np.random.default_rng(0).standard_normal((12, FEATURES)).astype(np.float32)
    return make_view(12, edges, [0, 1, 2, 3] * 3, [7, 2, 10], CLASSES, x, weights)


@pytest.mark.parametrize("name", ["gcn", "gcnii"])
def test_weights_of_edges_as_pyg_has_them(name: str, make_view: MakeView) -> None:
    upper = np.triu(np.random.default_rng(1).uniform(0.1, 4, (12, 12)), 1).astype(np.float32)
    view = weighed(upper + upper.T, make_view)
    model = make(name, layers=2).eval()
    source, target = np.repeat(np.arange(12), np.diff(view.csr[0])), view.csr[1]
    edges = (
        torch.from_numpy(np.stack([target, source]).astype(np.int64)),
        torch.from_numpy((upper + upper.T)[source, target]),
    )
    layers = {
        "gcn": lambda: [GCNConv(FEATURES, HIDDEN), GCNConv(HIDDEN, HIDDEN)],
        "gcnii": lambda: [GCN2Conv(HIDDEN, 0.1, 0.5, 1), GCN2Conv(HIDDEN, 0.1, 0.5, 2)],
    }
    twins = nn.ModuleList(layers[name]())
    twins.load_state_dict(model.convs.state_dict())
    if name == "gcn":
        expected = twins[1](F.relu(twins[0](view.x, *edges)), *edges)
    else:
        initial = F.relu(model.lift(view.x)).detach()
        expected = F.relu(twins[1](F.relu(twins[0](initial, initial, *edges)), initial, *edges))
    found = model(around(model, view)).embedding_NH
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-6)
    # Gradients go back over the same entries.
    for embedding in (found, expected):
        embedding.square().sum().backward()
    for conv, twin in zip(model.convs, twins):
        for own, theirs in zip(conv.parameters(), twin.parameters(), strict=True):
            torch.testing.assert_close(own.grad, theirs.grad, rtol=1e-4, atol=1e-5)
    unweighted, ones = (
        model(around(model, weighed(weights, make_view))).embedding_NH
        for weights in (None, np.ones((12, 12), np.float32))
    )
    assert not torch.allclose(found, unweighted, atol=1e-2)
    assert torch.equal(ones, unweighted)


def test_matrices_of_other_operators_have_no_weights(make_view: MakeView) -> None:
    view = weighed(np.full((12, 12), 2, np.float32), make_view)
    for operator in ("mean", "attention"):
        with pytest.raises(AssertionError, match=operator):
            all_nodes(view, operator, 1)
    assert (all_nodes(view, "sum", 1).operators[0].to_dense().unique() == torch.tensor([0.0, 2.0])).all()


def test_making_a_coupled_model_draws_what_its_reset_draws() -> None:
    """PyG's layers draw when they are made, some twice; of that nothing is seen in the stream."""
    for name in NAMES:
        torch.manual_seed(3)
        model = build(name, FEATURES, CLASSES, 0, 0.0, {}, edge_features=edge_features(name))
        after = torch.rand(2)
        torch.manual_seed(3)
        model.reset_parameters()
        assert torch.equal(torch.rand(2), after)


@every_backbone
def test_reset_equals_a_fresh_model_of_the_same_seed(name: str) -> None:
    assert_reset_as_fresh(make(name, seed=7), make(name, seed=8), 7)


@every_backbone
def test_everything_a_model_learns_is_a_parameter(name: str) -> None:
    assert not list(make(name).buffers())


# Node 2 hears itself alone.
HEARS = [[0, 1, 4], [1, 3], [2], [0, 1, 2, 3, 4, 5]]


@pytest.fixture
def pattern() -> SparseMatrix:
    indptr = np.cumsum([0, *map(len, HEARS)]).astype(np.int32)
    indices = np.concatenate(HEARS).astype(np.int32)
    return SparseMatrix.of(indptr, indices, np.ones(len(indices), np.float32), 6)


def parts(heads: int, width: int, scale: float = 1.0) -> list[torch.Tensor]:
    torch.manual_seed(0)
    shapes = (len(HEARS), heads), (6, heads), (6, heads, width)
    return [(scale * torch.randn(shape)).requires_grad_() for shape in shapes]


def by_definition(receiver: torch.Tensor, sender: torch.Tensor, x: torch.Tensor, slope: float) -> torch.Tensor:
    rows = []
    for i, nodes in enumerate(HEARS):
        weight = F.leaky_relu(receiver[i] + sender[nodes], slope).softmax(0)
        rows.append((weight[:, :, None] * x[nodes]).sum(0))
    return torch.stack(rows)


@pytest.mark.parametrize(("heads", "width"), [(1, 5), (3, 4)])
@pytest.mark.parametrize("slope", [0.2, 0.0])
@pytest.mark.parametrize("attention", [attend, by_torch])
def test_sums_and_gradients(pattern: SparseMatrix, heads: int, width: int, slope: float, attention: object) -> None:
    assert callable(attention)
    expected, found = parts(heads, width), parts(heads, width)
    direction = torch.randn(len(HEARS), heads, width)
    wanted = by_definition(*expected, slope)
    (wanted * direction).sum().backward()
    out = attention(pattern, *found, slope)
    (out * direction).sum().backward()
    torch.testing.assert_close(out, wanted)
    for one, other in zip(found, expected):
        torch.testing.assert_close(one.grad, other.grad)


def test_large_scores_do_not_overflow(pattern: SparseMatrix) -> None:
    receiver, sender, x = parts(2, 3, scale=200)
    out = attend(pattern, receiver, sender, x, 0.2)
    assert bool(out.isfinite().all())
    torch.testing.assert_close(out, by_definition(receiver, sender, x, 0.2))
