"""Dropout whose masks may be drawn elsewhere: clients that train in one batch drop what each would drop alone."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

import torch
import torch.nn.functional as F
from torch import Tensor

from shoal.storage.graph.sparse_matrix import FeatureMatrix, Features

# Bits of a draw that decide over one entry, and of the words that are drawn.
BITS, WORD = 16, 64

MaskOf = Callable[[Tensor, float], Tensor]

_mask_of: ContextVar[MaskOf | None] = ContextVar("mask_of", default=None)


def drop(x: Tensor, p: float, training: bool) -> Tensor:
    """Zeroes entries with probability p and divides the rest by 1 - p, in training, or applies a mask that is set."""
    if not training or not p:
        return x
    mask_of = _mask_of.get()
    if mask_of is not None:
        return x * mask_of(x, p)
    return x * fill_kept(torch.empty_like(x), p).div_(1 - p)


@contextmanager
def masks(mask_of: MaskOf) -> Iterator[None]:
    """Replaces dropout inside the block: `mask_of(x, p)` gives the factors 0 and 1 / (1 - p), in the order of calls."""
    token = _mask_of.set(mask_of)
    try:
        yield
    finally:
        _mask_of.reset(token)


def masks_are_set() -> bool:
    """Whether dropout applies masks that are drawn elsewhere."""
    return _mask_of.get() is not None


def fill_kept(out: Tensor, p: float, generator: torch.Generator | None = None) -> Tensor:
    """Writes 1 where dropout keeps an entry and 0, with probability p in [0, 1), where it does not; returns `out`.

    Four entries share a word of the stream, so that p counts in steps of 2^-16: on a processor `bernoulli_` may take
    eight times as long, a third of a step of a small GNN. NVIDIA's GPUs draw by it.
    """
    if out.device.type == "cuda":
        return out.bernoulli_(1 - p, generator=generator)
    words = torch.empty(-(-out.numel() * BITS // WORD), dtype=torch.int64, device=out.device)
    words.random_(-(2 ** (WORD - 1)), None, generator=generator)
    drawn = words.view(torch.int16)[: out.numel()].view(out.shape)
    return torch.ge(drawn, min(round(p * 2**BITS), 2**BITS - 1) - 2 ** (BITS - 1), out=out)


def transform(x: Features, weight_HF: Tensor, bias_H: Tensor | None = None) -> Tensor:
    """Computes x W^T + b, `[N, H]`, for dense rows or sparse ones `[N, F]`.

    For sparse rows the memory of W should run by columns (`FlatModel` sees to it), else it is copied in every step.
    """
    if not isinstance(x, FeatureMatrix):
        return F.linear(x, weight_HF, bias_H)
    product_NH = x @ weight_HF.t()
    return product_NH if bias_H is None else product_NH + bias_H
