"""The lowest and the highest frequencies of embeddings on the graph of their own likeness (S2FGL)."""

import torch
from torch import Tensor

from shoal.algorithms.graphs.nearest import nearest
from shoal.algorithms.losses.prototypes import unit

# Eigenvalues that differ by less are equal; they are of the size of a degree.
SAME = 1e-6


def likeness_bands(z_NH: Tensor, neighbours: int, vectors: int) -> tuple[Tensor, Tensor]:
    """Computes what embeddings have along the `vectors` lowest and highest eigenvectors, both `[N, H]`.

    The eigenvectors, which have no gradient, are of L = D - S; S_ij is the cosine of z_i and z_j where one is among the
    `neighbours` nearest of the other, and it is positive. A part is U U^T Z, and U has all vectors of an eigenvalue or
    none, so that it does not matter how these are chosen: there may be more than `vectors`.
    """
    with torch.no_grad():
        near_NK = nearest(z_NH, neighbours).long()
        u_NH = unit(z_NH.detach().double())
        row, place = (near_NK >= 0).nonzero(as_tuple=True)
        other = near_NK[row, place]
        s_NN = u_NH.new_zeros(len(z_NH), len(z_NH))
        s_NN[row, other] = (u_NH[row] * u_NH[other]).sum(1).clamp_min(0)
        s_NN = torch.maximum(s_NN, s_NN.t())
        value_N, vector_NN = torch.linalg.eigh(s_NN.sum(1).diag() - s_NN)
        count, vector_NN = min(vectors, len(z_NH)), vector_NN.to(z_NH.dtype)
        low_NV = vector_NN[:, value_N <= value_N[count - 1] + SAME]
        high_NV = vector_NN[:, value_N >= value_N[-count] - SAME]
    return low_NV @ (low_NV.t() @ z_NH), high_NV @ (high_NV.t() @ z_NH)
