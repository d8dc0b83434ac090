"""Laplace noise: its distribution, its scale, and where there is none."""

import pytest
import torch

from shoal.algorithms.methods.fedgpl.fedgpl import laplace, noised

CPU = torch.device("cpu")


def rng(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def test_the_distribution_is_that_of_laplace() -> None:
    drawn = laplace(torch.Size([200_000]), 3.0, rng(), CPU).double()
    assert drawn.mean().abs() < 0.05
    assert drawn.var() == pytest.approx(2 * 3.0**2, rel=0.02)
    # P(|x| <= t) = 1 - exp(-t / scale).
    for t in (0.5, 3.0, 9.0):
        assert (drawn.abs() <= t).double().mean() == pytest.approx(1 - torch.tensor(-t / 3).exp().item(), abs=0.004)
    assert drawn.isfinite().all()


def test_the_paper_s_scale_is_the_range_over_epsilon() -> None:
    x = torch.tensor([[-1.0, 4.0], [0.0, 2.0]])
    torch.testing.assert_close(noised(x, "paper", 10.0, 1.0, rng(1)), x + laplace(x.shape, 0.5, rng(1), CPU))
    even = torch.full((2, 3), 7.0)
    assert torch.equal(noised(even, "paper", 10.0, 1.0, rng()), even)
    assert noised(x[:0], "paper", 10.0, 1.0, rng()).shape == (0, 2)


def test_clipped_rows_are_shrunk_to_the_norm_and_no_further() -> None:
    x = torch.tensor([[3.0, -1.0], [0.5, 0.5], [0.0, 0.0]])
    shrunk = torch.tensor([[1.5, -0.5], [0.5, 0.5], [0.0, 0.0]])
    found = noised(x, "clipped", 8.0, 2.0, rng(2))
    torch.testing.assert_close(found, shrunk + laplace(x.shape, 0.5, rng(2), CPU))
    assert x[0, 0] == 3
