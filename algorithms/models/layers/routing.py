"""Neighbours divided among the parts of an embedding, without a row of parts for every edge (DisenGCN).

Axes: N receivers, M senders, E entries, K parts of width D.
"""

from typing import Any

import numba
import numpy as np
import torch
from torch import Tensor

from shoal.storage.graph.sparse_matrix import SparseMatrix


def divide_neighbours(pattern: SparseMatrix, z_MKD: Tensor, u_NKD: Tensor) -> Tensor:
    """Sums p_ij^k z_j^k over j, p_ij = softmax over k of <z_j^k, u_i^k>, float32 `[N, K, D]`; zero without a sender.

    Row i of the pattern, `[N, M]`, has the senders j of node i; its values are not read.
    """
    if z_MKD.device.type != "cpu":
        return by_torch(pattern, z_MKD, u_NKD)
    return _Divided.apply(z_MKD, u_NKD, pattern)


def by_torch(pattern: SparseMatrix, z_MKD: Tensor, u_NKD: Tensor) -> Tensor:
    """Computes `divide_neighbours` on any device, with E x K x D numbers in memory."""
    indptr, columns, _ = pattern.parts()
    receiver_E = torch.arange(len(pattern), device=columns.device).repeat_interleave(indptr.diff())
    z_EKD = z_MKD.index_select(0, columns)
    p_EK = (z_EKD * u_NKD.index_select(0, receiver_E)).sum(2).softmax(1)
    return torch.zeros_like(u_NKD).index_add(0, receiver_E, p_EK[..., None] * z_EKD)


class _Divided(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, z_MKD: Tensor, u_NKD: Tensor, pattern: SparseMatrix) -> Tensor:
        indptr, columns, _ = (part.numpy() for part in pattern.parts())
        z, u = (t.detach().contiguous().numpy() for t in (z_MKD, u_NKD))
        share_EK = np.empty((len(columns), z.shape[1]), dtype=np.float32)
        ctx.kept = indptr, columns, z, u, share_EK
        out_NKD = torch.zeros(u.shape)
        divide(*ctx.kept, out_NKD.numpy())
        return out_NKD

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor, None]:
        of_z, of_u = (torch.zeros(x.shape) for x in ctx.kept[2:4])
        gradients_of_parts(*ctx.kept, gradients[0].contiguous().numpy(), of_z.numpy(), of_u.numpy())
        return of_z, of_u, None


# Sums are in any order, and multiplications may be fused.
FAST = {"reassoc", "contract", "nsz"}


@numba.njit(cache=True, nogil=True, fastmath=FAST)
def divide(
    indptr: np.ndarray, columns: np.ndarray, z: np.ndarray, u: np.ndarray, share: np.ndarray, out: np.ndarray
) -> None:
    """Computes the sums, added to zeros, and the shares p, `[E, K]`."""
    nodes, parts, width = u.shape
    for i in range(nodes):
        for e in range(indptr[i], indptr[i + 1]):
            j = columns[e]
            highest = np.float32(-np.inf)
            for k in range(parts):
                product = np.float32(0)
                for d in range(width):
                    product += z[j, k, d] * u[i, k, d]
                share[e, k] = product
                highest = max(highest, product)
            total = np.float32(0)
            for k in range(parts):
                share[e, k] = np.exp(share[e, k] - highest)
                total += share[e, k]
            for k in range(parts):
                share[e, k] /= total
                p = share[e, k]
                for d in range(width):
                    out[i, k, d] += p * z[j, k, d]


@numba.njit(cache=True, nogil=True, fastmath=FAST)
def gradients_of_parts(
    indptr: np.ndarray,
    columns: np.ndarray,
    z: np.ndarray,
    u: np.ndarray,
    share: np.ndarray,
    out: np.ndarray,
    of_z: np.ndarray,
    of_u: np.ndarray,
) -> None:
    """Computes, from the gradient `out` of the sums, those of z and u, added to zeros."""
    nodes, parts, width = u.shape
    of_share = np.empty(parts, dtype=np.float32)
    for i in range(nodes):
        for e in range(indptr[i], indptr[i + 1]):
            j, mean = columns[e], np.float32(0)
            for k in range(parts):
                product = np.float32(0)
                for d in range(width):
                    product += out[i, k, d] * z[j, k, d]
                of_share[k] = product
                mean += share[e, k] * product
            for k in range(parts):
                p = share[e, k]
                of_score = p * (of_share[k] - mean)
                for d in range(width):
                    of_z[j, k, d] += p * out[i, k, d] + of_score * u[i, k, d]
                    of_u[i, k, d] += of_score * z[j, k, d]
