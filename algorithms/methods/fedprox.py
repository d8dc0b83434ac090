"""FedProx: FedAvg whose clients stay near what they were sent."""

from dataclasses import dataclass

from torch import Tensor

from shoal.algorithms.base import Output, Received
from shoal.algorithms.methods.fedavg import FedAvg
from shoal.storage.options.types import NotNegative


@dataclass(frozen=True)
class FedProx(FedAvg):
    """FedProx (Li et al., MLSys 2020): FedAvg with the loss cross-entropy + mu / 2 |w - w_sent|^2.

    Messages are those of FedAvg. Adam rescales the gradient of the term with the rest; mu = 0 is FedAvg, to the bit
    with `engine.trainer: autograd`. The paper tries 0.001 to 1.
    """

    mu: NotNegative = 0.01

    def loss(self, out: Output, y: Tensor, w: Tensor, received: Received) -> Tensor:
        plain = super().loss(out, y, w, received)
        return plain + self.mu / 2 * (w - received["w"]).square().sum() if self.mu else plain
