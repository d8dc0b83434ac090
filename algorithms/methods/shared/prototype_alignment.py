"""The loss of clients whose embeddings are drawn towards the prototypes of their classes."""

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from shoal.algorithms.base import Algorithm, Output
from shoal.algorithms.losses.alignment import mean_square


@dataclass(frozen=True)
class Aligned(Algorithm):
    """Cross-entropy + lam / H * mean over a client's training rows of |z_v - p_{y_v}|^2 (FedProto).

    That is the mean squared error, as in the paper's code, so that lam means the same at every width H. Rows of a class
    without a prototype have no such term; `receive` gives the prototypes, `[C, H]`, and which those are, `[C]`.

    Attributes:
        lam: Weight of the alignment.
    """

    reads_embedding: ClassVar[bool] = True

    lam: float = 1.0

    def __post_init__(self) -> None:
        if self.lam < 0:
            raise ValueError("lam must not be negative")

    def loss(self, out: Output, y: Tensor, w: Tensor, received: tuple[Tensor, Tensor] | None) -> Tensor:
        plain = super().loss(out, y, w, received)
        if not self.lam or received is None:
            return plain
        return plain + mean_square(out.embedding_NH, y, *received, weight=self.lam)
