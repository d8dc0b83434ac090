from collections.abc import Callable
from typing import get_args

import numpy as np
import pytest
import torch

from algorithms.backbones.neighbourhood import Operator, all_nodes, sampled
from storage.view import View

OPERATORS = get_args(Operator)


@pytest.fixture
def view(make_view: Callable[..., View]) -> View:
    rng = np.random.default_rng(3)
    edges = np.argwhere(np.triu(rng.random((25, 25)) < 0.25, 1))
    edges = edges[(edges != 4).all(1)]
    x = rng.standard_normal((25, 6)).astype(np.float16)
    return make_view(25, edges, [0] * 25, [4, 0, 9], 2, x)


def dense(view: View, operator: str) -> torch.Tensor:
    """The matrix by its definition, in double precision."""
    a = view.adjacency.to_dense().double()
    loops = a + torch.eye(view.nodes)
    root = loops.sum(1).rsqrt()
    return {"sum": a, "mean": a, "attention": loops, "symmetric": root[:, None] * loops * root}[operator]


@pytest.mark.parametrize("operator", OPERATORS)
def test_the_whole_graph_is_its_definition(view: View, operator: Operator) -> None:
    around = all_nodes(view, operator, 3)
    assert around.rows is None
    assert len(around.operators) == 3
    assert around.x_NF.dtype == torch.float32
    torch.testing.assert_close(around.operators[2].to_dense().double(), dense(view, operator), rtol=1e-6, atol=1e-7)
    assert all_nodes(view, operator, 1).operators[0] is around.operators[0]


@pytest.mark.parametrize("operator", OPERATORS)
def test_all_neighbours_drawn_are_rows_of_the_whole(view: View, operator: Operator) -> None:
    around = sampled(view, operator, [-1, 100], view.train, np.random.default_rng(0))
    first, last = (matrix.to_dense().double() for matrix in around.operators)
    full = dense(view, operator)
    torch.testing.assert_close(
        last @ first @ around.x_NF.double(), (full @ full @ view.x.double())[view.train], rtol=1e-5, atol=1e-6
    )
    assert last.shape[0] == 3
    assert last.shape[1] == first.shape[0]
    assert first.shape[1] == len(around.x_NF)


@pytest.mark.parametrize("operator", ["sum", "symmetric"])
def test_the_mean_over_draws_is_the_whole_graph(view: View, operator: Operator) -> None:
    rng = np.random.default_rng(1)
    draws = [sampled(view, operator, [2], view.train, rng) for _ in range(4000)]
    products = torch.stack([d.operators[0].to_dense().double() @ d.x_NF.double() for d in draws])
    expected = (dense(view, operator) @ view.x.double())[view.train]
    deviation = products.std(0) / 4000**0.5
    assert ((products.mean(0) - expected).abs() <= 5 * deviation + 1e-6).all()
    assert deviation.max() > 1e-3
