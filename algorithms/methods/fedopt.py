"""FedOPT: the server steps along the mean change of its clients by its own optimizer."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from shoal.algorithms.base import Ask, Context, Requests, Tree
from shoal.algorithms.methods.fedavg import FedAvg
from shoal.algorithms.protocol import Reduce
from shoal.storage.options.types import AboveZero, ShareBelowOne


@dataclass(frozen=True)
class FedOPT(FedAvg):
    """Adaptive federated optimization (Reddi et al., ICLR 2021, algorithm 2), and server momentum.

    d = sum_i n_i (w_i - w) / sum_i n_i over the cohort, m <- beta1 m + (1 - beta1) d, w <- w + eta m / (sqrt(v) + tau),
    without correction of the moments' bias; m starts at 0 and v at tau^2. By `optimizer`:

    - `adam`: v <- beta2 v + (1 - beta2) d^2
    - `yogi`: v <- v - (1 - beta2) d^2 sign(v - d^2)
    - `adagrad`: v <- v + d^2
    - `momentum`: m <- momentum m + d and w <- w + eta m, which FGGP's code calls FedOpt (eta 0.5, momentum 0.9, clients
      weighed `uniform`)

    With `momentum`, eta 1 and momentum 0 it is FedAvg. Messages are FedAvg's; moments stay on the server. A cohort
    without weight leaves model and moments as they are.

    Attributes:
        optimizer, eta: Of the server, and its learning rate; the paper tries 0.001 to 1.
        beta1, beta2: Decays of the mean change, not for `momentum`, and of its square, for `adam` and `yogi`.
        tau: What keeps steps small where changes are small; not for `momentum`.
        momentum: For `momentum`.
    """

    optimizer: Literal["momentum", "adam", "yogi", "adagrad"] = "adam"
    eta: AboveZero = 0.01
    beta1: ShareBelowOne = 0.9
    beta2: ShareBelowOne = 0.99
    tau: AboveZero = 1e-3
    momentum: ShareBelowOne = 0.9

    def setup(self, ctx: Context) -> Tree:
        state = {**super().setup(ctx), "m": torch.zeros_like(ctx.initial)}
        return state if self.optimizer == "momentum" else {**state, "v": torch.full_like(ctx.initial, self.tau**2)}

    def round(self, server: Tree, ctx: Context, cohort: Sequence[int]) -> Requests:
        got = yield Ask("train", {"w": Reduce.MEAN}, shared={"w": server["w"]})
        if got.weights["w"] > 0:
            self._step(server, got["w"] - server["w"])

    def _step(self, server: Tree, change: Tensor) -> None:
        if self.optimizer == "momentum":
            server["m"] = self.momentum * server["m"] + change
            server["w"] = server["w"] + self.eta * server["m"]
            return
        server["m"] = self.beta1 * server["m"] + (1 - self.beta1) * change
        v, square = server["v"], change.square()
        if self.optimizer == "adam":
            server["v"] = self.beta2 * v + (1 - self.beta2) * square
        elif self.optimizer == "yogi":
            server["v"] = v - (1 - self.beta2) * square * (v - square).sign()
        else:
            server["v"] = v + square
        server["w"] = server["w"] + self.eta * server["m"] / (server["v"].sqrt() + self.tau)
