"""A contrast of two views of the same items: each is to be nearest to its own other view."""

import torch
from torch import Tensor

from algorithms.losses.prototypes import unit


def nt_xent(z_GH: Tensor, other_GH: Tensor, temperature: float) -> Tensor:
    """Normalised, temperature-scaled cross-entropy (You et al., NeurIPS 2020, equation 3): the mean over items n of

        -log(e^(cos(z_n, o_n) / tau) / sum_{m != n} e^(cos(z_n, o_m) / tau))

    The sum has the other views of the other items alone, so that it can be negative.

    Args:
        z_GH: An embedding of every item in one view; there are at least two.
        other_GH: Those in the other view, in the same order.
        temperature: tau.
    """
    score_GG = unit(z_GH) @ unit(other_GH).T / temperature
    others_G = score_GG.clone().fill_diagonal_(-torch.inf).logsumexp(1)
    return (others_G - score_GG.diagonal()).mean()
