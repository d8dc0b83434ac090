"""Dropout whose masks may be drawn elsewhere: clients that train in one batch drop what each would drop alone."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

import torch
from torch import Tensor

from algorithms.draws import fill_kept

MaskOf = Callable[[Tensor, float], Tensor]

_mask_of: ContextVar[MaskOf | None] = ContextVar("mask_of", default=None)


def drop(x: Tensor, p: float, training: bool) -> Tensor:
    """Zeroes entries with probability p and divides the rest by 1 - p, in training."""
    if not training or not p:
        return x
    mask_of = _mask_of.get()
    if mask_of is not None:
        return x * mask_of(x, p)
    return x * fill_kept(torch.empty_like(x), p).div_(1 - p)


@contextmanager
def masks(mask_of: MaskOf) -> Iterator[None]:
    """Inside the block, `mask_of(x, p)` gives the factors 0 and 1 / (1 - p) of every dropout, in the order of calls."""
    token = _mask_of.set(mask_of)
    try:
        yield
    finally:
        _mask_of.reset(token)
