"""Matrices of a layer whose entries are learned with the model."""

from abc import ABC, abstractmethod
from collections.abc import Sequence

from torch import Tensor

from shoal.storage.graph.sparse_matrix import SparseMatrix


class LearnedMatrix(SparseMatrix, ABC):
    """A symmetric sparse matrix `[N, N]` whose entries depend on numbers that have gradients.

    Attributes:
        numbers: What the entries depend on.
    """

    numbers: Tensor

    @abstractmethod
    def of_numbers(self, products: Sequence[tuple[Tensor, Tensor]]) -> Tensor:
        """Computes the gradient of the numbers; `products` are X and the gradient of Y, `[N, H]`, of every Y = A X."""
