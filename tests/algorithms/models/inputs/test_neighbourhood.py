from collections.abc import Callable
from typing import get_args

import numpy as np
import pytest
import torch
from support.dense_graphs import operator_of

from shoal.algorithms.models.inputs.neighbourhood import (
    Operator,
    all_nodes,
    receptive_field,
    sample_neighbourhood,
    standalone,
)
from shoal.storage.shards.view import View

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
    return torch.from_numpy(operator_of(operator, view.adjacency.to_dense().double().numpy()))


@pytest.mark.parametrize("operator", OPERATORS)
def test_the_whole_graph_is_its_definition(view: View, operator: Operator) -> None:
    around = all_nodes(view, operator, 3)
    assert around.rows is None
    assert len(around.operators) == 3
    assert around.x_NF.dtype == torch.float32
    torch.testing.assert_close(around.operators[2].to_dense().double(), dense(view, operator), rtol=1e-6, atol=1e-7)
    again = all_nodes(view, operator, 1).operators[0]
    assert again.csr is around.operators[0].csr
    # What a gradient is multiplied by, without anything being sorted for it.
    transposed = torch.zeros_like(dense(view, operator))
    matrix = around.operators[0].transposed
    transposed[np.repeat(np.arange(25), matrix.crow_indices().diff()), matrix.col_indices().long()] = (
        matrix.values().double()
    )
    torch.testing.assert_close(transposed, dense(view, operator).t(), rtol=1e-6, atol=1e-7)
    assert matrix.col_indices().data_ptr() == around.operators[0].csr.col_indices().data_ptr()
    if operator == "sum":
        assert matrix is around.operators[0].csr is view.adjacency
    # Others are kept beside it.
    for other in OPERATORS:
        found = all_nodes(view, other, 1).operators[0]
        torch.testing.assert_close(found.to_dense().double(), dense(view, other), rtol=1e-6, atol=1e-7)
        for part in found.parts()[:2]:
            assert part.dtype == torch.int32


@pytest.mark.parametrize("operator", OPERATORS)
def test_all_neighbours_drawn_are_rows_of_the_whole(view: View, operator: Operator) -> None:
    around = sample_neighbourhood(view, operator, [-1, 100], view.train, np.random.default_rng(0))
    first, last = (matrix.to_dense().double() for matrix in around.operators)
    full = dense(view, operator)
    torch.testing.assert_close(
        last @ first @ around.x_NF.double(), (full @ full @ view.x.double())[view.train], rtol=1e-5, atol=1e-6
    )
    assert last.shape[0] == 3
    assert last.shape[1] == first.shape[0]
    assert first.shape[1] == len(around.x_NF)
    assert all(part.dtype == torch.int32 for matrix in around.operators for part in matrix.parts()[:2])


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("operator", OPERATORS)
def test_a_receptive_field_is_rows_of_the_whole(
    operator: Operator, weighted: bool, view: View, make_view: Callable[..., View]
) -> None:
    if weighted and operator in ("sum", "symmetric"):
        weight = np.random.default_rng(0).random((25, 25), np.float32) + 0.1
        edges = view.adjacency.to_dense().nonzero().numpy()
        view = make_view(25, edges, [0] * 25, [4, 0, 9], 2, view.x.numpy(), weight + weight.T)
    field, whole = receptive_field(view, operator, 2), all_nodes(view, operator, 2)
    first, last = (matrix.to_dense().double() for matrix in field.operators)
    full = whole.operators[0].to_dense().double()
    torch.testing.assert_close(
        last @ first @ field.x_NF.double(), (full @ full @ view.x.double())[view.train], rtol=1e-5, atol=1e-6
    )
    x_MH = torch.randn(first.shape[1], 3)
    torch.testing.assert_close(field.operators[0] @ x_MH, (first @ x_MH.double()).float())
    assert receptive_field(view, operator, 2).operators[0].csr is field.operators[0].csr


@pytest.mark.parametrize("operator", ["sum", "symmetric"])
def test_the_mean_over_draws_is_the_whole_graph(view: View, operator: Operator) -> None:
    rng = np.random.default_rng(1)
    draws = [sample_neighbourhood(view, operator, [2], view.train, rng) for _ in range(4000)]
    products = torch.stack([d.operators[0].to_dense().double() @ d.x_NF.double() for d in draws])
    expected = (dense(view, operator) @ view.x.double())[view.train]
    deviation = products.std(0) / 4000**0.5
    assert ((products.mean(0) - expected).abs() <= 5 * deviation + 1e-6).all()
    assert deviation.max() > 1e-3


@pytest.fixture
def star(make_view: Callable[..., View]) -> View:
    """Node 0 has four neighbours, which have no other; node 5 has none."""
    x = np.arange(12, dtype=np.float32).reshape(6, 2)
    return make_view(6, [(0, i) for i in range(1, 5)], [0] * 6, [0, 5], 2, x)


STAR: dict[str, tuple[float, float, float]] = {
    # The centre hears itself, each of two neighbours drawn of four, and the node without neighbours hears itself.
    "sum": (0.0, 4 / 2, 0.0),
    "edges": (0.0, 4 / 2, 0.0),
    "mean": (0.0, 1 / 2, 0.0),
    "symmetric": (1 / 5, 4 / 2 / (5 * 2) ** 0.5, 1.0),
    "attention": (1.0, 1.0, 1.0),
}


# A node without neighbours divides nothing by zero.
@pytest.mark.filterwarnings("error::RuntimeWarning")
@pytest.mark.parametrize("operator", OPERATORS)
def test_two_of_four_neighbours_by_hand(star: View, operator: Operator) -> None:
    own, receiver, alone = STAR[operator]
    around = sample_neighbourhood(star, operator, [2], star.train, np.random.default_rng(0))
    (matrix,) = around.operators
    expected = torch.tensor([[own, 0.0, receiver, receiver], [0.0, alone, 0.0, 0.0]])
    torch.testing.assert_close(matrix.to_dense(), expected)
    assert matrix.dtype == torch.float32
    assert around.rows is None
    assert torch.equal(around.x_NF[:2], star.x[[0, 5]])
    drawn = (around.x_NF[2:, 0] / 2).int().tolist()
    assert len(set(drawn)) == 2
    assert set(drawn) <= {1, 2, 3, 4}


@pytest.mark.parametrize("operator", OPERATORS)
def test_standalone_nodes_receive_their_own_features_once(operator: Operator) -> None:
    x = torch.randn(3, 2)
    around = standalone(x, operator, 2)
    assert around.x_NF is x
    assert around.rows is None
    assert len(around.operators) == 2
    for matrix in around.operators:
        assert torch.equal(matrix.to_dense(), torch.eye(3))


def test_the_last_layer_draws_first(view: View) -> None:
    """Of three layers with 1, 2 and all neighbours from the last one on; layers meet in their numbers of nodes."""
    first, middle, last = sample_neighbourhood(view, "mean", [1, 2, -1], view.train, np.random.default_rng(0)).operators
    counts = [matrix.parts()[0].diff().max() for matrix in (last, middle, first)]
    assert counts[:2] == [1, 2]
    assert counts[2] > 2
    assert (last.shape[0], last.shape[1], middle.shape[1]) == (3, middle.shape[0], first.shape[0])


def test_sampled_depends_on_the_stream_alone(view: View) -> None:
    draws = [
        sample_neighbourhood(view, "mean", [2, 2], view.train, np.random.default_rng(seed)).x_NF for seed in (0, 0, 1)
    ]
    assert torch.equal(draws[0], draws[1])
    assert draws[0].shape != draws[2].shape or not torch.equal(draws[0], draws[2])


@pytest.mark.parametrize("operator", ["mean", "symmetric", "attention"])
def test_cached_operator_holds_no_map(view: View, operator: Operator) -> None:
    starts, columns, _ = all_nodes(view, operator, 1).operators[0].parts()
    assert starts.data_ptr() != view.edges[0].data_ptr()
    assert columns.data_ptr() != view.edges[1].data_ptr()


def test_features_are_read_whatever_hops_there_are(views: Callable[..., list[View]]) -> None:
    view = views()[0]
    assert not torch.equal(view.hop(2), view.x)
    assert torch.equal(all_nodes(view, "mean", 1).x_NF, view.x)
    drawn = sample_neighbourhood(view, "mean", [1], view.train, np.random.default_rng(0))
    assert torch.equal(drawn.x_NF[: len(view.train)], view.x[view.train])
