"""The contrast of two views: its optimum, and the compiled call beside prototypes by torch in float64."""

import pytest
import torch

from shoal.algorithms.methods.fggp.view_contrast import ViewOptions, contrast_of_views, loss_of_views
from shoal.algorithms.models.layers.head import Output

NODES, CLASSES, WIDTH = 40, 5, 7


def test_with_two_classes_equation_8_is_linear_in_the_cosines() -> None:
    """Its optimum is -1 / t where cosines lie in [0, 1]."""
    alike = torch.eye(2)
    assert float(contrast_of_views(alike, alike, 0.25, literal=True)) == pytest.approx(-4)
    assert 0 < float(contrast_of_views(alike, alike, 0.25)) < 0.02


@pytest.mark.parametrize("literal", [False, True])
@pytest.mark.parametrize("count", [0, 1])
def test_of_fewer_than_two_classes_it_is_nothing(literal: bool, count: int) -> None:
    own = torch.ones(count, 6, requires_grad=True)
    loss = contrast_of_views(own, torch.ones(count, 6), 0.5, literal)
    assert float(loss.detach()) == 0
    loss.backward()
    assert own.grad is not None
    assert not own.grad.any()


@pytest.mark.parametrize("by_logit", [False, True])
@pytest.mark.parametrize("relu", [False, True])
@pytest.mark.parametrize("literal", [False, True])
@pytest.mark.parametrize(("least", "beta"), [(0.0, 1.0), (1.0, 0.7), (6.0, 1.0), (100.0, 1.0), (1.0, 0.0)])
def test_one_call_has_the_loss_and_gradients_of_prototypes_by_torch(
    by_logit: bool, relu: bool, literal: bool, least: float, beta: float
) -> None:
    """No node is of class 3, the only prototype of class 4 is zero where it is positive, and masses differ."""
    generator = torch.Generator().manual_seed(1)
    own, other = torch.randn(2, NODES, WIDTH, generator=generator)
    logits = torch.randn(2, NODES, CLASSES, generator=generator)
    logits[0, torch.arange(NODES), torch.arange(NODES) % 3] += 5
    own[7] = -1
    train, label = torch.tensor([1, 7, 30, 39]), torch.tensor([2, 4, 0, 1])
    options = ViewOptions(beta, 0.5, literal, least, relu, by_logit)
    results = []
    for kind in (torch.float32, torch.float64):
        parts = [x.to(kind).clone().requires_grad_() for x in (*logits, own, other)]
        loss = loss_of_views(Output(parts[0], parts[2]), Output(parts[1], parts[3]), train, label, CLASSES, options)
        (3 * loss).backward()
        zeros = [torch.zeros_like(x) if x.grad is None else x.grad for x in parts]
        results.append([loss.detach().double(), *(gradient.double() for gradient in zeros)])
    assert bool(results[0][3].any()) == (least < 100 and beta > 0)
    for one, wanted in zip(*results):
        torch.testing.assert_close(one, wanted, rtol=1e-4, atol=1e-7)
