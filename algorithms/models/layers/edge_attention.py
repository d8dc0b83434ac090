"""Attention over the neighbours of every node without a row of messages for every edge: two kinds of scores.

Axes: N receivers, M senders, E entries, H heads of width D.
"""

import math
from typing import Any

import numba
import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.overrides import handle_torch_function, has_torch_function

from shoal.storage.graph.sparse_matrix import SparseMatrix

FAST = {"reassoc", "contract", "nsz"}
Kept = tuple[Any, ...]


def attend(pattern: SparseMatrix, receiver_NH: Tensor, sender_MH: Tensor, x_MHD: Tensor, slope: float) -> Tensor:
    """Sums w_ij x_j over j, w_i = softmax of LeakyReLU(receiver_i + sender_j), float32 `[N, H, D]` (GAT, eqs. 3, 6).

    Row i of the pattern, `[N, M]`, has the senders j of node i, at least one; its values are not read. A node adds
    `receiver_NH` to its score as receiver, and `sender_MH` as sender; `slope` is that of LeakyReLU below zero.
    """
    if x_MHD.device.type != "cpu":
        return by_torch(pattern, receiver_NH, sender_MH, x_MHD, slope)
    return _Additive.apply(receiver_NH, sender_MH, x_MHD, pattern, slope)


def attend_to_messages(
    pattern: SparseMatrix, message_MF: Tensor, of_senders_1HD: Tensor, of_receivers_1HD: Tensor, slope: float
) -> Tensor:
    """Sums messages, `[N, H D]`, by `attend`: what a node adds to scores are its messages times two vectors a head."""
    if has_torch_function((message_MF,)):
        parts = pattern, message_MF, of_senders_1HD, of_receivers_1HD, slope
        return handle_torch_function(attend_to_messages, (message_MF,), *parts)
    message_MHD = message_MF.view(-1, *of_senders_1HD.shape[1:])
    receiver_NH = (message_MHD[: len(pattern)] * of_receivers_1HD).sum(-1)
    sender_MH = (message_MHD * of_senders_1HD).sum(-1)
    return attend(pattern, receiver_NH, sender_MH, message_MHD, slope).flatten(1)


def attend_by_products(pattern: SparseMatrix, query_NF: Tensor, key_MF: Tensor, value_MF: Tensor, heads: int) -> Tensor:
    """Sums w_ij v_j over j, w_i = softmax over j of <q_i, k_j> / sqrt(D), float32 `[N, H D]` (Shi et al., eq. 3-4).

    Row i of the pattern, `[N, M]`, has the senders j of node i; of none, the sum is zero. Its values are not read.
    """
    if has_torch_function((query_NF,)):
        parts = pattern, query_NF, key_MF, value_MF, heads
        return handle_torch_function(attend_by_products, (query_NF,), *parts)
    query_NHD, key_MHD, value_MHD = (x.view(len(x), heads, x.shape[1] // heads) for x in (query_NF, key_MF, value_MF))
    return _attend_by_products(pattern, query_NHD, key_MHD, value_MHD).flatten(1)


def _attend_by_products(pattern: SparseMatrix, query_NHD: Tensor, key_MHD: Tensor, value_MHD: Tensor) -> Tensor:
    if value_MHD.device.type != "cpu":
        return products_by_torch(pattern, query_NHD, key_MHD, value_MHD)
    return _Products.apply(query_NHD.float(), key_MHD.float(), value_MHD.float(), pattern)


def by_torch(pattern: SparseMatrix, receiver_NH: Tensor, sender_MH: Tensor, x_MHD: Tensor, slope: float) -> Tensor:
    """Computes `attend` on any device, with E x H x D numbers in memory."""
    rows, senders = _ends(pattern)
    score_EH = F.leaky_relu(receiver_NH[rows] + sender_MH[senders], slope)
    return _weigh(pattern, score_EH, x_MHD)


def products_by_torch(pattern: SparseMatrix, query_NHD: Tensor, key_MHD: Tensor, value_MHD: Tensor) -> Tensor:
    """Computes `attend_by_products` on any device, with E x H x D numbers in memory."""
    rows, senders = _ends(pattern)
    score_EH = (query_NHD[rows] * key_MHD[senders]).sum(-1) / math.sqrt(query_NHD.shape[-1])
    return _weigh(pattern, score_EH, value_MHD)


def _ends(pattern: SparseMatrix) -> tuple[Tensor, Tensor]:
    """Returns receiver and sender of every entry, `[E]` each."""
    indptr, indices, _ = pattern.parts()
    return torch.arange(len(pattern), device=indptr.device).repeat_interleave(indptr.diff()), indices


def _weigh(pattern: SparseMatrix, score_EH: Tensor, x_MHD: Tensor) -> Tensor:
    from torch_geometric.utils import softmax  # imported by the models of PyG's layers alone, which takes seconds

    rows, senders = _ends(pattern)
    message_EHD = softmax(score_EH, rows, num_nodes=len(pattern))[..., None] * x_MHD[senders]
    return x_MHD.new_zeros(len(pattern), *x_MHD.shape[1:]).index_add(0, rows, message_EHD)


class _Additive(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, receiver_NH: Tensor, sender_MH: Tensor, x_MHD: Tensor, pattern: SparseMatrix, slope: float
    ) -> Tensor:
        out_NHD, ctx.kept = forward(pattern, receiver_NH, sender_MH, x_MHD, slope)
        return out_NHD

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor, Tensor, None, None]:
        return *backward(ctx.kept, gradients[0]), None, None


def forward(
    pattern: SparseMatrix, receiver_NH: Tensor, sender_MH: Tensor, x_MHD: Tensor, slope: float
) -> tuple[Tensor, Kept]:
    """Computes the sums of `attend` on a processor, and what `backward` needs of it; arguments as there."""
    indptr, indices, _ = (part.numpy() for part in pattern.parts())
    receiver, sender, x = (tensor.detach().contiguous().numpy() for tensor in (receiver_NH, sender_MH, x_MHD))
    weight_EH = torch.empty(len(indices), receiver.shape[1])
    additive_scores(indptr, indices, receiver, sender, slope, weight_EH.numpy())
    # torch's exponential is vectorised.
    weight_EH.exp_()
    out_NHD = torch.empty(len(receiver), *x.shape[1:])
    sums(indptr, indices, weight_EH.numpy(), x, out_NHD.numpy())
    return out_NHD, (indptr, indices, receiver, sender, x, weight_EH.numpy(), slope)


def backward(kept: Kept, out_NHD: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Computes the gradients of `receiver_NH`, `sender_MH` and `x_MHD` from that of the sums."""
    of_receiver, of_sender, of_x = (torch.zeros(x.shape) for x in kept[2:5])
    gradients = of_receiver.numpy(), of_sender.numpy(), of_x.numpy()
    additive_gradients(kept, out_NHD.contiguous().numpy(), gradients)
    return of_receiver, of_sender, of_x


class _Products(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, query_NHD: Tensor, key_MHD: Tensor, value_MHD: Tensor, pattern: SparseMatrix) -> Tensor:
        indptr, indices, _ = (part.numpy() for part in pattern.parts())
        query, key, value = (x.detach().contiguous().numpy() for x in (query_NHD, key_MHD, value_MHD))
        weight_EH = torch.empty(len(indices), query.shape[1])
        share = np.float32(1 / math.sqrt(query.shape[2]))
        product_scores(indptr, indices, query, key, share, weight_EH.numpy())
        # torch's exponential is vectorised.
        weight_EH.exp_()
        out_NHD = torch.empty(query.shape)
        sums(indptr, indices, weight_EH.numpy(), value, out_NHD.numpy())
        ctx.kept = indptr, indices, query, key, value, weight_EH.numpy(), share
        return out_NHD

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor, Tensor, None]:
        of_query, of_key, of_value = (torch.zeros(x.shape) for x in ctx.kept[2:5])
        into = of_query.numpy(), of_key.numpy(), of_value.numpy()
        product_gradients(ctx.kept, gradients[0].contiguous().numpy(), into)
        return of_query, of_key, of_value, None


@numba.njit(cache=True, fastmath=False)
def additive_scores(
    indptr: np.ndarray, indices: np.ndarray, receiver: np.ndarray, sender: np.ndarray, slope: float, out: np.ndarray
) -> None:
    """Computes scores less the largest one of their row, so that the exponential stays below one."""
    heads = receiver.shape[1]
    leak = np.float32(slope)
    highest = np.empty(heads, dtype=np.float32)
    for i in range(len(receiver)):
        highest[:] = -np.inf
        for e in range(indptr[i], indptr[i + 1]):
            j = indices[e]
            for h in range(heads):
                score = receiver[i, h] + sender[j, h]
                score = score if score > 0 else leak * score
                out[e, h] = score
                highest[h] = max(highest[h], score)
        for e in range(indptr[i], indptr[i + 1]):
            for h in range(heads):
                out[e, h] -= highest[h]


@numba.njit(cache=True, fastmath=False)
def sums(indptr: np.ndarray, indices: np.ndarray, weight: np.ndarray, x: np.ndarray, out: np.ndarray) -> None:
    """Scales weights to sum to one in every row, in place, and computes the sums; zero in a row without an entry."""
    heads, width = x.shape[1], x.shape[2]
    total = np.empty(heads, dtype=np.float32)
    for i in range(len(out)):
        total[:] = 0
        for e in range(indptr[i], indptr[i + 1]):
            for h in range(heads):
                total[h] += weight[e, h]
        out[i] = 0
        for e in range(indptr[i], indptr[i + 1]):
            j = indices[e]
            for h in range(heads):
                weight[e, h] /= total[h]
                w = weight[e, h]
                for d in range(width):
                    out[i, h, d] += w * x[j, h, d]


@numba.njit(cache=True, fastmath=FAST)
def additive_gradients(kept: Kept, out: np.ndarray, found: tuple[np.ndarray, np.ndarray, np.ndarray]) -> None:
    """Computes, from the gradient `out` of the sums, those of everything that they were made from."""
    indptr, indices, receiver, sender, x, weight, slope = kept
    of_receiver, of_sender, of_x = found
    heads, width = x.shape[1], x.shape[2]
    leak = np.float32(slope)
    mean = np.empty(heads, dtype=np.float32)
    most = 0
    for i in range(len(receiver)):
        most = max(most, indptr[i + 1] - indptr[i])
    of_weight = np.empty((most, heads), dtype=np.float32)
    for i in range(len(receiver)):
        first, last = indptr[i], indptr[i + 1]
        mean[:] = 0
        for e in range(first, last):
            j = indices[e]
            for h in range(heads):
                w = weight[e, h]
                product = np.float32(0)
                for d in range(width):
                    product += out[i, h, d] * x[j, h, d]
                    of_x[j, h, d] += w * out[i, h, d]
                of_weight[e - first, h] = product
                mean[h] += w * product
        of_receiver[i] = 0
        for e in range(first, last):
            j = indices[e]
            for h in range(heads):
                gradient = weight[e, h] * (of_weight[e - first, h] - mean[h])
                if receiver[i, h] + sender[j, h] <= 0:
                    gradient *= leak
                of_receiver[i, h] += gradient
                of_sender[j, h] += gradient


@numba.njit(cache=True, fastmath=FAST)
def product_scores(
    indptr: np.ndarray, indices: np.ndarray, query: np.ndarray, key: np.ndarray, share: float, out: np.ndarray
) -> None:
    """Computes scores less the largest one of their row, so that the exponential stays below one."""
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


@numba.njit(cache=True, fastmath=FAST)
def product_gradients(kept: Kept, out: np.ndarray, found: tuple[np.ndarray, np.ndarray, np.ndarray]) -> None:
    """Computes, from the gradient `out` of the sums, those of everything they were made from, added to zeros."""
    indptr, indices, query, key, value, weight, share = kept
    of_query, of_key, of_value = found
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
