"""FedAvg whose clients take a fixed time and no processor: many hosts fit two cores, and what is left is the engine."""

import time
from collections.abc import Sequence
from dataclasses import dataclass

from shoal.algorithms.base import Algorithm, Client, Context, Received, Requests, Trainer
from shoal.algorithms.protocol import Ask, Reduce, Tree, Upload


@dataclass(frozen=True)
class Sleepy(Algorithm):
    """Sends back what it received.

    Attributes:
        seconds: Of a client.
    """

    seconds: float = 0.05

    def setup(self, ctx: Context) -> Tree:
        return {"w": ctx.initial}

    def round(self, server: Tree, ctx: Context, cohort: Sequence[int]) -> Requests:
        got = yield Ask("train", {"w": Reduce.MEAN}, shared={"w": server["w"]})
        server["w"] = got["w"]

    def global_model(self, server: Tree) -> Tree:
        return {"w": server["w"]}

    def train(self, client: Client, received: Received, trainer: Trainer, phase: str) -> float:
        time.sleep(self.seconds)
        return float("nan")

    def upload(self, client: Client, received: Received, phase: str) -> Upload:
        return Upload({"w": client.model.w})
