"""Sums behind masks: every two clients agree on one, which the first adds and the second subtracts.

Bonawitz et al., Practical secure aggregation for privacy-preserving machine learning, CCS 2017, section 4: client u
sends x_u + sum_{v > u} s_uv - sum_{v < u} s_uv mod 2^64, and masks s_uv cancel in the sum. Simulated are key agreement
and shares of secrets: a keyed stream stands for the mask that u and v agree on, and is drawn again for clients that
dropped out. There are no self-masks (section 4.2): no upload here comes late.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numba
import numpy as np
from torch import Tensor

from shoal.algorithms.rng import key
from shoal.engine.stages.secure.secure import Secure
from shoal.storage.kernels.counter_rng import GOLDEN, bits_at

BLOCK = 1024


@dataclass(frozen=True)
class Masks(Secure):
    """A way to hide numbers by masks; `stream`, never used twice, is seed, round, phase and exchange in its round."""

    stream: tuple[int | str, ...]
    reach: ClassVar[int] = 62

    def hide(self, client: int, entry: str, numbers: Tensor) -> Tensor:
        self._add(numbers, client, self.clients, entry)
        return numbers

    def add(self, first: Tensor, second: Tensor) -> Tensor:
        # A sum of int64 is taken mod 2^64.
        return first.add_(second)

    def reveal(self, entry: str, total: Tensor, answered: Sequence[int]) -> Tensor:
        numbers = total.clone()
        for lost in set(self.clients) - set(answered):
            # These are the masks that the lost client would have added for its pairs with these.
            self._add(numbers, lost, answered, entry)
        return numbers

    def _add(self, numbers: Tensor, client: int, others: Sequence[int], entry: str) -> None:
        """Adds what a client adds to its numbers for its pairs with others, which add the opposite."""
        of_entry = np.uint64(key(*self.stream, "mask", entry))
        _add_masks(numbers.numpy().view(np.uint64), of_entry, client, np.array(others))


@numba.njit(cache=True, nogil=True)
def _add_masks(numbers: np.ndarray, of_entry: np.uint64, client: int, others: np.ndarray) -> None:
    # Blocks stay in the nearest cache for all masks, and LLVM makes vectors of their loops.
    for first in range(0, len(numbers), BLOCK):
        block = numbers[first : first + BLOCK]
        for other in others:
            low, high = np.uint64(min(client, other)), np.uint64(max(client, other))
            from_first = bits_at(of_entry, (low << np.uint64(32)) | high) + np.uint64(first) * GOLDEN
            if client < other:
                for place in range(len(block)):
                    block[place] += bits_at(from_first, np.uint64(place))
            elif client > other:
                for place in range(len(block)):
                    block[place] -= bits_at(from_first, np.uint64(place))
