"""A client's graph with edges added between nodes that look alike."""

from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from shoal.algorithms.graphs import pair_kernels
from shoal.storage.errors import ShoalError

MOST_ENTRIES = 2**31


class CompletedGraph(NamedTuple):
    """A' = A or kNN, symmetric and without loops (FGGP, equation 6); tensors, so that `View.cache` can keep it.

    Attributes:
        indptr: Row starts, int32 `[N + 1]`, on the processor.
        indices: Columns, int32 `[2 M]`, ascending in a row, on the processor.
        pairs_2M: Its edges i < j, int32, ascending by i and then by j, where it was asked for.
    """

    indptr: Tensor
    indices: Tensor
    pairs_2M: Tensor

    @property
    def nodes(self) -> int:
        """Number of nodes N."""
        return len(self.indptr) - 1


def completed(indptr: np.ndarray, indices: np.ndarray, nearest_NK: Tensor, device: torch.device) -> CompletedGraph:
    """Adds an edge from every node to each of its nearest ones.

    Args:
        indptr: Row starts of A, as `View.csr` gives them.
        indices: Its columns.
        nearest_NK: What `nearest` gave: int32, -1 where there is nobody.
        device: Where the pairs are to be.

    Raises:
        ShoalError: A' has more entries than int32 can count.
    """
    nodes = len(indptr) - 1
    row_E = np.repeat(np.arange(nodes, dtype=np.int64), np.diff(indptr))
    upper_E = indices > row_E
    one, place = np.nonzero(nearest_NK.cpu().numpy() >= 0)
    other = nearest_NK.cpu().numpy()[one, place].astype(np.int64)
    added = np.minimum(one, other) * nodes + np.maximum(one, other)
    keys_M = np.unique(np.concatenate([row_E[upper_E] * nodes + indices[upper_E], added]))
    if 2 * len(keys_M) >= MOST_ENTRIES:
        raise ShoalError(f"a client's completed graph has {len(keys_M):,} edges; take fewer neighbours or more clients")
    pairs_2M = np.stack(np.divmod(keys_M, max(nodes, 1))).astype(np.int32)
    starts, columns = pair_kernels.symmetric_rows(*pairs_2M, np.ones(len(keys_M), np.bool_), nodes)
    pairs = torch.from_numpy(pairs_2M).to(device)
    return CompletedGraph(torch.from_numpy(starts), torch.from_numpy(columns), pairs)
