"""What a model learns of another one about its neighbours: by loops over nodes, and by finite differences."""

import math
from collections.abc import Callable

import numpy as np
import pytest
import torch

from shoal.algorithms.methods.fgssl import likeness_distilled
from shoal.storage.store.view import View

# Node 5 has no neighbour, node 4 one, whose share is one whatever it is like.
EDGES = [(0, 1), (0, 2), (0, 3), (1, 2), (3, 4)]


def by_loops(edges: list[tuple[int, int]], teacher: np.ndarray, student: np.ndarray, omega: float) -> float:
    def shares(y: np.ndarray, i: int, near: list[int]) -> list[float]:
        cosines = [y[i] @ y[j] / np.linalg.norm(y[i]) / np.linalg.norm(y[j]) for j in near]
        return [math.exp(c / omega) / sum(math.exp(other / omega) for other in cosines) for c in cosines]

    found = []
    for i in range(len(teacher)):
        near = [b if a == i else a for a, b in edges if i in (a, b)]
        if near:
            pairs = zip(shares(teacher, i, near), shares(student, i, near))
            found.append(sum(q * math.log(q / p) for q, p in pairs))
    return sum(found) / len(found)


@pytest.mark.parametrize("omega", [0.1, 0.5, 3.0])
def test_against_loops(make_view: Callable[..., View], omega: float) -> None:
    view = make_view(6, EDGES, [0] * 6, [0], 3)
    teacher, student = np.random.default_rng(2).standard_normal((2, 6, 3)).astype(np.float32)
    found = likeness_distilled(view, torch.from_numpy(teacher), torch.from_numpy(student), omega)
    assert float(found) == pytest.approx(by_loops(EDGES, teacher, student, omega), rel=1e-4)
    assert float(likeness_distilled(view, *[torch.from_numpy(student)] * 2, omega)) == 0


def test_the_gradient_is_the_students(make_view: Callable[..., View]) -> None:
    view = make_view(6, EDGES, [0] * 6, [0], 3)
    teacher, student = torch.randn(2, 6, 3, generator=torch.Generator().manual_seed(1))
    teacher.requires_grad_()
    student.requires_grad_()
    likeness_distilled(view, teacher, student, 0.5).backward()
    assert teacher.grad is None
    assert student.grad is not None
    slopes, step = torch.zeros(6, 3), 1e-4
    for i in range(6):
        for c in range(3):
            sides = [student.detach().double().numpy().copy() for _ in range(2)]
            sides[0][i, c] += step
            sides[1][i, c] -= step
            up, down = (by_loops(EDGES, teacher.detach().double().numpy(), side, 0.5) for side in sides)
            slopes[i, c] = (up - down) / (2 * step)
    torch.testing.assert_close(student.grad, slopes, rtol=1e-3, atol=1e-5)


def test_very_small_temperatures_and_zero_rows(make_view: Callable[..., View]) -> None:
    view = make_view(6, EDGES, [0] * 6, [0], 3)
    student = torch.zeros(6, 3, requires_grad=True)
    found = likeness_distilled(view, torch.eye(3).repeat(2, 1), student, 1e-3)
    found.backward()
    assert found.isfinite()
    assert student.grad is not None
    assert student.grad.isfinite().all()


def test_without_edges_there_is_nothing_to_learn(make_view: Callable[..., View]) -> None:
    view = make_view(3, [], [0] * 3, [0], 3)
    assert float(likeness_distilled(view, torch.rand(3, 3), torch.rand(3, 3), 0.5)) == 0
