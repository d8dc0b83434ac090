"""Attention by products of queries and keys, without a row of messages for every edge on a processor.

Axes: N receivers, M senders, E entries, H heads of width D.
"""

import math
from typing import Any

import numba
import numpy as np
import torch
from torch import Tensor
from torch_geometric.utils import softmax

from shoal.algorithms.models.layers.edge_attention import sums
from shoal.storage.graph.sparse_matrix import SparseMatrix


def attend(pattern: SparseMatrix, query_NHD: Tensor, key_MHD: Tensor, value_MHD: Tensor) -> Tensor:
    """Sum over j of w_ij v_j, w_i = softmax over j of <q_i, k_j> / sqrt(D), float32 `[N, H, D]` (Shi et al., eq. 3-4).

    Args:
        pattern: `[N, M]`: row i has the senders j of node i; of none, the sum is zero. Its values are not read.
        query_NHD: q, float32.
        key_MHD: k, float32.
        value_MHD: v, float32.
    """
    if value_MHD.device.type != "cpu":
        return by_torch(pattern, query_NHD, key_MHD, value_MHD)
    return _Attention.apply(query_NHD.float(), key_MHD.float(), value_MHD.float(), pattern)


def by_torch(pattern: SparseMatrix, query_NHD: Tensor, key_MHD: Tensor, value_MHD: Tensor) -> Tensor:
    """The same on any device, with E x H x D numbers in memory."""
    indptr, indices, _ = pattern.parts()
    rows = torch.arange(len(pattern), device=indptr.device).repeat_interleave(indptr.diff())
    score_EH = (query_NHD[rows] * key_MHD[indices]).sum(-1) / math.sqrt(query_NHD.shape[-1])
    message_EHD = softmax(score_EH, rows, num_nodes=len(pattern))[..., None] * value_MHD[indices]
    return message_EHD.new_zeros(query_NHD.shape).index_add(0, rows, message_EHD)


class _Attention(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, query_NHD: Tensor, key_MHD: Tensor, value_MHD: Tensor, pattern: SparseMatrix) -> Tensor:
        indptr, indices, _ = (part.numpy() for part in pattern.parts())
        query, key, value = (x.detach().contiguous().numpy() for x in (query_NHD, key_MHD, value_MHD))
        weight_EH = torch.empty(len(indices), query.shape[1])
        _scores(indptr, indices, query, key, np.float32(1 / math.sqrt(query.shape[2])), weight_EH.numpy())
        # torch's exponential is vectorised.
        weight_EH.exp_()
        out_NHD = torch.empty(query.shape)
        sums(indptr, indices, weight_EH.numpy(), value, out_NHD.numpy())
        ctx.kept = indptr, indices, query, key, value, weight_EH
        return out_NHD

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor, Tensor, None]:
        indptr, indices, query, key, value, weight_EH = ctx.kept
        found = [torch.zeros(x.shape) for x in (query, key, value)]
        share, out = np.float32(1 / math.sqrt(query.shape[2])), gradients[0].contiguous().numpy()
        written = [x.numpy() for x in found]
        _gradients(indptr, indices, query, key, value, weight_EH.numpy(), share, out, *written)
        return found[0], found[1], found[2], None


@numba.njit(cache=True, fastmath={"reassoc", "contract", "nsz"})
def _scores(
    indptr: np.ndarray, indices: np.ndarray, query: np.ndarray, key: np.ndarray, share: float, out: np.ndarray
) -> None:
    """Scores less the largest one of their row, so that the exponential stays below one."""
    nodes, heads, width = query.shape
    for i in range(nodes):
        for h in range(heads):
            highest = np.float32(-np.inf)
            for e in range(indptr[i], indptr[i + 1]):
                j = indices[e]
                product = np.float32(0)
                for d in range(width):
                    product += query[i, h, d] * key[j, h, d]
                out[e, h] = share * product
                highest = max(highest, out[e, h])
            for e in range(indptr[i], indptr[i + 1]):
                out[e, h] -= highest


@numba.njit(cache=True, fastmath={"reassoc", "contract", "nsz"})
def _gradients(
    indptr: np.ndarray,
    indices: np.ndarray,
    query: np.ndarray,
    key: np.ndarray,
    value: np.ndarray,
    weight: np.ndarray,
    share: float,
    out: np.ndarray,
    of_query: np.ndarray,
    of_key: np.ndarray,
    of_value: np.ndarray,
) -> None:
    """From the gradient `out` of the sums those of everything that they were made from, added to zeros."""
    nodes, heads, width = query.shape
    most = 0
    for i in range(nodes):
        most = max(most, indptr[i + 1] - indptr[i])
    of_weight = np.empty(most, dtype=np.float32)
    for i in range(nodes):
        first, last = indptr[i], indptr[i + 1]
        for h in range(heads):
            mean = np.float32(0)
            for e in range(first, last):
                j, w = indices[e], weight[e, h]
                product = np.float32(0)
                for d in range(width):
                    product += out[i, h, d] * value[j, h, d]
                    of_value[j, h, d] += w * out[i, h, d]
                of_weight[e - first] = product
                mean += w * product
            for e in range(first, last):
                j = indices[e]
                gradient = share * weight[e, h] * (of_weight[e - first] - mean)
                for d in range(width):
                    of_query[i, h, d] += gradient * key[j, h, d]
                    of_key[j, h, d] += gradient * query[i, h, d]
