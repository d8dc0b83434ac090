"""Distillation losses against double loops over nodes and neighbours, and by finite differences."""

import math
from collections.abc import Callable
from typing import Literal, get_args

import numpy as np
import pytest
import torch

from shoal.algorithms.losses.distillation import distillation_loss, distilled_from_neighbours, embedding_distance
from shoal.storage.shards.view import View

EDGES = [(0, 1), (1, 2), (2, 3), (3, 0), (0, 2), (4, 5), (5, 6), (6, 0)]
Norm = Literal["mean", "sum"]


@pytest.fixture
def view(make_view: Callable[..., View]) -> View:
    """Ten nodes, of which the last three have no edge."""
    return make_view(10, EDGES, [0] * 10, [0], 2)


def probabilities(row: np.ndarray) -> list[float]:
    powers = [math.exp(v) for v in row.tolist()]
    return [power / sum(powers) for power in powers]


def divergence(teacher: np.ndarray, student: np.ndarray) -> float:
    return sum(p * math.log(p / q) for p, q in zip(probabilities(teacher), probabilities(student)))


def by_loops(teacher: np.ndarray, student: np.ndarray, norm: str) -> float:
    total = 0.0
    for i in range(10):
        near = [i, *(b for a, b in EDGES if a == i), *(a for a, b in EDGES if b == i)]
        found = sum(divergence(teacher[j], student[i]) for j in near)
        total += found / (len(near) if norm == "mean" else 1)
    return total / 10


def rows(seed: int, *shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def test_from_scores_row_by_row() -> None:
    teacher, student = 2 * rows(0, 6, 4), rows(1, 6, 4)
    expected = sum(divergence(t, s) for t, s in zip(teacher.numpy(), student.numpy())) / 6
    assert distillation_loss(teacher, student).item() == pytest.approx(expected, rel=1e-5)
    assert distillation_loss(teacher, teacher + 3).item() == pytest.approx(0, abs=1e-6)


@pytest.mark.parametrize("detach", [True, False])
def test_a_teacher_is_detached_unless_it_shall_learn(detach: bool) -> None:
    teacher, student = rows(0, 6, 4).requires_grad_(), rows(1, 6, 4).requires_grad_()
    (distillation_loss(teacher, student) if detach else distillation_loss(teacher, student, detach=False)).backward()
    p, q = teacher.detach().softmax(1), student.detach().softmax(1)
    torch.testing.assert_close(student.grad, (q - p) / 6)
    if detach:
        assert teacher.grad is None
    else:
        ratio = (p / q).log()
        torch.testing.assert_close(teacher.grad, p * (ratio - (p * ratio).sum(1, keepdim=True)) / 6)


@pytest.mark.parametrize("norm", get_args(Norm))
def test_from_neighbours_as_a_double_loop(view: View, norm: Norm) -> None:
    teacher, student = 2 * rows(2, 10, 5), rows(3, 10, 5)
    expected = by_loops(teacher.numpy(), student.numpy(), norm)
    assert distilled_from_neighbours(view, teacher, student, norm).item() == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("norm", get_args(Norm))
def test_its_gradient_by_finite_differences(view: View, norm: Norm) -> None:
    teacher, student = rows(2, 10, 5).requires_grad_(), rows(3, 10, 5).requires_grad_()
    distilled_from_neighbours(view, teacher, student, norm).backward()
    assert teacher.grad is None
    assert student.grad is not None
    at, step = student.detach().double().numpy(), 1e-5
    fixed = teacher.detach().double().numpy()
    for i, c in np.ndindex(at.shape):
        moved = [at.copy(), at.copy()]
        moved[0][i, c] += step
        moved[1][i, c] -= step
        up, down = (by_loops(fixed, m, norm) for m in moved)
        assert student.grad[i, c].item() == pytest.approx((up - down) / (2 * step), abs=1e-6)


def test_distances_of_embeddings() -> None:
    teacher, student = torch.tensor([[3.0, 4.0], [0.0, 2.0]]), torch.tensor([[0.0, 1.0], [5.0, 0.0]])
    assert embedding_distance(teacher, student, "raw").item() == pytest.approx((9 + 9 + 25 + 4) / 4)
    assert embedding_distance(teacher, student, "unit").item() == pytest.approx((0.36 + 0.04 + 1 + 1) / 2)
    assert embedding_distance(7 * teacher, student / 3, "unit").item() == pytest.approx(2.4 / 2)
    teacher, student = teacher.requires_grad_(), student.requires_grad_()
    embedding_distance(teacher, student, "raw").backward()
    torch.testing.assert_close(student.grad, (student - teacher).detach() / 2)
    torch.testing.assert_close(teacher.grad, (teacher - student).detach() / 2)
