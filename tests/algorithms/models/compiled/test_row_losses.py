"""Losses of rows in one compiled call beside the same ones in torch."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from shoal.algorithms.losses import distillation, prototype_losses
from shoal.algorithms.losses.distillation import distillation_loss
from shoal.algorithms.losses.prototype_losses import contrast, mean_square
from shoal.algorithms.models.compiled.row_losses import row_loss, soft_cross_entropies

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


@pytest.mark.parametrize("loss_of", [squared, absent, contrasted, of_one_class])
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
    target = teacher.abs()
    found = []
    for compiled in (True, False):
        loss = distillation_loss(teacher, student)
        if compiled:
            soft = row_loss(soft_cross_entropies, student, target)
        else:
            soft = -(target * student.log_softmax(1)).sum(1).mean()
        found.append((loss, *torch.autograd.grad(2 * loss, student), soft, *torch.autograd.grad(soft, student)))
        monkeypatch.setattr(distillation, "is_compiled", lambda *tensors: False)
    for made, expected in zip(*found):
        torch.testing.assert_close(made, expected, rtol=1e-4, atol=1e-6)


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
