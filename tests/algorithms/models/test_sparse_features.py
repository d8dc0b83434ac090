"""Every backbone on sparse features against the same backbone on the dense rows of the same numbers."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from support.coupled_models import edge_features
from support.sparse_rows import sparse

from shoal.algorithms.client import FlatModel
from shoal.algorithms.models.build import build
from shoal.algorithms.models.decoupled.gamlp import ATTENTIONS
from shoal.algorithms.models.inputs.neighbourhood import all_nodes, sample_neighbourhood
from shoal.algorithms.models.names import BACKBONES
from shoal.storage.graph.sparse_matrix import Features, SparseMatrix
from shoal.storage.shards.view import View

FEATURES, CLASSES, NODES = 40, 4, 30
COUPLED = ("gat", "gcn", "gcnii", "gin", "sage", "transformer", "disengcn")
DECOUPLED: list[tuple[str, dict[str, Any]]] = [
    ("sgc", {}),
    ("sgc", {"layers": 2, "hidden": 8}),
    ("mlp", {"layers": 3, "hidden": 8}),
    *(("gamlp", {"attention": attention, "hidden": 8}) for attention in ATTENTIONS),
    ("gamlp", {"layers": 1}),
    ("s2gc", {}),
    ("s2gc", {"layers": 2, "hidden": 8}),
    ("gbp", {"layers": 3, "hidden": 8}),
    ("gbp", {"layers": 1}),
    ("sign", {"hidden": 8}),
    ("sign", {"layers": 2, "hidden": 8}),
]
ALL_HOPS = ("gamlp", "gbp", "s2gc", "sign")


@pytest.fixture
def view(make_view: Callable[..., View]) -> View:
    rng = np.random.default_rng(3)
    edges = np.argwhere(np.triu(rng.random((NODES, NODES)) < 0.15, 1))
    edges = edges[(edges != 4).all(1)]
    x = rng.standard_normal((NODES, FEATURES)) * (rng.random((NODES, FEATURES)) < 0.1)
    x[7] = 0
    return make_view(NODES, edges, [0, 1, 2] * 10, [4, 0, 9, 22], CLASSES, x.astype(np.float32))


def both(name: str, options: dict[str, Any], hops: int) -> tuple[FlatModel, FlatModel]:
    """The same model with its first weights by row and by column."""
    of_edges = edge_features(name)
    modules = [build(name, FEATURES, CLASSES, hops, 0.5, options, edge_features=of_edges) for _ in range(2)]
    dense, by_column = FlatModel(modules[0]), FlatModel(modules[1], sparse=True)
    dense.initial(5)
    by_column.initial(5)
    return dense, by_column


def compare(models: tuple[FlatModel, FlatModel], inputs: tuple[Any, Any]) -> None:
    """Outputs and all gradients, dropout drawing the same."""
    found = []
    for model, x in zip(models, inputs):
        model.module.train()
        torch.manual_seed(1)
        out = model(x)
        assert model.w.grad is not None
        model.w.grad.zero_()
        label = torch.arange(len(out.logits_NC)) % CLASSES
        (F.cross_entropy(out.logits_NC, label) + out.embedding_NH.square().mean()).backward()
        gradients = [p.grad for p in model.module.parameters()]
        assert all(gradient is not None and gradient.any() for gradient in gradients)
        found.append([out.logits_NC, out.embedding_NH, *gradients])
    for one, other in zip(*found):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("name", COUPLED)
@pytest.mark.parametrize("fanouts", [None, [2, 3]])
def test_layers_of_message_passing(name: str, fanouts: list[int] | None, view: View) -> None:
    models = both(name, {"layers": 2, "hidden": 8}, 0)
    operator = models[0].coupled.operator
    around = all_nodes(view, operator, 2)._replace(rows=view.train)
    if fanouts is not None:
        around = sample_neighbourhood(view, operator, fanouts, view.train, np.random.default_rng(0))
    compare(models, (around, around._replace(x_NF=sparse(around.x_NF))))


@pytest.mark.parametrize(("name", "options"), DECOUPLED)
@pytest.mark.parametrize("which", ["all", "first", "last"])
def test_rows_of_hops(name: str, options: dict[str, Any], which: str) -> None:
    hops = 2 if name in ALL_HOPS else 0
    models = both(name, options, hops)
    torch.manual_seed(0)
    dense = [torch.randn(9, FEATURES) * (torch.rand(9, FEATURES) < 0.2) for _ in range(hops + 1)]
    mixed: list[Features] = list(dense)
    for k in {"all": range(hops + 1), "first": [0], "last": [hops]}[which]:
        mixed[k] = sparse(dense[k])
    compare(models, (dense, mixed))


def test_float16_values_are_multiplied_in_float32(view: View) -> None:
    x = sparse(view.x)
    indptr, indices, values = x.parts()
    half = SparseMatrix.of(indptr, indices, values.half(), FEATURES)
    for name, options in DECOUPLED:
        (_, model) = both(name, options, 0)
        model.module.eval()
        torch.testing.assert_close(model([half]).logits_NC, model([half.float().to_dense()]).logits_NC)


@pytest.mark.parametrize("name", sorted(BACKBONES))
def test_sparse_flat_model_stores_only_first_weights_by_column(name: str) -> None:
    dense, by_column = both(name, {}, 0)
    assert not torch.equal(dense.w, by_column.w)
    turned = [tuple(p.shape) for p in by_column.module.parameters() if not p.is_contiguous()]
    expected = {"sage": 2, "transformer": 4, "rgcn": 1 + edge_features("rgcn")}.get(name, 1)
    assert [shape[1] for shape in turned] == [FEATURES] * expected
    for (parameter, one), other in zip(dense.module.named_parameters(), by_column.module.parameters()):
        assert torch.equal(one, other), parameter


def test_sparse_flat_model_copy_and_load_keep_column_order() -> None:
    _, model = both("gcn", {}, 0)
    twin = model.on(torch.device("cpu"))
    assert torch.equal(twin.w, model.w)
    w = torch.randn(len(model.w))
    twin.load(w)
    for part, p in zip(model.parts(w), twin.module.parameters()):
        assert torch.equal(part, p)
    first = twin.module.convs[0].lin.weight  # type: ignore[union-attr, index]
    assert first.t().is_contiguous()
    # A product with sparse rows reads rows of its transpose, each from one cache line to the next.
    assert first.data_ptr() % 64 == 0
    assert first.grad.data_ptr() % 64 == 0


def test_penalty_on_w_adds_to_gradient_of_weight_by_column() -> None:
    _, model = both("mlp", {"hidden": 8}, 0)
    x = sparse(torch.eye(FEATURES)[:6])
    assert model.w.grad is not None
    model.w.grad.zero_()
    model.module.eval()
    (F.cross_entropy(model([x]).logits_NC, torch.zeros(6, dtype=torch.int64)) + model.w.square().sum()).backward()
    both_terms = [p.grad.clone() for p in model.module.parameters() if p.grad is not None]
    model.w.grad.zero_()
    F.cross_entropy(model([x]).logits_NC, torch.zeros(6, dtype=torch.int64)).backward()
    for p, gradient in zip(model.module.parameters(), both_terms, strict=True):
        assert p.grad is not None
        torch.testing.assert_close(gradient, p.grad + 2 * p.detach())
