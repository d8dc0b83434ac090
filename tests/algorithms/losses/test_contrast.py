"""The contrast of two views, by hand for two items, in NumPy by two loops, and by finite differences."""

import math

import numpy as np
import pytest
import torch

from algorithms.losses.contrast import nt_xent


def by_loops(z: np.ndarray, other: np.ndarray, tau: float) -> float:
    def cosine(a: np.ndarray, b: np.ndarray) -> float:
        return float(a @ b / np.linalg.norm(a) / np.linalg.norm(b))

    losses = []
    for n in range(len(z)):
        others = 0.0
        for m in range(len(z)):
            if m != n:
                others += math.exp(cosine(z[n], other[m]) / tau)
        losses.append(-math.log(math.exp(cosine(z[n], other[n]) / tau) / others))
    return sum(losses) / len(losses)


def test_two_items_by_hand() -> None:
    z, other = torch.tensor([[2.0, 0.0], [0.0, 5.0]]), torch.tensor([[3.0, 4.0], [0.0, 1.0]])
    # Item 0 has cosine 0.6 with itself and 0 with the other, item 1 has 1 and 0.8.
    assert float(nt_xent(z, other, 0.5)) == pytest.approx(((0 - 0.6) / 0.5 + (0.8 - 1) / 0.5) / 2)


@pytest.mark.parametrize("tau", [0.5, 2.0])
def test_against_two_loops(tau: float) -> None:
    z, other = np.random.default_rng(0).standard_normal((2, 7, 4))
    found = nt_xent(torch.from_numpy(z), torch.from_numpy(other), tau)
    assert float(found) == pytest.approx(by_loops(z, other, tau), rel=1e-12)


def test_gradient() -> None:
    z, other = torch.randn(2, 4, 3, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    both = z.requires_grad_(), other.requires_grad_()
    assert torch.autograd.gradcheck(lambda a, b: nt_xent(a, b, 0.5), both)


def test_an_embedding_that_is_no_number_is_not_hidden() -> None:
    z = torch.tensor([[torch.inf, 1.0], [1.0, 2.0]])
    assert nt_xent(z, z.flip(0), 0.5).isnan()
