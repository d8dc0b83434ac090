"""A sparse matrix against the dense one of the same numbers."""

import numpy as np
import pytest
import torch
from support.sparse_rows import sparse

from shoal.storage.graph.sparse_matrix import SparseMatrix


@pytest.fixture
def dense() -> torch.Tensor:
    """Nine rows, of which the third and the last are empty, as is the second column."""
    torch.manual_seed(0)
    found = torch.randn(9, 7) * (torch.rand(9, 7) < 0.4)
    found[[2, 8]] = 0
    found[:, 1] = 0
    return found


def test_what_it_is(dense: torch.Tensor) -> None:
    matrix = sparse(dense)
    assert matrix.shape == (9, 7)
    assert len(matrix) == 9
    assert matrix.dtype == torch.float32
    assert torch.equal(matrix.to_dense(), dense)
    entries = int((dense != 0).sum())
    assert matrix.most_bytes == 4 * (10 + 8) + 16 * entries
    assert matrix.prepared() is matrix
    transposed = matrix.transposed
    parts = (*matrix.parts(), transposed.crow_indices(), transposed.col_indices(), transposed.values())
    assert matrix.most_bytes == sum(part.nbytes for part in parts)
    both = sparse(dense @ dense.t())
    own = SparseMatrix(both.csr, both.csr)
    assert own.transposed is own.csr
    assert own.most_bytes == sum(part.nbytes for part in both.parts())


@pytest.mark.parametrize("half", [False, True])
def test_the_transpose(dense: torch.Tensor, half: bool) -> None:
    dense = dense.half() if half else dense
    matrix = sparse(dense)
    transposed = matrix.transposed
    assert torch.equal(transposed.to_dense(), dense.t())
    assert transposed.dtype == dense.dtype
    assert transposed.crow_indices().dtype == transposed.col_indices().dtype == torch.int32
    assert matrix.transposed is transposed


def test_product_and_gradient(dense: torch.Tensor) -> None:
    matrix, weight = sparse(dense), torch.randn(7, 3, requires_grad=True)
    expected = torch.autograd.grad((dense @ weight).sin().sum(), weight)
    torch.testing.assert_close(torch.autograd.grad((matrix @ weight).sin().sum(), weight), expected)
    # The weight may lie by rows or by columns.
    for lying in (weight.detach(), torch.randn(3, 7).t()):
        product = matrix @ lying
        assert not product.requires_grad
        torch.testing.assert_close(product, dense @ lying)


def test_a_product_is_float32_under_autocast(dense: torch.Tensor) -> None:
    weight = torch.randn(7, 3)
    with torch.autocast("cpu", torch.bfloat16):
        found = sparse(dense) @ weight.bfloat16()
    assert found.dtype == torch.float32
    torch.testing.assert_close(found, dense @ weight.bfloat16().float())


def test_what_memory_held_before_does_not_show() -> None:
    """The result of a product is not filled first."""
    matrix = SparseMatrix.of(np.zeros(6, np.int32), np.zeros(0, np.int32), np.zeros(0, np.float32), 4)
    for _ in range(50):
        torch.full((5, 3), torch.nan)
        assert torch.equal(matrix @ torch.randn(4, 3), torch.zeros(5, 3))


@pytest.mark.parametrize(("start", "stop"), [(0, 9), (3, 4), (4, 4), (5, 9), (5, 20)])
def test_successive_rows_share_memory(dense: torch.Tensor, start: int, stop: int) -> None:
    matrix = sparse(dense)
    block = matrix.block(start, stop)
    assert torch.equal(block.to_dense(), dense[start:stop])
    if stop > start:
        offset = int(matrix.parts()[0][start])
        assert block.parts()[2].data_ptr() == matrix.parts()[2].data_ptr() + 4 * offset
