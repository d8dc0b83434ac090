"""Dropout whose masks may be drawn elsewhere: clients that train in one batch drop what each would drop alone."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar

import torch
import torch.nn.functional as F
from torch import Tensor

from shoal.storage.graph.sparse_matrix import FeatureMatrix, Features

# Bits of a draw that decide over one entry, and of the words that are drawn.
BITS, WORD = 16, 64
# SplitMix64 has the first three; the last lies between two draws of a stream.
GOLDEN, FIRST, SECOND, BETWEEN = 0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB, 0xD1342543DE82EF95

# Devices whose dropout draws by a key and a count: there one operator draws for many clients, each from its own stream.
KEYED = {"cuda"}


class _Drawn:
    """The default stream of such devices: its seed, and how often it was drawn from."""

    seed = count = 0


DRAWN = _Drawn()

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
    eight times as long, a third of a step of a small GNN. Without a generator a device that is `KEYED` draws as
    `fill_kept_by_key` does.
    """
    if out.device.type in KEYED and generator is None:
        DRAWN.count += 1
        return fill_kept_by_key(out[None], p, DRAWN.seed, DRAWN.count - 1)[0]
    words = torch.empty(-(-out.numel() * BITS // WORD), dtype=torch.int64, device=out.device)
    words.random_(-(2 ** (WORD - 1)), None, generator=generator)
    return _keep(words.view(torch.int16)[: out.numel()], p, out)


def draw_entries(out: Tensor) -> None:
    """Draws numbers for entries, int16, in whole words, on a processor from torch's default generator.

    Those from `least_kept` on are of entries that `fill_kept` would keep.
    """
    out.view(torch.int64).random_(-(2 ** (WORD - 1)), None)


def whole_words(entries: int) -> int:
    """Counts the entries of the words that are drawn for so many entries."""
    return -(-entries * BITS // WORD) * (WORD // BITS)


def least_kept(p: float) -> int:
    """Returns the least draw of an entry that dropout keeps."""
    return min(round(p * 2**BITS), 2**BITS - 1) - 2 ** (BITS - 1)


def fill_kept_of_steps(out: Tensor, drops: Sequence[tuple[int, float]]) -> None:
    """Fills rows, one a step on a processor, as `fill_kept` fills so many entries with their p, one after another."""
    if len({p for _, p in drops}) == 1 and all(count % (WORD // BITS) == 0 for count, _ in drops):
        # Draws of whole words follow each other as those of one.
        fill_kept(out.view(-1), drops[0][1])
        return
    for row in out if drops else ():
        for part, (_, p) in zip(row.split([count for count, _ in drops]), drops):
            fill_kept(part, p)


def fill_kept_by_key(out: Tensor, p: float, seed: Tensor | int, number: int) -> Tensor:
    """Fills each `out[b]` from a stream of its own as `fill_kept` does, by operators that take all of them at once.

    `seed` is that of all streams, or int64 `[B]`, and `number` counts the draws. A word is SplitMix64 (Steele et al.,
    OOPSLA 2014) of its place, and depends on nothing else: rows that follow change none.
    """
    entries = out[0].numel()
    word_M = torch.arange(1, 1 + -(-entries * BITS // WORD), device=out.device).mul_(_signed(GOLDEN))
    word_BM = word_M + (seed[:, None] if isinstance(seed, Tensor) else word_M.new_full((len(out), 1), seed))
    word_BM.add_(_signed(number * BETWEEN))
    for shift, factor in ((30, FIRST), (27, SECOND)):
        word_BM.bitwise_xor_(_shifted(word_BM, shift)).mul_(_signed(factor))
    word_BM.bitwise_xor_(_shifted(word_BM, 31))
    return _keep(word_BM.view(torch.int16)[:, :entries], p, out)


def _keep(drawn: Tensor, p: float, out: Tensor) -> Tensor:
    """Compares draws of 16 bits with p."""
    return torch.ge(drawn.view(out.shape), least_kept(p), out=out)


def _shifted(word_BM: Tensor, bits: int) -> Tensor:
    """Shifts words without their sign."""
    return (word_BM >> bits).bitwise_and_(2 ** (WORD - bits) - 1)


def _signed(word: int) -> int:
    """Returns the number of type int64 that has the last bits of a number."""
    return (word + 2 ** (WORD - 1)) % 2**WORD - 2 ** (WORD - 1)


def transform(x: Features, weight_HF: Tensor, bias_H: Tensor | None = None) -> Tensor:
    """Computes x W^T + b, `[N, H]`, for dense rows or sparse ones `[N, F]`.

    For sparse rows the memory of W should run by columns (`FlatModel` sees to it), else it is copied in every step.
    """
    if not isinstance(x, FeatureMatrix):
        return F.linear(x, weight_HF, bias_H)
    product_NH = x @ weight_HF.t()
    return product_NH if bias_H is None else product_NH + bias_H
