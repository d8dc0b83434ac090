"""Pairs of nodes of one client, as items: which of them are edges, and what they are for."""

from dataclasses import dataclass

import numpy as np

from shoal.storage.options.split_codes import TRAIN

NO_EDGE, EDGE = 0, 1
LABELS = 2
# Kinds of a node in a graph of two kinds, as users and items are (`two_sides`).
ONE, OTHER, NEITHER = 1, 2, 0
# Bytes of a pair on disk, in a shard and in a split.
OF_PAIR = 10


@dataclass(frozen=True)
class Pairs:
    """Pairs of different rows of a shard, each once, in ascending order of their first and then their second row.

    Attributes:
        starts: The first pair of every row that is the smaller of a pair, and the end of the last, int32 `[N + 1]`.
        partner: The larger row of every pair, int32 `[M]`.
        label, part: Whether it is an edge (EDGE, NO_EDGE), and where it belongs (TRAIN, VAL, TEST), int8 `[M]`.
    """

    starts: np.ndarray
    partner: np.ndarray
    label: np.ndarray
    part: np.ndarray

    def __len__(self) -> int:
        return len(self.partner)

    @property
    def ends(self) -> np.ndarray:
        """Both rows of every pair, the smaller one first, int32 `[M, 2]`."""
        smaller = np.repeat(np.arange(len(self.starts) - 1, dtype=np.int32), np.diff(self.starts))
        return np.stack([smaller, self.partner], axis=1)

    @property
    def held_out(self) -> np.ndarray:
        """Edges that are for validation or test, bool `[M]`: no method may see them."""
        return (self.label == EDGE) & (self.part != TRAIN)
