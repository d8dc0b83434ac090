"""GraphCL against plain torch on dense matrices, step by step, and on graphs that can be told apart."""

from itertools import chain

import networkx as nx
import numpy as np
import pytest
import torch
from pydantic import ValidationError
from support.drawn_graphs import dense_of
from support.errors import refused
from support.fixtures import MakeView
from support.sparse_rows import sparse
from torch import Tensor, nn

from shoal.algorithms.graphs.graph_augmentation import SmallGraphs, with_other_edges, without_nodes
from shoal.algorithms.models.build import build
from shoal.algorithms.models.layers.readout import Readout
from shoal.algorithms.training.graph_contrast import ContrastOptions, GraphContrast
from shoal.storage.shards.view import View

FEATURES, HIDDEN = 4, 8


def seed_of(purpose: str, number: int) -> int:
    return {"initial": 100, "epoch": 200}[purpose] + number


def model_of(name: str = "gcn") -> Readout:
    return Readout(build(name, FEATURES, 3, 0, 0.0, {"hidden": HIDDEN}), "mean", 0.0)


@pytest.fixture
def graphs() -> SmallGraphs:
    """Rings and stars in turn."""
    each = [nx.cycle_graph(5 + i % 3) if i % 2 else nx.star_graph(5 + i % 4) for i in range(11)]
    dense = nx.to_numpy_array(nx.disjoint_union_all(each))
    starts = np.concatenate([[0], np.cumsum(dense.sum(1).astype(int))])
    first = np.concatenate([[0], np.cumsum([len(graph) for graph in each])])
    return SmallGraphs(first, starts, np.nonzero(dense)[1], np.arange(len(dense)))


@pytest.fixture
def data(graphs: SmallGraphs, make_view: MakeView) -> View:
    nodes = len(graphs.row)
    x = np.random.default_rng(1).standard_normal((nodes, FEATURES)).astype(np.float32)
    x[:, 0] = np.diff(graphs.indptr)
    return make_view(nodes, [], [0] * nodes, [0], 3, x)


def embedded(convs: nn.ModuleList, projection: nn.Sequential, graphs: SmallGraphs, x: Tensor) -> Tensor:
    """Two layers of GCN, the mean of a graph's nodes, and the projection, by dense algebra."""
    looped = torch.from_numpy(dense_of(graphs)).float() + torch.eye(len(graphs.row))
    root = looped.sum(1).rsqrt()
    operator = root[:, None] * looped * root
    one, two = convs
    h = x[graphs.row.tolist()]
    h = torch.relu(operator @ (h @ one.lin.weight.T) + one.bias)  # type: ignore[union-attr]
    h = operator @ (h @ two.lin.weight.T) + two.bias  # type: ignore[union-attr]
    pooled = torch.stack([h[a:b].mean(0) for a, b in zip(graphs.first[:-1], graphs.first[1:], strict=True)])
    first, _, second = projection
    return second(torch.relu(first(pooled)))


def contrast(a: Tensor, b: Tensor, tau: float) -> Tensor:
    score = torch.stack([nn.functional.cosine_similarity(row[None], b) for row in a]).div(tau).exp()
    return -(score.diagonal() / (score.sum(1) - score.diagonal())).log().mean()


def test_training_step_by_step(graphs: SmallGraphs, data: View) -> None:
    options = ContrastOptions(epochs=2, batch=4, lr=0.01, temperature=0.3, drop_nodes=0.3, perturb_edges=0.4)
    model = model_of()
    training = GraphContrast(model, data, graphs, options, seed_of)
    assert training.steps == 3
    twin = model_of()
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(100)
        twin.reset_parameters()
        projection = nn.Sequential(nn.Linear(HIDDEN, HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, HIDDEN))
    convs = twin.backbone.convs
    adam = torch.optim.Adam(chain(convs.parameters(), projection.parameters()), lr=0.01)
    head = twin.backbone.head.linears[0].weight.detach().clone()
    for epoch in (1, 2):
        rng = np.random.default_rng(200 + epoch)
        order, expected = rng.permutation(11), []
        for chosen in (order[:4], order[4:8], order[8:]):
            some = graphs.some(chosen)
            views = without_nodes(some, 0.3, rng), with_other_edges(some, 0.4, rng)
            a, b = (embedded(convs, projection, view, data.x) for view in views)  # type: ignore[arg-type]
            loss = contrast(a, b, 0.3)
            adam.zero_grad()
            loss.backward()
            adam.step()
            expected.append(float(loss.detach()))
        assert list(training.epoch(epoch)) == pytest.approx(expected, rel=1e-4)
    for found, wanted in zip(model.backbone.convs.parameters(), convs.parameters(), strict=True):
        torch.testing.assert_close(found, wanted, rtol=1e-3, atol=1e-5)
    assert torch.equal(model.backbone.head.linears[0].weight, head)


def test_sparse_features_give_what_dense_ones_give(graphs: SmallGraphs, data: View, make_view: MakeView) -> None:
    few = torch.where(data.x.abs() > 0.5, data.x, 0)  # type: ignore[union-attr]
    losses = []
    for x in (few, sparse(few)):
        view = make_view(len(few), [], [0] * len(few), [0], 3, few.numpy())
        view._hops[0] = x
        losses.append(list(GraphContrast(model_of(), view, graphs, ContrastOptions(), seed_of).epoch(1)))
    assert losses[0] == pytest.approx(losses[1], rel=1e-5)


def test_no_step_has_a_single_graph(graphs: SmallGraphs, data: View) -> None:
    for batch, steps in ((2, 5), (3, 4), (10, 2), (11, 1), (16, 1)):
        training = GraphContrast(model_of(), data, graphs, ContrastOptions(batch=batch), seed_of)
        assert training.steps == steps
        assert len(list(training.epoch(1))) == steps


def test_graph_contrast_of_one_graph_raises(graphs: SmallGraphs, data: View) -> None:
    assert GraphContrast(model_of(), data, graphs.some(np.array([3, 5])), ContrastOptions(), seed_of).steps == 1
    with refused(says="needs two, found 1"):
        GraphContrast(model_of(), data, graphs.some(np.array([3])), ContrastOptions(), seed_of)


def test_graph_contrast_loss_not_finite_raises(graphs: SmallGraphs, data: View) -> None:
    training = GraphContrast(model_of(), data, graphs, ContrastOptions(lr=1e20, batch=2), seed_of)
    with refused(says="the loss of epoch 1 is nan"):
        list(training.epoch(1))


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("epochs", 0), ("batch", 1), ("lr", 0.0), ("lr", 1e38), ("lr", float("nan")), ("temperature", 0.0),
        ("drop_nodes", 1.0), ("drop_nodes", -0.1), ("perturb_edges", 1.0), ("perturb_edges", -0.1),
    ],
)  # fmt: skip
def test_options_out_of_their_bounds(name: str, value: float) -> None:
    with pytest.raises(ValidationError, match=name):
        ContrastOptions(**{name: value})
