"""Ranks by hand on diagonal matrices, products by NumPy, and matrices that must not be lost."""

import pytest
import torch
from torch import Tensor, nn

from shoal.algorithms.client import FlatModel
from shoal.algorithms.methods.fedkd import compress, expand, restore, truncate
from shoal.algorithms.models.build import build


def diagonal(*values: float, size: int = 20) -> Tensor:
    return torch.diag(torch.tensor([*values, *[0.0] * (size - len(values))]))


def rank_of(matrix: Tensor, energy: float) -> int:
    part = truncate(matrix, energy)
    assert part.shape[1] == sum(matrix.shape) + 1
    return len(part)


# Squares 16, 9, 4, 1 of 30: 53.3 %, 83.3 %, 96.7 %, 100 %.
def test_rank_by_hand() -> None:
    ranks = {0.01: 1, 0.53: 1, 0.54: 2, 0.83: 2, 0.84: 3, 0.96: 3, 0.97: 4, 1.0: 4}
    assert {energy: rank_of(diagonal(3, 4, 1, 2), energy) for energy in ranks} == ranks
    # A share that is just held is held.
    assert [rank_of(diagonal(3, -3), energy) for energy in (0.5, 0.500001, 1.0)] == [1, 2, 2]


@pytest.mark.parametrize("shape", [(256, 7), (64, 5), (1, 9), (9, 1), (1, 1)])
def test_a_matrix_whose_factors_take_more_is_sent_as_it_is(shape: tuple[int, int]) -> None:
    """Of a random 256x7 head all values are needed, none of which a proper prefix may replace: it is not wiped."""
    torch.manual_seed(0)
    matrix = torch.randn(shape)
    part = truncate(matrix, 0.98)
    assert torch.equal(part, matrix)
    assert torch.equal(restore(part, matrix.shape), matrix)


def test_factors_must_take_less() -> None:
    """Rank 2 of 5x10 takes 32 of 50 scalars, rank 3 takes 48; of 4x5 rank 2 takes the 20 that it has."""
    torch.manual_seed(0)
    for a, b, rank, as_factors in [(5, 10, 3, True), (5, 10, 4, False), (4, 5, 1, True), (4, 5, 2, False)]:
        matrix = torch.linalg.qr(torch.randn(a, rank))[0] @ torch.linalg.qr(torch.randn(b, rank))[0].t()
        part = truncate(matrix, 0.999)
        assert part.shape == ((rank, a + b + 1) if as_factors else (a, b))


def test_zero_has_rank_zero_and_nothing_else_has() -> None:
    zero = torch.zeros(6, 8)
    assert truncate(zero, 0.95).shape == (0, 15)
    assert torch.equal(restore(truncate(zero, 0.95), zero.shape), zero)
    # The square of 1e-30 is no float32.
    for tiny in (1e-30, 1e-40):
        matrix = diagonal(tiny, size=9)
        torch.testing.assert_close(restore(truncate(matrix, 0.95), matrix.shape), matrix, rtol=1e-4, atol=0)


@pytest.mark.parametrize("matrix", [torch.zeros(3), torch.zeros(1, 2, 9), torch.full((9, 9), float("nan"))])
def test_what_is_no_finite_matrix_stays_as_it_is(matrix: Tensor) -> None:
    part = truncate(matrix, 0.95)
    torch.testing.assert_close(part, matrix, equal_nan=True)
    assert part.data_ptr() != matrix.data_ptr()


@pytest.mark.parametrize("by_column", [False, True])
def test_parameters_of_a_model(by_column: bool) -> None:
    """Every weight of an MLP for itself, whatever its order in the vector; biases as they are."""
    module = build("mlp", 12, 3, 0, 0.0, {"hidden": 9})
    shapes = [tuple(p.shape) for p in module.parameters()]
    model = FlatModel(module, sparse=by_column)
    torch.manual_seed(0)
    values = [torch.outer(torch.randn(9), torch.randn(12)), torch.randn(9), torch.zeros(3, 9), torch.randn(3)]
    assert [tuple(v.shape) for v in values] == shapes
    change = torch.empty_like(model.w.detach())
    for part, value in zip(model.parts(change), values):
        part.copy_(value)
    sent = compress(model, change, 0.95)
    assert {name: tuple(t.shape) for name, t in sent.items()} == {
        "change.0": (1, 22),
        "change.1": (9,),
        "change.2": (0, 13),
        "change.3": (3,),
    }
    assert all(t.is_contiguous() and t.untyped_storage().nbytes() == t.nbytes for t in sent.values())
    # Entries may come in any order, and others with them.
    found = expand(model, {"energy": torch.tensor(0.95), **dict(reversed(sent.items()))})
    torch.testing.assert_close(found, change)
    assert torch.equal(found, expand(model, sent))
    nn.utils.vector_to_parameters(torch.zeros(len(found)), module.parameters())
    assert torch.equal(found, expand(model, sent))
