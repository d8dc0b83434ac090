"""Alignment towards target prototypes, by hand, in NumPy and by finite differences."""

import math

import numpy as np
import pytest
import torch

from shoal.algorithms.losses.alignment import NodeAlignment, mean_square, prototype_alignment, row_alignment

Z = torch.tensor([[1.0, 0.0], [3.0, 0.0], [0.0, 2.0], [9.0, 9.0]])
Y = torch.tensor([0, 0, 1, 2])
TARGET = torch.tensor([[1.0, 0.0], [0.0, 0.0], [0.0, 0.0], [0.0, 0.0]])
KNOWN = torch.tensor([True, True, False, True])


def test_rows_by_hand() -> None:
    # Squared distances 0, 4, 4; class 2 has no target, class 3 no rows.
    assert float(row_alignment(Z, Y, TARGET, KNOWN)) == pytest.approx(8 / 3)


def test_mean_square_by_hand() -> None:
    assert float(mean_square(Z, Y, TARGET, KNOWN)) == pytest.approx(8 / 3 / 2)
    assert float(mean_square(Z, Y, TARGET, KNOWN, 3.0)) == pytest.approx(8 / 2)


def test_one_row_with_a_target() -> None:
    assert float(row_alignment(Z[2:], Y[2:], TARGET, KNOWN)) == 4


def test_classes_weigh_the_same_whatever_their_size() -> None:
    assert float(NodeAlignment(Y, TARGET, KNOWN)(Z)) == (0 + 4) / 2 + 4


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
        NodeAlignment(Y, TARGET, nothing)(z),
        prototype_alignment(z, TARGET, nothing),
        row_alignment(z[:0], Y[:0], TARGET, KNOWN),
        NodeAlignment(Y[:0], TARGET, KNOWN)(z[:0]),
    ]
    for term in terms:
        assert float(term.detach()) == 0
    sum(terms).backward()  # type: ignore[union-attr]
    assert torch.equal(z.grad, torch.zeros_like(z))


def test_values_and_gradients_of_a_loop() -> None:
    """Many rows, classes of different sizes, one without a target and one without rows, by the sums of the formulas."""
    random = np.random.default_rng(3)
    z, target, present = random.standard_normal((9, 4)), random.standard_normal((5, 4)), np.arange(5) != 1
    y = np.array([0, 0, 0, 1, 2, 2, 4, 4, 4])
    away = [(z[v] - target[y[v]], int((y == y[v]).sum())) for v in range(9) if present[y[v]]]
    norms = {c: float(np.linalg.norm(z[c] - target[c])) for c in range(5) if present[c]}
    own = torch.from_numpy(z).requires_grad_()
    rest = torch.from_numpy(y), torch.from_numpy(target), torch.from_numpy(present)
    terms = {
        "row": (lambda z: row_alignment(z, *rest), sum(d @ d for d, _ in away) / len(away)),
        "node": (NodeAlignment(*rest), sum(d @ d / n for d, n in away)),
        "plain": (lambda z: prototype_alignment(z[:5], *rest[1:]), sum(norms.values())),
        "squared": (lambda z: prototype_alignment(z[:5], *rest[1:], squared=True), sum(n * n for n in norms.values())),
    }
    places = rest[2].nonzero(as_tuple=True)
    terms["places"] = (lambda z: prototype_alignment(z[:5], rest[1], places), sum(norms.values()))
    for name, (term, expected) in terms.items():
        assert float(term(own).detach()) == pytest.approx(expected), name
        assert torch.autograd.gradcheck(term, (own,)), name


def test_prototype_alignment_sums_over_hops() -> None:
    proto, target = torch.zeros(2, 3, 2), torch.tensor([3.0, 4.0]).expand(2, 3, 2)
    present = torch.tensor([[True, False, True], [False, True, False]])
    assert float(prototype_alignment(proto, target, present)) == pytest.approx(3 * 5)


def test_a_prototype_on_its_target_has_a_finite_gradient() -> None:
    z = TARGET.clone().requires_grad_()
    prototype_alignment(z, TARGET, KNOWN).backward()
    assert torch.isfinite(z.grad).all()
