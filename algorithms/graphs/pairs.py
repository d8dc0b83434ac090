"""Products of rows over pairs of nodes, with gradients: what a graph is drawn by.

Nothing here is larger than the pairs or the rows: where torch computes, pairs are taken a block at a time.

Axes: S pairs i < j, ascending by i and then by j; N nodes, rows of width H.
"""

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from shoal.algorithms.graphs import pair_kernels

# Pairs whose rows torch gathers at once: 128 MB at width 128.
BLOCK = 2**18


def compiled(tensor: Tensor) -> bool:
    """Whether our own loops, which are for one core, take a tensor."""
    return tensor.device.type == "cpu"


class PairDots(torch.autograd.Function):
    """<x_i, x_j>, float32 `[S]`, from rows `[N, H]` and pairs int32 `[2, S]`: `PairDots.apply(x_NH, pairs_2S)`."""

    @staticmethod
    def forward(ctx: Any, x_NH: Tensor, pairs_2S: Tensor) -> Tensor:
        ctx.save_for_backward(x_NH, pairs_2S)
        if compiled(x_NH):
            out_S = torch.empty(pairs_2S.shape[1])
            pair_kernels.dots(*_arrays(pairs_2S[0], pairs_2S[1], x_NH), out_S.numpy())
            return out_S
        return _joined(x_NH, [(x_NH[i] * x_NH[j]).sum(1) for i, j in _blocks(pairs_2S)])

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        x_NH, pairs_2S = ctx.saved_tensors
        (weight_S,) = gradients
        out_NH = torch.zeros_like(x_NH, memory_format=torch.contiguous_format)
        if compiled(x_NH):
            pair_kernels.add_rows(*_arrays(pairs_2S[0], pairs_2S[1], weight_S, x_NH), out_NH.numpy())
            return out_NH, None
        for (i, j), w in zip(_blocks(pairs_2S), weight_S.split(BLOCK)):
            out_NH.index_add_(0, i, w[:, None] * x_NH[j])
            out_NH.index_add_(0, j, w[:, None] * x_NH[i])
        return out_NH, None


def cross_dots(x_NH: Tensor, y_NH: Tensor, pairs_2S: Tensor) -> Tensor:
    """<x_i, y_j> + <x_j, y_i>, float32 `[S]`, without gradients."""
    if compiled(x_NH):
        out_S = torch.empty(pairs_2S.shape[1])
        pair_kernels.cross_dots(*_arrays(pairs_2S[0], pairs_2S[1], x_NH, y_NH), out_S.numpy())
        return out_S
    return _joined(x_NH, [(x_NH[i] * y_NH[j] + x_NH[j] * y_NH[i]).sum(1) for i, j in _blocks(pairs_2S)])


def _blocks(pairs_2S: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
    return ((block[0], block[1]) for block in pairs_2S.split(BLOCK, dim=1))


def _joined(like: Tensor, parts: list[Tensor]) -> Tensor:
    return torch.cat(parts) if parts else like.new_empty(0)


def _arrays(*tensors: Tensor) -> list[Any]:
    return [tensor.detach().contiguous().numpy() for tensor in tensors]
