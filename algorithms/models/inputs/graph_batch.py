"""What a backbone with a readout reads: the nodes of some graphs, one graph behind the other, and where each begins."""

from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from shoal.storage.graph.sparse_matrix import Features, SparseMatrix


@dataclass(frozen=True)
class ItemBatch:
    """Nodes of items that are more than a row: of graphs, or of pairs.

    Attributes:
        hops: Rows of the hops that a decoupled backbone reads, of all nodes; of a coupled one, of the features alone.
        operators: Of a coupled backbone: the matrix of every layer, square.
    """

    hops: Sequence[Features]
    operators: tuple[SparseMatrix, ...]

    @property
    def beside(self) -> tuple[Tensor, ...]:
        """What a coupled backbone reads of nodes beside features and matrices."""
        return ()


@dataclass(frozen=True)
class GraphBatch(ItemBatch):
    """Several graphs; the matrices have no entry between two.

    Attributes:
        first: First row of every graph and the end of the last, int64 `[G + 1]`.
        codes_NQ: Structure codes of all nodes, for a backbone that reads them.
    """

    first: Tensor
    codes_NQ: Tensor | None = None

    @property
    def beside(self) -> tuple[Tensor, ...]:
        return () if self.codes_NQ is None else (self.codes_NQ,)


@dataclass(frozen=True)
class PairBatch(ItemBatch):
    """Several pairs.

    Attributes:
        ends: Both nodes of every pair, places among those of the batch, int64 `[M, 2]`.
    """

    ends: Tensor
