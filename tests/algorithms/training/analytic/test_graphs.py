"""Gradients of graph models by formula beside autograd's, and whole rounds on either path."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from support.sparse_rows import sparse
from torch import Tensor

from shoal.algorithms.base import Algorithm
from shoal.algorithms.client import Client, FlatModel
from shoal.algorithms.models.build import build
from shoal.algorithms.models.inputs.neighbourhood import Neighbourhood, all_nodes
from shoal.algorithms.protocol import MODEL
from shoal.algorithms.train_options import TrainOptions
from shoal.algorithms.training.analytic.choice import analytic, needed_for_analytic
from shoal.algorithms.training.analytic.graphs import GRAPHS
from shoal.algorithms.training.local_training import LocalTrainer
from shoal.storage.errors import ShoalError
from shoal.storage.store.view import View

FEATURES, CLASSES, NODES = 9, 4, 30
CONV_HEADS = ("gcn head", "sage head", "gat head", "gcn head head_dropout", "gcn head jumping")
MODELS = (*GRAPHS, "gcn jumping", "gcn head_dropout", "gcnii head_dropout", *CONV_HEADS)


@pytest.fixture
def view(make_view: Callable[..., View]) -> View:
    """Thirty nodes, of which the fifth has no neighbour, and eight are trained on."""
    rng = np.random.default_rng(3)
    edges = np.argwhere(np.triu(rng.random((NODES, NODES)) < 0.15, 1))
    edges = edges[(edges != 4).all(1)]
    x = rng.standard_normal((NODES, FEATURES)) * (rng.random((NODES, FEATURES)) < 0.4)
    train = [2, 4, 5, 11, 17, 20, 26, 29]
    return make_view(NODES, edges, [0, 1, 2] * 10, train, CLASSES, x.astype(np.float32))


def model_of(name: str, dropout: float, layers: int, by_column: bool = False) -> FlatModel:
    """`layers` hidden ones; a classifier that passes messages is one more."""
    backbone, *more = name.split()
    options: dict[str, Any] = {"hidden": 8, "layers": layers + ("head" in more)}
    for option in more:
        options[option] = {"jumping": "max", "head_dropout": False, "head": "conv"}[option]
    module = build(backbone, FEATURES, CLASSES, 0, dropout, options)
    model = FlatModel(module, sparse=by_column)
    model.initial(layers)
    # Biases start at zero.
    model.load(model.w.detach() + 0.1 * torch.randn(len(model.w), generator=torch.Generator().manual_seed(0)))
    return model


def inputs_of(model: FlatModel, view: View, as_sparse: bool) -> Neighbourhood:
    coupled = model.coupled
    assert coupled is not None
    around = all_nodes(view, coupled.operator, coupled.depth)._replace(rows=view.train)
    return around._replace(x_NF=sparse(view.x)) if as_sparse else around


def by_autograd(model: FlatModel, inputs: Neighbourhood, label: Tensor) -> tuple[Tensor, Tensor]:
    assert model.w.grad is not None
    model.w.grad.zero_()
    torch.manual_seed(5)
    loss = F.cross_entropy(model(inputs).logits_NC, label)
    loss.backward()
    return loss.detach(), model.w.grad.clone()


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("layers", [1, 2, 3])
@pytest.mark.parametrize("dropout", [0.0, 0.5])
@pytest.mark.parametrize("as_sparse", [False, True])
def test_gradients_are_those_of_autograd(name: str, layers: int, dropout: float, as_sparse: bool, view: View) -> None:
    model = model_of(name, dropout, layers, as_sparse)
    model.module.train()
    inputs = inputs_of(model, view, as_sparse)
    closed = analytic(model)
    assert model.w.grad is not None
    # The second step finds what the first one left in memory; then fewer rows are asked for.
    for rows in (view.train, view.train, view.train[:1]):
        label = view.label[rows]
        expected_loss, expected = by_autograd(model, inputs._replace(rows=rows), label)
        drawn = torch.rand(1)
        model.w.grad.fill_(torch.nan)
        torch.manual_seed(5)
        loss = closed.gradient(inputs._replace(rows=rows), label)
        assert torch.equal(torch.rand(1), drawn), "dropout draws as much as the model's own"
        torch.testing.assert_close(loss, expected_loss, rtol=1e-5, atol=1e-6)
        torch.testing.assert_close(model.w.grad, expected, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("name", MODELS)
def test_clients_of_other_sizes_share_memory(name: str, view: View, make_view: Callable[..., View]) -> None:
    alone = make_view(1, [], [1], [0], CLASSES, np.ones((1, FEATURES), dtype=np.float32))
    model = model_of(name, 0.0, 2)
    closed = analytic(model)
    assert model.w.grad is not None
    for data in (view, alone, view):
        inputs, label = inputs_of(model, data, False), data.train_label
        _, expected = by_autograd(model, inputs, label)
        closed.gradient(inputs, label)
        torch.testing.assert_close(model.w.grad, expected, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("batch_size", [None, 3])
def test_training_by_formula_is_training_by_autograd(
    name: str, batch_size: int | None, view: View, make_client: Callable[..., Client]
) -> None:
    found = []
    for by_formula in (False, True):
        options = TrainOptions(epochs=3, lr=0.02, weight_decay=0.01, batch_size=batch_size)
        client = make_client(view, model_of(name, 0.5, 2).module)
        flat = client.model.flat
        trainer = LocalTrainer({MODEL: flat}, options, Algorithm(), analytic(flat) if by_formula else None)
        loss = trainer.fit(client, {})
        found.append((torch.tensor(loss), flat.w.detach().clone(), client.model.logits()))
    for one, other in zip(*found):
        torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-5)


def test_of_equal_layers_the_first_has_the_gradient_of_the_maximum(make_view: Callable[..., View]) -> None:
    """Nodes alone and layers that pass on what they read: all outputs are the positive features."""
    x = np.random.default_rng(0).random((3, FEATURES), dtype=np.float32) + 0.1
    alone = make_view(3, [], [0, 1, 2], [0, 1, 2], CLASSES, x)
    model = FlatModel(build("gcn", FEATURES, CLASSES, 0, 0.0, {"hidden": FEATURES, "layers": 3, "jumping": "max"}))
    model.initial(0)
    convs: Any = model.module.convs
    for conv in convs:
        conv.lin.weight.data.copy_(torch.eye(FEATURES))
    inputs = inputs_of(model, alone, False)
    assert model.w.grad is not None
    _, expected = by_autograd(model, inputs, alone.train_label)
    analytic(model).gradient(inputs, alone.train_label)
    torch.testing.assert_close(model.w.grad, expected)
    assert convs[0].lin.weight.grad.any()
    assert not convs[1].lin.weight.grad.any()
    assert not convs[2].lin.weight.grad.any()


def test_a_loss_that_is_not_finite_is_refused(view: View, make_client: Callable[..., Client]) -> None:
    model = model_of("gcn", 0.0, 2)
    model.load(torch.full_like(model.w, torch.nan))
    client = make_client(view, model.module)
    flat = client.model.flat
    with pytest.raises(ShoalError, match="the training loss is NaN"):
        LocalTrainer({MODEL: flat}, TrainOptions(), Algorithm(), analytic(flat)).fit(client, {})


@pytest.mark.parametrize(
    ("name", "options", "why"),
    [
        ("gcn", {"fanouts": [2, 2]}, "the whole graph in every step"),
        ("gcn", {"jumping": "max", "layers": 4}, None),
        ("gat", {}, None),
        ("gcn", {"head": "conv"}, None),
        ("sage", {"head": "conv"}, None),
        ("gat", {"head": "conv"}, None),
        ("gin", {"head": "conv"}, "model.head: linear"),
        ("gcnii", {"head": "conv"}, "model.head: linear"),
        ("gin", {"head_dropout": False}, None),
        ("sgc", {"head_dropout": False, "layers": 2}, "dropout before the classifier"),
        ("mlp", {"head_dropout": True}, None),
    ],
)
def test_needed_for_analytic_names_what_is_missing(name: str, options: dict[str, Any], why: str | None) -> None:
    model = FlatModel(build(name, FEATURES, CLASSES, 0, 0.5, options))
    missing = needed_for_analytic(Algorithm(), model)
    assert missing is None if why is None else missing is not None and missing.startswith(why)
