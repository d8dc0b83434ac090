"""What a backbone reads that answers for pairs of nodes: nodes of one graph, and which two of them make each pair."""

from dataclasses import dataclass

from torch import Tensor

from algorithms.backbones.graph_batch import ItemBatch


@dataclass(frozen=True)
class PairBatch(ItemBatch):
    """Several pairs.

    Attributes:
        ends: Both nodes of every pair, places among those of the batch, int64 `[M, 2]`.
    """

    ends: Tensor
