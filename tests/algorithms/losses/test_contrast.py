"""The contrasts of two views, by hand for two items, in NumPy by two loops, and by finite differences."""

import math

import numpy as np
import pytest
import torch

from shoal.algorithms.losses.contrast import contrast_by_class, nt_xent


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


def by_class(z: np.ndarray, y: list[int], other: np.ndarray, other_y: list[int], tau: float) -> float:
    def likeness(a: np.ndarray, b: np.ndarray) -> float:
        return math.exp(a @ b / np.linalg.norm(a) / np.linalg.norm(b) / tau)

    losses = []
    for a, own in zip(z, y):
        negatives = sum(likeness(a, b) for b, c in zip(other, other_y) if c != own)
        near = [likeness(a, b) for b, c in zip(other, other_y) if c == own]
        losses.append(sum(-math.log(n / (n + negatives)) for n in near) / len(near))
    return sum(losses) / len(losses)


@pytest.mark.parametrize("tau", [0.1, 1.0])
def test_by_class_against_loops(tau: float) -> None:
    z, other = np.random.default_rng(0).standard_normal((2, 7, 4))
    y, other_y = [0, 0, 1, 2, 2, 2, 1], [1, 2, 0, 0, 2, 1, 1]
    found = contrast_by_class(torch.from_numpy(z), torch.tensor(y), torch.from_numpy(other), torch.tensor(other_y), tau)
    assert float(found) == pytest.approx(by_class(z, y, other, other_y, tau), rel=1e-12)


def test_by_class_has_gradients_where_it_has_a_value() -> None:
    z, other = torch.randn(2, 4, 3, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    y = torch.tensor([0, 1, 1, 2])
    z.requires_grad_()
    assert torch.autograd.gradcheck(lambda z: contrast_by_class(z, y, other, y, 0.5), z)
    # One class, and embeddings that are zero: neither a number nor a gradient that is none.
    alone = contrast_by_class(z, torch.zeros(4).long(), other, torch.zeros(4).long(), 0.5)
    assert float(alone.detach()) == 0
    flat = torch.zeros(4, 3, requires_grad=True)
    contrast_by_class(flat, y, torch.zeros(4, 3), y, 0.5).backward()
    assert flat.grad is not None
    assert not flat.grad.any()
