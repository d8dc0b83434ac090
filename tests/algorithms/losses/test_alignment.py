"""Alignment towards target prototypes, by hand and by finite differences."""

import math

import pytest
import torch

from algorithms.losses.alignment import node_alignment, prototype_alignment, row_alignment

Z = torch.tensor([[1.0, 0.0], [3.0, 0.0], [0.0, 2.0], [9.0, 9.0]])
Y = torch.tensor([0, 0, 1, 2])
TARGET = torch.tensor([[1.0, 0.0], [0.0, 0.0], [0.0, 0.0], [0.0, 0.0]])
KNOWN = torch.tensor([True, True, False, True])


def test_rows_by_hand() -> None:
    # Squared distances 0, 4, 4; class 2 has no target, class 3 no rows.
    assert float(row_alignment(Z, Y, TARGET, KNOWN)) == pytest.approx(8 / 3)


def test_classes_weigh_the_same_whatever_their_size() -> None:
    assert float(node_alignment(Z, Y, TARGET, KNOWN)) == (0 + 4) / 2 + 4


def test_prototypes_by_hand() -> None:
    proto = torch.tensor([[3.0, 4.0], [1.0, 1.0], [0.0, 0.0]])
    present = torch.tensor([True, False, True])
    target = torch.tensor([[0.0, 0.0], [9.0, 9.0], [0.0, 2.0]])
    assert math.isclose(float(prototype_alignment(proto, target, present)), 5 + 2, rel_tol=1e-6)
    assert float(prototype_alignment(proto, target, present, squared=True)) == 25 + 4


def test_no_target_no_term_and_no_nan() -> None:
    nothing = torch.zeros(4, dtype=torch.bool)
    z = Z.clone().requires_grad_()
    terms = [
        row_alignment(z, Y, TARGET, nothing),
        node_alignment(z, Y, TARGET, nothing),
        prototype_alignment(z, TARGET, nothing),
        row_alignment(z[:0], Y[:0], TARGET, KNOWN),
        node_alignment(z[:0], Y[:0], TARGET, KNOWN),
    ]
    for term in terms:
        assert float(term.detach()) == 0
    sum(terms).backward()  # type: ignore[union-attr]
    assert torch.equal(z.grad, torch.zeros_like(z))


def test_gradients() -> None:
    z = Z.double().requires_grad_()
    target = TARGET.double()
    assert torch.autograd.gradcheck(lambda z: row_alignment(z, Y, target, KNOWN), (z,))
    assert torch.autograd.gradcheck(lambda z: node_alignment(z, Y, target, KNOWN), (z,))
    assert torch.autograd.gradcheck(lambda z: prototype_alignment(z, target + 0.5, KNOWN), (z,))


def test_a_prototype_on_its_target_has_a_finite_gradient() -> None:
    z = TARGET.clone().requires_grad_()
    prototype_alignment(z, TARGET, KNOWN).backward()
    assert torch.isfinite(z.grad).all()
