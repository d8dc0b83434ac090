"""Directions of classes: their cosines are those that geometry gives, and every seed turns them otherwise."""

import pytest
import torch

from shoal.algorithms.methods.fednh import spread


def draw(classes: int, width: int, seed: int = 0) -> torch.Tensor:
    return spread(classes, width, torch.Generator().manual_seed(seed))


@pytest.mark.parametrize(("classes", "width"), [(1, 3), (2, 1), (2, 8), (4, 3), (7, 64), (40, 39), (172, 256)])
def test_a_simplex_where_there_is_room(classes: int, width: int) -> None:
    found = draw(classes, width)
    assert (found.shape, found.dtype) == ((classes, width), torch.float32)
    expected = torch.full((classes, classes), -1 / max(classes - 1, 1)).fill_diagonal_(1)
    torch.testing.assert_close(found @ found.T, expected, rtol=0, atol=1e-6)


@pytest.mark.parametrize(("classes", "width"), [(5, 3), (6, 3), (16, 8), (10, 8), (3, 1)])
def test_a_basis_and_its_opposites_where_there_is_less(classes: int, width: int) -> None:
    found = draw(classes, width)
    cosine = found @ found.T
    torch.testing.assert_close(cosine.diagonal(), torch.ones(classes))
    apart = cosine - torch.eye(classes)
    if classes <= 2 * width:
        assert float(apart.max()) < 1e-6
    torch.testing.assert_close(cosine[:width, :width], torch.eye(width), rtol=0, atol=1e-6)
    torch.testing.assert_close(found[width:], -found[: classes - width] if classes <= 2 * width else found[width:])


def test_many_classes_on_few_dimensions() -> None:
    found = draw(20, 3)
    assert found.shape == (20, 3)
    torch.testing.assert_close(found.norm(dim=1), torch.ones(20))
    # Four bases, each turned by itself: no direction comes twice.
    cosine = found @ found.T - 2 * torch.eye(20)
    assert float(cosine.max()) < 0.999
    torch.testing.assert_close(found[6:9], -found[9:12])


def test_turned_at_random() -> None:
    assert torch.equal(draw(4, 8, 1), draw(4, 8, 1))
    assert not torch.allclose(draw(4, 8, 1), draw(4, 8, 2))
    # All dimensions are used, not the first C - 1 alone.
    assert bool((draw(4, 8).abs().max(0).values > 1e-3).all())
