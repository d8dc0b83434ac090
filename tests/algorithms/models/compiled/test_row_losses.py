"""Losses of rows in one compiled call beside the same ones in torch."""

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from shoal.algorithms.losses import distillation, prototype_losses
from shoal.algorithms.losses.distillation import distance_of_projected, distillation_loss, embedding_distance
from shoal.algorithms.losses.prototype_losses import contrast, contrast_by_class, mean_square

CLASSES, WIDTH = 5, 6


def rows() -> tuple[Tensor, Tensor]:
    """Rows of all classes, and of none; the third has no direction."""
    torch.manual_seed(1)
    z = torch.randn(30, WIDTH, dtype=torch.float32)
    z[2] = 0
    return z.requires_grad_(), torch.arange(30) % (CLASSES + 1) - 1


def squared(z: Tensor, y: Tensor) -> Tensor:
    return mean_square(z, y, torch.arange(30.0).view(CLASSES, WIDTH) / 10, torch.tensor([1, 0, 1, 1, 1]).bool(), 0.3)


def absent(z: Tensor, y: Tensor) -> Tensor:
    return mean_square(z, y, torch.ones(CLASSES, WIDTH), torch.zeros(CLASSES).bool())


def contrasted(z: Tensor, y: Tensor) -> Tensor:
    bank = torch.sin(torch.arange(8.0 * WIDTH)).view(8, WIDTH)
    bank[5] = 0
    return contrast(z, y, bank, torch.tensor([0, 0, 1, 2, 2, 2, 3, 3]), 0.05, 0.2)


def of_one_class(z: Tensor, y: Tensor) -> Tensor:
    return contrast(z, y, torch.ones(3, WIDTH), torch.tensor([1, 1, 1]), 0.5)


def of_views(z: Tensor, y: Tensor) -> Tensor:
    some = torch.tensor([1, 2, 3, 9, 27, 3])
    other = torch.sin(torch.arange(12.0 * WIDTH)).view(12, WIDTH)
    return contrast_by_class(z, y[some], other, torch.arange(12) % (CLASSES + 1) - 1, 0.1, some)


@pytest.mark.parametrize("loss_of", [squared, absent, contrasted, of_one_class, of_views])
def test_loss_and_gradient_are_those_of_torch(
    loss_of: Callable[[Tensor, Tensor], Tensor], monkeypatch: pytest.MonkeyPatch
) -> None:
    z, y = rows()
    made = loss_of(z, y)
    (of_made,) = torch.autograd.grad(3 * made, z)
    monkeypatch.setattr(prototype_losses, "is_compiled", lambda *tensors: False)
    expected = loss_of(z, y)
    (of_expected,) = torch.autograd.grad(3 * expected, z)
    torch.testing.assert_close(made, expected, rtol=1e-5, atol=1e-7)
    torch.testing.assert_close(of_made, of_expected, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("scale", [1.0, 60.0])
def test_distillation_is_that_of_torch(scale: float, monkeypatch: pytest.MonkeyPatch) -> None:
    student, teacher = (scale * torch.randn(9, WIDTH, generator=torch.Generator().manual_seed(k)) for k in range(2))
    student.requires_grad_()
    # Neither has a direction.
    student.data[1], teacher[2] = 0, 0
    found = []
    for _ in range(2):
        losses = distillation_loss(teacher, student), embedding_distance(teacher, student, "unit")
        found.append([part for loss in losses for part in (loss, *torch.autograd.grad(2 * loss, student))])
        monkeypatch.setattr(distillation, "is_compiled", lambda *tensors: False)
    for made, expected in zip(*found):
        torch.testing.assert_close(made, expected, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("learner", range(3))
@pytest.mark.parametrize("widths", [(WIDTH, 9), (9, WIDTH), (WIDTH, WIDTH)])
def test_projected_embeddings_are_those_of_torch(widths: tuple[int, int], learner: int) -> None:
    torch.manual_seed(2)
    parts = [torch.randn(shape) for shape in ((30, widths[0]), (30, widths[1]), widths)]
    parts[learner].requires_grad_()
    expected = F.mse_loss(parts[0], parts[1] @ parts[2].t())
    made = distance_of_projected(parts[0], parts[1], parts[2])
    torch.testing.assert_close(made, expected, rtol=1e-5, atol=1e-6)
    of_both = [torch.autograd.grad(3 * loss, parts[learner])[0] for loss in (made, expected)]
    torch.testing.assert_close(of_both[0], of_both[1], rtol=1e-4, atol=1e-6)


def test_constants_with_a_gradient_are_left_to_torch() -> None:
    z, y = rows()
    bank = torch.randn(4, WIDTH, requires_grad=True)
    contrast(z, y, bank, torch.arange(4), 0.5).backward()
    assert bank.grad is not None
    assert bool((bank.grad != 0).any())


def test_shapes_that_do_not_fit_are_refused_as_torch_refuses_them() -> None:
    """Compiled code would read what lies behind a tensor."""
    z, y = rows()
    known = torch.ones(CLASSES).bool()
    for call in (
        lambda: mean_square(z, y[:-1], torch.ones(CLASSES, WIDTH), known),
        lambda: mean_square(z, y, torch.ones(CLASSES, WIDTH + 1), known),
        lambda: contrast(z, y[:-1], torch.randn(4, WIDTH), torch.arange(4), 0.5),
        lambda: contrast(z, y, torch.randn(4, WIDTH), torch.arange(3), 0.5),
        lambda: contrast(z, y, torch.randn(4, WIDTH + 1), torch.arange(4), 0.5),
        lambda: distillation_loss(torch.randn(30, WIDTH + 1), z),
    ):
        with pytest.raises(RuntimeError):
            call()
    with pytest.raises(IndexError):
        mean_square(z, torch.full((30,), CLASSES), torch.ones(CLASSES, WIDTH), known)
    with pytest.raises(IndexError):
        mean_square(z, y, torch.ones(CLASSES - 1, WIDTH), known[:-1])
    # One row of a teacher is for all rows, as in torch.
    torch.testing.assert_close(
        distillation_loss(torch.ones(1, WIDTH), z), distillation_loss(torch.ones(30, WIDTH), z), rtol=1e-5, atol=1e-6
    )
