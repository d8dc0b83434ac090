"""Prototypes by certainty against loops; the contrast of two views against its formula and finite differences."""

import math

import numpy as np
import pytest
import torch
from torch import Tensor

from shoal.algorithms.methods.fggp.class_prototypes import certain_classes, certain_prototypes, contrast_of_views

NODES, WIDTH, CLASSES = 30, 6, 5


@pytest.fixture
def logits_NC() -> Tensor:
    """Scores of which class 3 is never the largest."""
    scores = torch.randn(NODES, CLASSES, generator=torch.Generator().manual_seed(0))
    scores[:, 3] -= 20
    return scores


def test_training_nodes_are_certain_and_others_as_their_scores_are(logits_NC: Tensor) -> None:
    logits_NC.requires_grad_()
    class_N, certain_N = certain_classes(logits_NC, torch.tensor([4, 17]), torch.tensor([2, 0]))
    assert not certain_N.requires_grad
    for i, row in enumerate(logits_NC.detach().double().numpy()):
        p = np.exp(row) / np.exp(row).sum()
        label, certain = {4: (2, 1.0), 17: (0, 1.0)}.get(i, (int(p.argmax()), float(p.max())))
        assert (int(class_N[i]), float(certain_N[i])) == (label, pytest.approx(certain, rel=1e-6))


def test_prototypes_are_weighted_means_under_the_class_s_own_number(logits_NC: Tensor) -> None:
    """Class 3 has nobody: class 4 stays class 4."""
    z_NH = torch.randn(NODES, WIDTH, generator=torch.Generator().manual_seed(1))
    class_N, certain_N = certain_classes(logits_NC, torch.tensor([0]), torch.tensor([4]))
    proto_CH, mass_C = certain_prototypes(z_NH, class_N, certain_N, CLASSES)
    assert float(mass_C[3]) == 0
    assert not proto_CH[3].any()
    for c in (0, 1, 2, 4):
        rows = [i for i in range(NODES) if class_N[i] == c]
        mass = sum(float(certain_N[i]) for i in rows)
        expected = sum(float(certain_N[i]) * z_NH[i] for i in rows) / mass
        assert float(mass_C[c]) == pytest.approx(mass, rel=1e-6)
        torch.testing.assert_close(proto_CH[c], expected)


def test_a_node_moves_the_prototype_of_its_class_by_its_share() -> None:
    z_NH = torch.randn(3, 2, requires_grad=True)
    proto_CH, _ = certain_prototypes(z_NH, torch.tensor([1, 0, 1]), torch.tensor([0.5, 1.0, 0.25]), 2)
    (gradient,) = torch.autograd.grad(proto_CH[1, 0], z_NH)
    torch.testing.assert_close(gradient, torch.tensor([[2 / 3, 0.0], [0.0, 0.0], [1 / 3, 0.0]]))


def by_hand(a: np.ndarray, b: np.ndarray, t: float, literal: bool) -> float:
    """The mean over classes and over both sides of -log(s_jj / sum of s), the sum without s_jj in equation 8."""
    count, total = len(a), 0.0
    s = [[math.exp(x @ y / np.linalg.norm(x) / np.linalg.norm(y) / t) for y in b] for x in a]
    for j in range(count):
        others = [m for m in range(count) if m != j or not literal]
        total -= math.log(s[j][j] / sum(s[j][m] for m in others)) + math.log(s[j][j] / sum(s[m][j] for m in others))
    return total / (2 * count)


@pytest.mark.parametrize("literal", [False, True])
@pytest.mark.parametrize("count", [2, 3, 5])
def test_contrast_is_its_formula_and_its_gradient_the_finite_differences(literal: bool, count: int) -> None:
    rng = np.random.default_rng(count)
    a, b = rng.standard_normal((2, count, WIDTH))
    mine, other = (torch.from_numpy(x).requires_grad_() for x in (a, b))
    loss = contrast_of_views(mine, other, 0.5, literal)
    assert float(loss.detach()) == pytest.approx(by_hand(a, b, 0.5, literal), rel=1e-9)
    loss.backward()
    for array, tensor in ((a, mine), (b, other)):
        for place in [(0, 0), (count - 1, 2), (1, WIDTH - 1)]:
            step = 1e-6
            array[place] += step
            above = by_hand(a, b, 0.5, literal)
            array[place] -= 2 * step
            below = by_hand(a, b, 0.5, literal)
            array[place] += step
            assert tensor.grad is not None
            assert float(tensor.grad[place]) == pytest.approx((above - below) / (2 * step), rel=1e-4, abs=1e-8)


def test_with_two_classes_equation_8_is_linear_in_the_cosines() -> None:
    """Its optimum is -1 / t where cosines lie in [0, 1]."""
    alike = torch.eye(2)
    assert float(contrast_of_views(alike, alike, 0.25, literal=True)) == pytest.approx(-4)
    assert 0 < float(contrast_of_views(alike, alike, 0.25)) < 0.02


@pytest.mark.parametrize("literal", [False, True])
@pytest.mark.parametrize("count", [0, 1])
def test_of_fewer_than_two_classes_it_is_nothing(literal: bool, count: int) -> None:
    own = torch.ones(count, WIDTH, requires_grad=True)
    loss = contrast_of_views(own, torch.ones(count, WIDTH), 0.5, literal)
    assert float(loss.detach()) == 0
    loss.backward()
    assert own.grad is not None
    assert not own.grad.any()
