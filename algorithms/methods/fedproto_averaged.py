"""FedProto with averaged parameters."""

from dataclasses import dataclass

from torch import Tensor

from algorithms.base import Output
from algorithms.losses.alignment import mean_square
from algorithms.methods.averaged_rows import AveragedRows


@dataclass(frozen=True)
class FedProtoAveraged(AveragedRows):
    """The FedProto that FGGP compares with: one model, averaged as by FedAvg, beside FedProto's prototypes and loss.

    A client trains on cross-entropy + lam / H * mean over its training rows of |z_v - p_{y_v}|^2; see
    `methods.fedproto`. FGGP's code weighs it by 0.01. lam = 0 trains as FedAvg.

    Attributes:
        lam: Weight of the alignment.
    """

    lam: float = 1.0

    def __post_init__(self) -> None:
        if self.lam < 0:
            raise ValueError("lam must not be negative")

    def loss(self, out: Output, y: Tensor, w: Tensor, given: tuple[Tensor, Tensor] | None) -> Tensor:
        plain = super().loss(out, y, w, given)
        if not self.lam or given is None:
            return plain
        return plain + mean_square(out.embedding_NH, y, *given, weight=self.lam)
