"""Training rows of clients that a host keeps, in one array a hop: those of a cell are one `index_select`.

Axes: R rows of all clients, B clients of a batch, N rows of the longest of them, F features.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from shoal.algorithms.training.batched.batched_inputs import BatchedRows
from shoal.algorithms.training.batched.batched_training import NO_LABEL, Batch
from shoal.storage.graph.sparse_matrix import SparseMatrix, StoredFeatures


@dataclass(frozen=True)
class Places:
    """The rows of several clients: how many each has, where they lie, int64 `[B, N]`, and counts, float32 `[B]`."""

    lengths: Sequence[int]
    place_BN: Tensor
    count_B: Tensor


class TrainingRows:
    """Hops `[1 + R, F]` and labels `[1 + R]` of clients that have come so far; the first row, zeros, is padding.

    Attributes:
        counts: Training rows of every client.
        weights: Weights of uploads of those that came.
        tensors: Hops, then labels.
    """

    def __init__(self, count_N: np.ndarray, hops: int, features: int, device: torch.device) -> None:
        """Makes room for the rows of N clients, so many each; memory of a processor is taken as it is filled."""
        self.counts: list[int] = count_N.tolist()
        self.weights: dict[int, float] = {}
        self._count_N, self._start_N = count_N, 1 + count_N.cumsum() - count_N
        rows = 1 + int(count_N.sum())
        self.tensors = [torch.empty(rows, features, device=device) for _ in range(hops)]
        self.tensors.append(torch.empty(rows, dtype=torch.int64, device=device))
        for t in self.tensors:
            t[0] = NO_LABEL if t.dim() == 1 else 0

    def add(self, client: int, hops: Sequence[StoredFeatures], label: Tensor, weight: float) -> None:
        """Adds a client, with its rows of each hop, `[n, F]`, their labels and the weight of what it sends."""
        start = int(self._start_N[client])
        for there, rows in zip(self.tensors, [*hops, label]):
            rows = rows.to_dense() if isinstance(rows, SparseMatrix) else rows
            there[start : start + self.counts[client]].copy_(rows, non_blocking=True)
        self.weights[client] = weight

    def places(self, clients: Sequence[int]) -> Places:
        """Finds the rows of some clients; on the processor."""
        count_B, start_B = self._count_N[clients], self._start_N[clients]
        row_N = np.arange(count_B.max())
        place_BN = np.where(row_N < count_B[:, None], start_B[:, None] + row_N, 0)
        return Places(count_B.tolist(), torch.from_numpy(place_BN), torch.from_numpy(count_B.astype(np.float32)))

    def batch(self, places: Places) -> Batch:
        """Selects the rows of clients."""
        flat, shape = places.place_BN.flatten(), places.place_BN.shape
        *hops, label_BN = (t.index_select(0, flat).unflatten(0, shape) for t in self.tensors)
        return Batch(BatchedRows(hops, places.lengths), label_BN, places.count_B)
