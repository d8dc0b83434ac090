"""Sums behind masks: every two clients agree on one, which the first adds and the second subtracts.

Bonawitz et al., Practical secure aggregation for privacy-preserving machine learning, CCS 2017, section 4: client u
sends x_u + sum_{v > u} s_uv - sum_{v < u} s_uv mod 2^64, and masks s_uv cancel in the sum. Simulated are key agreement
and shares of secrets: a keyed stream stands for the mask that u and v agree on, and is drawn again for clients that
dropped out. There are no self-masks (section 4.2): no upload here comes late.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from shoal.algorithms.rng import key
from shoal.engine.uploads.secure import Secure


@dataclass(frozen=True)
class Masks(Secure):
    """See the module; `stream` is seed, round, phase and number of the exchange in its round: none is used twice."""

    stream: tuple[int | str, ...]
    reach: ClassVar[int] = 62

    def hide(self, client: int, entry: str, numbers: Tensor) -> Tensor:
        for other in self.clients:
            if other != client:
                numbers += self._between(client, other, entry, len(numbers))
        return numbers

    def add(self, first: Tensor, second: Tensor) -> Tensor:
        # Of int64 the sum is that mod 2^64.
        return first.add_(second)

    def reveal(self, entry: str, total: Tensor, answered: Sequence[int]) -> Tensor:
        numbers = total.clone()
        for lost in set(self.clients) - set(answered):
            for client in answered:
                # What the lost client would have sent of this pair.
                numbers += self._between(lost, client, entry, len(numbers))
        return numbers

    def _between(self, client: int, other: int, entry: str, count: int) -> Tensor:
        """What `client` adds to its numbers for its pair with `other`, which adds the opposite."""
        low, high = sorted((client, other))
        bits = np.random.Philox(key(*self.stream, "mask", entry, low, high))
        drawn = torch.from_numpy(bits.random_raw(count).view(np.int64))
        return drawn if client == low else -drawn
