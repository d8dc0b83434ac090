"""Directions of classes that lie as far apart as they can."""

import torch
from torch import Tensor

from algorithms.losses.prototypes import unit


def spread(classes: int, width: int, generator: torch.Generator) -> Tensor:
    """Unit vectors, `[C, H]`, one a class, turned at random.

    For C <= H + 1 they are a simplex: all cosines are -1 / (C - 1), the smallest largest cosine there is. For
    C <= 2 H they are an orthonormal basis and its opposites, whose largest cosine, 0, is the smallest there is, too
    (Rankin, 1955). For more classes further bases follow, each turned by itself; what is best there has no closed form.
    """
    if classes <= width + 1:
        corners = _simplex(classes, generator.device)
        return unit(corners @ _turned(width, generator)[: corners.shape[1]]).float()
    bases: list[Tensor] = []
    for _ in range(0, classes, 2 * width):
        basis_HH = _turned(width, generator)
        bases += [basis_HH, -basis_HH]
    return torch.cat(bases)[:classes].float()


def _simplex(classes: int, device: torch.device) -> Tensor:
    """Corners of a simplex around the origin, float64 `[C, C - 1]`: an orthonormal frame without its mean (Helmert)."""
    if classes == 1:
        return torch.ones(1, 1, dtype=torch.float64, device=device)
    k = torch.arange(1, classes, dtype=torch.float64, device=device)
    corners = torch.ones(classes, classes - 1, dtype=torch.float64, device=device).triu()
    corners[range(1, classes), range(classes - 1)] = -k
    return corners / (k * (k + 1)).sqrt()


def _turned(width: int, generator: torch.Generator) -> Tensor:
    """A random orthonormal basis, rows of float64 `[H, H]`."""
    drawn = torch.randn(width, width, dtype=torch.float64, device=generator.device, generator=generator)
    return torch.linalg.qr(drawn)[0].t()
