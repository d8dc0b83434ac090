"""Laplace noise on what crosses the network (FedGPL, eq. 4)."""

from typing import Literal

import torch
from torch import Tensor

Noise = Literal["off", "paper", "clipped"]
# The largest |u| below a half: beyond it the logarithm is infinite.
FURTHEST = 0.5 - 2**-24
CPU = torch.device("cpu")


def laplace(shape: torch.Size, scale: float, rng: torch.Generator, device: torch.device = CPU) -> Tensor:
    """Draws of the Laplace distribution around 0, of variance 2 scale^2, float32."""
    u = (torch.rand(shape, generator=rng, device=device) - 0.5).clamp(-FURTHEST, FURTHEST)
    return -scale * u.sign() * torch.log1p(-2 * u.abs())


def noised(x_NF: Tensor, noise: Noise, epsilon: float, clip: float, rng: torch.Generator) -> Tensor:
    """Rows with noise, in a new tensor unless there is none.

    `paper` has the scale (max - min) / epsilon over the whole tensor: the range of the very data is no bound of what
    one row can change, so this is not epsilon-differentially private. `clipped` shrinks rows to an L1 norm of `clip`
    and has the scale 2 clip / epsilon, which is, for every row and release, under replacement of the row.
    """
    if noise == "off" or not x_NF.numel():
        return x_NF
    if noise == "paper":
        scale = float(x_NF.max() - x_NF.min()) / epsilon
        return x_NF + laplace(x_NF.shape, scale, rng, x_NF.device)
    length_N1 = x_NF.abs().sum(1, keepdim=True)
    shrunk_NF = x_NF * (clip / length_N1.clamp(min=clip))
    return shrunk_NF + laplace(x_NF.shape, 2 * clip / epsilon, rng, x_NF.device)
