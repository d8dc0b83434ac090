"""What a backbone with a readout reads: the nodes of some graphs, one graph behind the other, and where each begins."""

from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from storage.sparse_matrix import Features, SparseMatrix


@dataclass(frozen=True)
class GraphBatch:
    """Several graphs.

    Attributes:
        hops: Rows of the hops that a decoupled backbone reads, of all nodes; of a coupled one, of the features alone.
        operators: Of a coupled backbone: the matrix of every layer, square, without an entry between two graphs.
        first: First row of every graph and the end of the last, int64 `[G + 1]`.
        codes_NQ: Structure codes of all nodes, for a backbone that reads them.
    """

    hops: Sequence[Features]
    operators: tuple[SparseMatrix, ...]
    first: Tensor
    codes_NQ: Tensor | None = None
