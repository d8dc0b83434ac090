"""Secure aggregation, simulated: clients send masked whole numbers, of which only the sum over a cohort can be read.

Bonawitz et al., Practical secure aggregation for privacy-preserving machine learning, CCS 2017, section 4: client u
sends x_u + sum_{v > u} s_uv - sum_{v < u} s_uv mod 2^64, and masks s_uv cancel in the sum. x_u is the value times its
weight, and the weight, each rounded to a multiple of 2^-`BITS`. Simulated are key agreement and shares of secrets: a
keyed stream stands for the mask that u and v agree on, and is drawn again for clients that dropped out. There are no
self-masks (section 4.2): no upload here comes late.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from shoal.algorithms.protocol import Reduce, Upload
from shoal.algorithms.rng import key
from shoal.engine.config.round_sections import SecureOptions
from shoal.engine.messages.cell import PartialSum
from shoal.engine.uploads.reduction import counted, require_sound
from shoal.storage.errors import ShoalError

# A sum of m rounded numbers is within m 2^-(BITS + 1) of the exact one.
BITS = 24


@dataclass(frozen=True)
class Masks:
    """The masks of one phase.

    Attributes:
        options: Of the run.
        stream: Seed, round, phase and number of the exchange in its round: none is used twice.
        clients: Who was asked, ascending.
    """

    options: SecureOptions
    stream: tuple[int | str, ...]
    clients: tuple[int, ...]

    def __post_init__(self) -> None:
        """Raises a ShoalError if one client alone is asked, which no mask hides."""
        if len(self.clients) < 2:
            raise ShoalError("secure.kind", "masks hide a client among others, found one alone; raise participation")

    def masked(self, client: int, upload: Upload, up: Mapping[str, Reduce]) -> Upload:
        """What a client sends: int64 entries and weights in their shapes, 8 bytes a number.

        Raises ShoalError: a number is not finite, too large for the sum of all, or a weight too small to count.
        """
        require_sound(upload, up)
        entries, weights, sizes = {}, {}, {}
        for entry in up:
            value, weight = upload.entries[entry].cpu(), torch.as_tensor(upload.weight.get(entry, 1.0)).cpu().double()
            sent = self._rounded(entry, counted(value, weight).double() * weight), self._rounded(entry, weight)
            if bool(((weight != 0) & (sent[1] == 0)).any()):
                raise ShoalError(
                    "secure.kind",
                    f"masks round weights to 2^-{BITS}, and one of {entry!r} is less; take secure.kind=none",
                )
            for other in self.clients:
                if other != client:
                    _add(sent, self._between(client, other, entry, sent))
            entries[entry], weights[entry] = sent
            sizes[entry] = sum(t.nbytes for t in sent)
        return Upload(entries, weights, sizes)

    def unmask(self, whole: PartialSum, answered: Sequence[int]) -> None:
        """Makes the sum over clients that answered readable, float64, without their masks with those that did not.

        Raises ShoalError: fewer answered than the threshold, or one alone.
        """
        needed = max(2, math.ceil(self.options.threshold * len(self.clients) - 1e-9))
        if len(answered) < needed:
            raise ShoalError(
                "secure.threshold",
                f"{len(answered)} of {len(self.clients)} clients answered, and a sum is read of {needed} or more; "
                "lower secure.threshold or raise participation",
            )
        for entry, total in whole.total.items():
            sent = total.clone(), torch.as_tensor(whole.weight[entry]).clone()
            for lost in set(self.clients) - set(answered):
                for client in answered:
                    # What the lost client would have sent of this pair.
                    _add(sent, self._between(lost, client, entry, sent))
            whole.total[entry], whole.weight[entry] = (t.double() / 2**BITS for t in sent)

    def _rounded(self, entry: str, numbers: Tensor) -> Tensor:
        limit = 2.0 ** (62 - BITS) / len(self.clients)
        if bool((numbers.abs() >= limit).any()):
            raise ShoalError(
                "secure.kind",
                f"masks add up numbers below {limit:.3g} in size, found more in {entry!r} times its weight; a smaller "
                "train.lr may help",
            )
        return (numbers * 2**BITS).round().long()

    def _between(self, client: int, other: int, entry: str, like: Sequence[Tensor]) -> Iterator[Tensor]:
        """What `client` adds to its numbers for its pair with `other`, which adds the opposite."""
        low, high = sorted((client, other))
        bits = np.random.Philox(key(*self.stream, "mask", entry, low, high))
        for t in like:
            drawn = torch.from_numpy(bits.random_raw(max(t.numel(), 1)).view(np.int64))[: t.numel()].reshape(t.shape)
            yield drawn if client == low else -drawn


def _add(numbers: Sequence[Tensor], masks: Iterator[Tensor]) -> None:
    # Of int64 the sum is that mod 2^64.
    for number, mask in zip(numbers, masks):
        number += mask
