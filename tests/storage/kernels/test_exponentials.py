"""Exponential and logarithm against float64, and cross-entropy with its gradient against torch's in float64."""

from collections.abc import Callable
from typing import Any

import numba
import numpy as np
import pytest
import torch
import torch.nn.functional as F

from shoal.algorithms.training.analytic.heads import cross_entropy
from shoal.storage.kernels.exponentials import exp, log

DRAWN = np.random.default_rng(0)


def all_of(function: Callable[..., Any], x: np.ndarray) -> np.ndarray:
    """As vector code."""

    @numba.njit
    def every(x: np.ndarray) -> np.ndarray:
        found = np.empty_like(x)
        for i in range(len(x)):
            found[i] = function(x[i])
        return found

    return every(x)


@pytest.mark.parametrize(
    ("function", "exact", "x"),
    [
        (exp, np.exp, np.concatenate([-np.geomspace(1e-9, 87.33, 200_001), DRAWN.uniform(-3, 88, 100_000)])),
        (log, np.log, np.concatenate([np.geomspace(1.2e-38, 3e38, 200_001), DRAWN.uniform(0.4, 2.5, 100_000)])),
    ],
    ids=["exp", "log"],
)
def test_errors_are_below_one_unit_in_the_last_place(function: Any, exact: Any, x: np.ndarray) -> None:
    x = x.astype(np.float32)
    expected = exact(x.astype(np.float64))
    units = np.abs(all_of(function, x) - expected) / np.spacing(np.abs(expected).astype(np.float32))
    assert units.max() < 1


def test_ends_of_both() -> None:
    found = all_of(exp, np.array([0, -88, -1e30, -np.inf, np.nan], dtype=np.float32))
    np.testing.assert_array_equal(found, [1, 0, 0, 0, np.nan])
    found = all_of(log, np.array([1, 2.0**-126, 1e-40, 0], dtype=np.float32))
    np.testing.assert_allclose(found, np.array([0, 1, 1, 1]) * -126 * np.log(2), rtol=1e-6)


def require_equal(logits: torch.Tensor, label: torch.Tensor) -> None:
    exact = logits.double().requires_grad_()
    expected = F.cross_entropy(exact, label)
    expected.backward()
    assert exact.grad is not None
    found = logits.clone()
    loss = cross_entropy(found.numpy(), label.numpy())
    assert loss == pytest.approx(expected.item(), rel=1e-6, abs=1e-6, nan_ok=True)
    torch.testing.assert_close(found, (exact.grad * len(label)).float(), rtol=1e-6, atol=2e-7, equal_nan=True)


@pytest.mark.parametrize("scale", [0.0, 1.0, 50.0, 1e30])
def test_cross_entropy_of_any_number_of_classes(scale: float) -> None:
    draws = torch.Generator().manual_seed(0)
    for classes in range(1, 201):
        logits = scale * torch.randn(9, classes, generator=draws)
        require_equal(logits, torch.randint(classes, (9,), generator=draws))


def test_cross_entropy_of_rows_with_infinities_and_nan() -> None:
    inf, nan = float("inf"), float("nan")
    for row in ([-inf, 1, 2], [-inf, -inf, 3], [nan, 1, 2], [3e38, -3e38, 0], [-3e38, -3e38, -3.1e38], [-inf] * 3):
        require_equal(torch.tensor([row, [0, 1, 2]]), torch.tensor([2, 0]))
    require_equal(torch.tensor([[0.0, -inf, 1]]), torch.tensor([1]))
    require_equal(torch.empty(0, 3), torch.empty(0, dtype=torch.int64))


@pytest.mark.parametrize("label", [-1, 3, 2**40])
def test_a_label_that_is_no_class_is_refused(label: int) -> None:
    with pytest.raises(IndexError, match="labels below the number of logits"):
        cross_entropy(np.zeros((2, 3), dtype=np.float32), np.array([0, label]))
