"""FedProx: FedAvg whose clients stay near what they were sent."""

from dataclasses import dataclass

from shoal.algorithms.base import Client, Pull, Received, same_for_all
from shoal.algorithms.methods.fedavg import FedAvg
from shoal.algorithms.train_options import TrainOptions
from shoal.storage.options.types import NotNegative


@dataclass(frozen=True)
class FedProx(FedAvg):
    """FedProx (Li et al., MLSys 2020): FedAvg with the loss cross-entropy + mu / 2 |w - w_sent|^2.

    Messages are those of FedAvg. Adam rescales the gradient of the term with the rest; mu = 0 is FedAvg, to the bit.
    The paper tries 0.001 to 1.
    """

    mu: NotNegative = 0.01

    @same_for_all
    def pull(self, client: Client, received: Received, options: TrainOptions) -> Pull | None:
        return Pull(origin=received["w"], mu=self.mu) if self.mu else None
