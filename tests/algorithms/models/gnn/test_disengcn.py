"""DisenGCN against loops over nodes and factors, its gradients included."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from support.errors import refused
from support.fixtures import MakeView
from support.made_models import make_moved
from support.plain_dropout import dropped
from support.plain_routing import route
from support.reset_models import assert_reset_as_fresh

from shoal.algorithms.models.build import build
from shoal.algorithms.models.inputs.neighbourhood import all_nodes, matrix_of_all, receptive_field
from shoal.algorithms.models.layers.routing import by_torch, divide_neighbours

NODES, FEATURES, CLASSES = 9, 5, 3
# A hub, a triangle, a path, and a node without an edge.
EDGES = [(0, 1), (0, 2), (0, 3), (0, 4), (1, 2), (5, 6), (6, 7)]


@pytest.mark.parametrize("options", [{}, {"layers": 1, "factors": 4, "routing": 1}, {"layers": 3, "factors": 1}])
@pytest.mark.parametrize("training", [False, True])
def test_equals_loops_over_nodes(make_view: MakeView, options: dict[str, int], training: bool) -> None:
    x = np.random.default_rng(2).standard_normal((NODES, FEATURES)).astype(np.float32)
    view = make_view(NODES, EDGES, [0] * NODES, [8, 0, 6], CLASSES, x)
    model = make_moved("disengcn", FEATURES, CLASSES, 0, 0.3, {"hidden": 8, **options}, seed=4).train(training)
    chosen = {"layers": 2, "factors": 2, "routing": 6, **options}
    torch.manual_seed(3)
    out = model(all_nodes(view, model.operator, model.depth))
    torch.manual_seed(3)
    a = view.adjacency.to_dense()
    rows = F.leaky_relu(F.linear(view.whole(0), model.lift.weight, model.lift.bias))
    for _ in range(chosen["layers"]):
        rows = dropped(rows, 0.3, training)
        rows = F.leaky_relu(route(a, rows, chosen["factors"], chosen["routing"])).float()
    logits = model.head.linears[0](dropped(rows, 0.3, training))
    torch.testing.assert_close(out.embedding_NH, rows, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(out.logits_NC, logits, rtol=1e-4, atol=1e-5)
    found, expected = (torch.autograd.grad(t.square().sum(), model.parameters()) for t in (out.logits_NC, logits))
    for one, other in zip(found, expected):
        torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-4)
    if not training:
        part = model(receptive_field(view, model.operator, model.depth))
        torch.testing.assert_close(part.logits_NC, out.logits_NC[[8, 0, 6]], rtol=1e-4, atol=1e-5)


def test_the_kernel_is_what_torch_computes_by_edges(make_view: MakeView) -> None:
    view = make_view(NODES, EDGES, [0] * NODES, [0], CLASSES)
    pattern = matrix_of_all(view, "sum")
    torch.manual_seed(1)
    parts = [torch.randn(NODES, 3, 4, requires_grad=True) for _ in range(2)]
    outputs = [function(pattern, *parts) for function in (divide_neighbours, by_torch)]
    torch.testing.assert_close(*outputs)
    weights = torch.randn(NODES, 3, 4)
    for one, other in zip(*(torch.autograd.grad((weights * out).sum(), parts) for out in outputs)):
        torch.testing.assert_close(one, other)


def test_a_part_of_zeros_has_no_gradient(make_view: MakeView) -> None:
    view = make_view(NODES, EDGES, [0] * NODES, [0], CLASSES, np.zeros((NODES, FEATURES), np.float32))
    model = build("disengcn", FEATURES, CLASSES, 0, 0.0, {"hidden": 8})
    for p in model.parameters():
        torch.nn.init.zeros_(p)
    model(all_nodes(view, model.operator, model.depth)).logits_NC.square().sum().backward()
    assert all(p.grad is not None and not p.grad.any() for p in model.parameters())


def test_reset_equals_a_fresh_model() -> None:
    torch.manual_seed(5)
    fresh = build("disengcn", FEATURES, CLASSES, 0, 0.0, {"hidden": 8})
    assert_reset_as_fresh(fresh, build("disengcn", FEATURES, CLASSES, 0, 0.0, {"hidden": 8}), 5)


def test_factors_divide_the_width() -> None:
    for factors in (3, 16):
        with refused("model.factors", says="must divide"):
            build("disengcn", FEATURES, CLASSES, 0, 0.0, {"hidden": 8, "factors": factors})
