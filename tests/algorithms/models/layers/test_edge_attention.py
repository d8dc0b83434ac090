"""Attention over neighbours against the same written entry by entry in torch, with its gradients."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from shoal.algorithms.models.layers.edge_attention import attend, by_torch
from shoal.storage.graph.sparse_matrix import SparseMatrix

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
