"""FedAvg: one model, averaged over the cohort."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from shoal.algorithms.base import Algorithm, Ask, Client, Context, Received, Requests, Tree, Upload
from shoal.algorithms.protocol import Reduce


@dataclass(frozen=True)
class FedAvg(Algorithm):
    """FedAvg (McMahan et al., AISTATS 2017): w <- sum_i n_i w_i / sum_i n_i over the cohort.

    Down: w `[P]`. Up: w_i `[P]` and n_i. A cohort without weight (no client with a training node) leaves w as it is.

    Attributes:
        weight: n_i counts all `nodes` of a client (as OpenFGL and the FedGTA paper's code do), its `train` nodes, or
            every client once (`uniform`); in graph tasks graphs instead of nodes.
    """

    weight: Literal["nodes", "train", "uniform"] = "nodes"

    def setup(self, ctx: Context) -> Tree:
        return {"w": ctx.initial}

    def round(self, server: Tree, ctx: Context, cohort: Sequence[int]) -> Requests:
        got = yield Ask("train", {"w": Reduce.MEAN}, shared=self.global_model(server))
        if got.weights["w"] > 0:
            server["w"] = got["w"]

    def global_model(self, server: Tree) -> Tree:
        return {"w": server["w"]}

    def upload(self, client: Client, received: Received, phase: str) -> Upload:
        return Upload({"w": client.model.w}, {"w": self.weight_of(client)})

    def weight_of(self, client: Client) -> float:
        """n_i; zero for a client without a training node."""
        size = {"nodes": client.info.items, "train": client.info.train, "uniform": 1}[self.weight]
        return float(size) if client.info.train else 0.0
