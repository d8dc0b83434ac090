"""Weights that clients have for each other in a latent factor (FedIIH)."""

import math

import torch
from torch import Tensor


def mixing_rows(latent_BD: Tensor, counts_B: Tensor, scale: float) -> Tensor:
    """Computes the mixing matrix `[B, B]` of a factor: row i is exp(scale (1 - JS_ij / ln 2)) over the j that count.

    Rows sum to one. Where no client counts each keeps its own.
    """
    if not bool(counts_B.any()):
        return torch.eye(len(counts_B), device=latent_BD.device)
    score_BB = -scale / math.log(2) * divergences(latent_BD)
    return score_BB.masked_fill(~counts_B, -torch.inf).softmax(1).float()


def divergences(latent_BD: Tensor) -> Tensor:
    """Computes JS_ij of all pairs of normal distributions N(l_i, exp(l_i)) with diagonal covariance, float64 `[B, B]`.

    It is the mean of KL(i || m) and KL(j || m), where m is normal with the mean of both means and of both variances, so
    that it is not bounded by ln 2.
    """
    mean_BD = latent_BD.double()
    variance_BD = mean_BD.exp()
    rows = []
    for mean_D, variance_D in zip(mean_BD, variance_BD):
        middle_BD, spread_BD = (mean_D + mean_BD) / 2, (variance_D + variance_BD) / 2
        # Half of both squares over m's variance and of both variances over it, which are 2 together.
        apart_BD = ((mean_D - middle_BD).square() + (mean_BD - middle_BD).square()) / spread_BD
        rows.append((2 * spread_BD.log() - variance_D.log() - variance_BD.log() + apart_BD).sum(1) / 4)
    return torch.stack(rows)
